// The decode graph's talk with the host: publish cold routes, wait for the CPU's sum, hand out the chosen token.
// Host memory here is page-locked and mapped; layouts are those of engines/ostinato/cpu/library.py. Compiled by NVRTC,
// so nothing is included.

__device__ __forceinline__ float to_float(const void* p, int i, int kind) {
    if (kind == 0) return ((const float*)p)[i];
    unsigned short bits = ((const unsigned short*)p)[i];
    float value;
    if (kind == 1) return __uint_as_float((unsigned)bits << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ void from_float(void* p, int i, int kind, float value) {
    if (kind == 0) { ((float*)p)[i] = value; return; }
    unsigned short bits;
    if (kind == 1) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    ((unsigned short*)p)[i] = bits;
}

__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ float rounded(float value, int kind) {
    unsigned short kept[2];
    if (kind == 0) return value;
    from_float(kept, 0, kind, value);
    return to_float(kept, 0, kind);
}

// All of one block of at least E threads, E <= 1024, K <= 32. The K largest logits, the lower number first among equals,
// and their shares of the softmax over all E (`among` 0) or over the K chosen ones (1), rounded to `weight_kind`.
__device__ __forceinline__ void choose_by(
    const void* logits, int logit_kind, int E, int K, int among, int weight_kind, long long* ids, float* weights) {
    __shared__ float values[1024];
    __shared__ float shares[1024];
    __shared__ float best[32];
    int t = threadIdx.x;
    float own = 0.0f;
    if (t < E) values[t] = own = to_float(logits, t, logit_kind);
    if (t < K) {  // stays where logits are no numbers
        ids[t] = t;
        best[t] = own;
    }
    __syncthreads();
    if (t < E) {
        int rank = 0;
#pragma unroll 8
        for (int e = 0; e < E; e++) {
            float other = values[e];
            rank += (other > own || (other == own && e < t)) ? 1 : 0;
        }
        if (rank < K) {
            ids[rank] = t;
            best[rank] = own;
        }
    }
    __syncthreads();
    if (among == 0 && t < E) shares[t] = expf(own - best[0]);
    if (among != 0 && t < K) shares[t] = expf(best[t] - best[0]);
    __syncthreads();
    if (t < K) {
        float sum = 0.0f;
        for (int i = 0; i < (among ? K : E); i++) sum += shares[i];
        weights[t] = rounded(shares[among ? t : (int)ids[t]] / sum, weight_kind);
    }
    __syncthreads();
}

// One block: `choose_by` into memory.
extern "C" __global__ void choose(
    const void* logits, int logit_kind, int E, int K, int among, int weight_kind, long long* ids, void* weights) {
    __shared__ long long chosen[32];
    __shared__ float shares[32];
    choose_by(logits, logit_kind, E, K, among, weight_kind, chosen, shares);
    if (threadIdx.x < K) {
        ids[threadIdx.x] = chosen[threadIdx.x];
        from_float(weights, threadIdx.x, weight_kind, shares[threadIdx.x]);
    }
}

// One block. Looks up where each of the token's K experts lies (0: on the host) and sends the host what it must compute.
// addresses [K], scaled [K] go to the GPU branch; pending is the number of cold routes.
__device__ __forceinline__ void send(
    const long long* ids, const void* weights, int weight_kind, const uint4* x, const long long* table,
    long long* addresses, float* scaled, unsigned long long* uses, unsigned char* request, unsigned int* sequence,
    int* pending, int layer, int K, int x_chunks) {
    __shared__ long long found[32];
    __shared__ int cold;
    int t = threadIdx.x;
    if (t < K) {
        long long id = ids[t];
        found[t] = table[id];
        addresses[t] = found[t];
        scaled[t] = to_float(weights, t, weight_kind);
        atomicAdd(&uses[id], 1ull);
    }
    __syncthreads();
    if (t == 0) {
        int c = 0;
        for (int k = 0; k < K; k++) c += found[k] == 0;
        cold = c;
        *pending = c;
    }
    __syncthreads();
    if (cold == 0) return;
    if (t == 0) {
        volatile int* head = (volatile int*)request;
        volatile float* w = (volatile float*)(request + 80);
        head[1] = layer;
        head[2] = cold;
        int c = 0;
        for (int k = 0; k < K; k++)
            if (found[k] == 0) {
                head[4 + c] = (int)ids[k];
                w[c] = to_float(weights, k, weight_kind);
                c++;
            }
    }
    uint4* target = (uint4*)(request + 256);
    for (int i = t; i < x_chunks; i += blockDim.x) target[i] = x[i];
    __threadfence_system();
    __syncthreads();
    if (t == 0) {
        unsigned int next = *sequence + 1;
        *sequence = next;
        __threadfence_system();
        *(volatile unsigned int*)request = next;
    }
}

extern "C" __global__ void route(
    const long long* ids, const void* weights, int weight_kind, const uint4* x, const long long* table,
    long long* addresses, float* scaled, unsigned long long* uses, unsigned char* request, unsigned int* sequence,
    int* pending, int layer, int K, int x_chunks) {
    send(ids, weights, weight_kind, x, table, addresses, scaled, uses, request, sequence, pending, layer, K, x_chunks);
}

// One block: `choose` with `route`.
extern "C" __global__ void choose_and_route(
    const void* logits, int logit_kind, int E, int among, int weight_kind, const uint4* x, const long long* table,
    long long* addresses, float* scaled, unsigned long long* uses, unsigned char* request, unsigned int* sequence,
    int* pending, int layer, int K, int x_chunks) {
    __shared__ long long ids[32];
    __shared__ float weights[32];
    choose_by(logits, logit_kind, E, K, among, weight_kind, ids, weights);
    send(ids, weights, 0, x, table, addresses, scaled, uses, request, sequence, pending, layer, K, x_chunks);
}

// One block. out = gpu + the host's sum, when there were cold routes. A host that does not answer in time sets `failed`,
// after which nothing waits any more: the step ends with wrong numbers, which the host discards.
__device__ __forceinline__ void receive(
    const float* gpu, const unsigned char* response, const unsigned int* sequence, const int* pending,
    const void* residual, void* out, int out_kind, int D, int layer, int* failed, volatile int* failure,
    int timeout_ms) {
    __shared__ int add;
    if (threadIdx.x == 0) {
        add = 0;
        if (*pending > 0 && *failed == 0) {
            unsigned int wanted = *sequence;
            volatile unsigned int* seen = (volatile unsigned int*)response;
            unsigned long long start = now_ns();
            add = 1;
            while (*seen != wanted)
                if (now_ns() - start > 1000000ull * (unsigned long long)timeout_ms) {
                    add = 0;
                    *failed = 1;
                    *failure = layer + 1;
                    break;
                }
            __threadfence_system();
            if (add && ((volatile int*)response)[1] != 0) {
                add = 0;
                *failed = 1;
                *failure = -(layer + 1);
            }
        }
    }
    __syncthreads();
    const volatile float* host = (const volatile float*)(response + 256);
    for (int d = threadIdx.x; d < D; d += blockDim.x) {
        float sum = gpu[d] + (add ? host[d] : 0.0f);
        if (residual) sum = rounded(sum, out_kind) + to_float(residual, d, out_kind);
        from_float(out, d, out_kind, sum);
    }
}

extern "C" __global__ void join(
    const float* gpu, const unsigned char* response, const unsigned int* sequence, const int* pending, void* out,
    int out_kind, int D, int layer, int* failed, volatile int* failure, int timeout_ms) {
    receive(gpu, response, sequence, pending, nullptr, out, out_kind, D, layer, failed, failure, timeout_ms);
}

// One block: `join`, then the layer's input is added to what came out.
extern "C" __global__ void join_onto(
    const float* gpu, const unsigned char* response, const unsigned int* sequence, const int* pending,
    const void* residual, void* out, int out_kind, int D, int layer, int* failed, volatile int* failure,
    int timeout_ms) {
    receive(gpu, response, sequence, pending, residual, out, out_kind, D, layer, failed, failure, timeout_ms);
}

// One thread. Step i chose `choice`; the next input is the recorded token where there is one.
extern "C" __global__ void emit(
    const long long* choice, long long* token, const long long* forced, const int* forcing, long long* step,
    long long* position, int* length, volatile long long* ring, int ring_size, volatile long long* done) {
    long long i = *step;
    ring[i % ring_size] = *choice;
    __threadfence_system();
    *done = i + 1;
    *token = *forcing ? forced[i] : *choice;
    *step = i + 1;
    *position += 1;
    *length += 1;
}

// One block. Copies bytes to or from page-locked memory: what one device hands to the next.
extern "C" __global__ void carry(const unsigned char* source, unsigned char* target, int bytes) {
    int vectors = (((unsigned long long)source | (unsigned long long)target) & 15) == 0 ? bytes / 16 : 0;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) ((uint4*)target)[i] = ((const uint4*)source)[i];
    for (int i = 16 * vectors + threadIdx.x; i < bytes; i += blockDim.x) target[i] = source[i];
    __threadfence_system();
}

// One thread. A device that emits no token goes on to the next position by itself.
extern "C" __global__ void advance(long long* position, int* length) {
    *position += 1;
    *length += 1;
}

// One block. The GPU keeps the order of use itself: a cold expert takes the slot used longest ago, whose owner becomes
// cold. used [S], owner [S] (layer * E + expert, -1 none), tables [L * E]; copies [K] (source, 0 none).
extern "C" __global__ void admit(
    const long long* ids, const void* weights, int weight_kind, long long* tables, const long long* sources,
    const long long* slots, long long* used, int* owner, long long* clock, long long* addresses, float* scaled,
    unsigned long long* uses, long long* copies, unsigned long long* fetched, int layer, int K, int E, int S) {
    __shared__ long long best[1024];
    __shared__ int where[1024];
    int t = threadIdx.x;
    long long now = *clock + 1;
    if (t < K) {
        scaled[t] = to_float(weights, t, weight_kind);
        copies[t] = 0;
        atomicAdd(&uses[ids[t]], 1ull);
    }
    __syncthreads();
    for (int k = 0; k < K; k++) {  // hits first: none of them may be evicted by a miss of the same token
        long long a = tables[layer * E + ids[k]];
        if (a) for (int s = t; s < S; s += blockDim.x) if (slots[s] == a) used[s] = now;
    }
    __syncthreads();
    for (int k = 0; k < K; k++) {
        long long a = tables[layer * E + ids[k]];
        if (a == 0) {
            long long oldest = 0x7fffffffffffffffll;
            int at = -1;
            for (int s = t; s < S; s += blockDim.x) if (used[s] < oldest) { oldest = used[s]; at = s; }
            best[t] = oldest;
            where[t] = at;
            __syncthreads();
            for (int half = blockDim.x / 2; half > 0; half /= 2) {
                if (t < half && (best[t + half] < best[t] || (best[t + half] == best[t] && where[t + half] < where[t]))) {
                    best[t] = best[t + half];
                    where[t] = where[t + half];
                }
                __syncthreads();
            }
            if (t == 0) {
                int s = where[0];
                if (owner[s] >= 0) tables[owner[s]] = 0;
                owner[s] = layer * E + (int)ids[k];
                used[s] = now;
                tables[owner[s]] = slots[s];
                copies[k] = sources[owner[s]];
                *fetched += 1;
            }
            __syncthreads();
            a = tables[layer * E + ids[k]];
        }
        if (t == 0) addresses[k] = a;
        __syncthreads();
    }
    if (t == 0) *clock = now;
}

// grid (blocks, K). Reads missing experts from host memory into their slots, all the link's width at once.
extern "C" __global__ void fetch(const long long* copies, const long long* addresses, int chunks) {
    const uint4* source = (const uint4*)copies[blockIdx.y];
    if (source == nullptr) return;
    uint4* target = (uint4*)addresses[blockIdx.y];
    int step = gridDim.x * blockDim.x;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < chunks; i += 4 * step) {
        uint4 a = source[i], b = source[i + step], c = source[i + 2 * step], d = source[i + 3 * step];
        target[i] = a; target[i + step] = b; target[i + 2 * step] = c; target[i + 3 * step] = d;
    }
    for (; i < chunks; i += step) target[i] = source[i];
}

// One thread. Lets the stream go on once the host says so.
extern "C" __global__ void await_host(const volatile int* flag, int wanted, volatile int* failure, int timeout_ms) {
    unsigned long long start = now_ns();
    while (*flag != wanted)
        if (now_ns() - start > 1000000ull * (unsigned long long)timeout_ms) {
            *failure = 1;
            break;
        }
    __threadfence_system();
}
