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

// One block. Looks up where each of the token's K experts lies (0: on the host) and sends the host what it must compute.
// addresses [K], scaled [K] go to the GPU branch; pending is the number of cold routes.
extern "C" __global__ void route(
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

// One block. out = gpu + the host's sum, when there were cold routes. A host that does not answer in time sets `failed`,
// after which nothing waits any more: the step ends with wrong numbers, which the host discards.
extern "C" __global__ void join(
    const float* gpu, const unsigned char* response, const unsigned int* sequence, const int* pending, void* out,
    int out_kind, int D, int layer, int* failed, volatile int* failure, int timeout_ms) {
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
    for (int d = threadIdx.x; d < D; d += blockDim.x) from_float(out, d, out_kind, gpu[d] + (add ? host[d] : 0.0f));
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
