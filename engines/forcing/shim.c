/* Makes an unmodified llama.cpp-family server emit recorded tokens (LD_PRELOAD; see shim.py).
 *
 * The recorded token is looked up by its position in the sequence, never by counting calls: that holds under chunked
 * prefill, prompt-cache reuse, aborted requests and speculative batches. The server still computes the logits and runs
 * its whole sampler chain; only the winner is decided beforehand.
 *
 * What the server then did is written down per position, so that the harness can check it: the id its sampler chose
 * (llama_sampler_accept) and the id it fed back to the model (the next batch), with the time of the choice.
 *
 * Two batch interfaces are known: llama_decode(llama_batch), and llama_batch_ext_* with llama_process (2026).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x3143524fu /* "ORC1"; plan.py writes the same */

/* The shared file: this header, then want, fed, chosen (int32 each) and chosen_ns (int64), `capacity` entries each. */
typedef struct {
    uint32_t magic, capacity;
    _Atomic uint32_t armed; /* 1 while a request may be forced; written last, so it publishes the rest */
    uint32_t first, end;    /* force positions first <= p < end; first is the prompt's length */
    _Atomic uint32_t pid;   /* the process that loaded this library */
    _Atomic uint32_t batches, fetches, forced;
    uint32_t turn;          /* counts requests; read by the Python hooks alone */
    uint32_t unused[6];
} header_t;
_Static_assert(sizeof(header_t) == 64, "plan.py counts on 64 bytes");

static header_t *plan;
static const int32_t *want;
static _Atomic int32_t *fed, *chosen;
static _Atomic int64_t *chosen_ns;

/* The batch that the target context decoded last: a row of logits belongs to the position at its index. Decoding and
 * sampling of one slot follow each other (-np 1), so these need no lock. */
static void *target;
static int32_t *row_pos;
static int32_t rows, row_room;
static int32_t current = -1; /* the position whose token was decided last */
static bool pending;         /* the sampler has not yet said what it chose there */

__attribute__((constructor)) static void open_plan(void) {
    const char *path = getenv("OSTINATO_FORCE_PLAN");
    struct stat status;
    if (!path) return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) || status.st_size < (off_t)sizeof(header_t)) {
        fprintf(stderr, "forcing: cannot use %s\n", path);
        if (file >= 0) close(file);
        return;
    }
    char *map = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    header_t *header = (header_t *)map;
    if (map == MAP_FAILED || header->magic != MAGIC) {
        fprintf(stderr, "forcing: %s is no plan of this version\n", path);
        return;
    }
    size_t n = header->capacity;
    want = (const int32_t *)(map + sizeof(header_t));
    fed = (_Atomic int32_t *)(want + n);
    chosen = fed + n;
    chosen_ns = (_Atomic int64_t *)(chosen + n);
    plan = header;
    atomic_store(&plan->pid, (uint32_t)getpid());
}

/* The next definition of a function: libllama's own. */
#define REAL(name)                                                     \
    static _Atomic(void *) real_##name;                                \
    __typeof__(name) *real = (__typeof__(name) *)atomic_load(&real_##name); \
    if (!real) {                                                       \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);            \
        atomic_store(&real_##name, (void *)real);                      \
    }

static void *grown(void *memory, size_t bytes) {
    void *larger = realloc(memory, bytes);
    if (!larger) abort();
    return larger;
}

static bool armed(void) { return plan && atomic_load_explicit(&plan->armed, memory_order_acquire); }

/* Remember what the target context is about to decode. A draft model's context is another one: the target's warm-up
 * comes first. */
static void decoding(void *ctx, int32_t n, const int32_t *token, const int32_t *pos) {
    if (!plan) return;
    if (!target) target = ctx;
    if (ctx != target) return;
    pending = false;
    rows = 0;
    if (!pos) return; /* the server leaves positions to libllama: nothing can be forced */
    if (n > row_room) row_pos = grown(row_pos, (row_room = n) * sizeof *row_pos);
    memcpy(row_pos, pos, n * sizeof *pos);
    rows = n;
    atomic_fetch_add_explicit(&plan->batches, 1, memory_order_relaxed);
    if (!token || !armed()) return;
    for (int32_t i = 0; i < n; i++)
        if (pos[i] >= 0 && (uint32_t)pos[i] < plan->end) atomic_store_explicit(&fed[pos[i]], token[i], memory_order_release);
}

/* The position that row i of the logits decides, or -1 when it is none of the request's. */
static int32_t deciding(void *ctx, int32_t i) {
    if (!armed() || ctx != target) return -1;
    if (i < 0) i += rows;
    if (i < 0 || i >= rows) return -1;
    uint32_t p = (uint32_t)row_pos[i] + 1;
    return p >= plan->first && p < plan->end ? (int32_t)p : -1;
}

static int32_t force(int32_t p) {
    struct timespec now;
    if (!atomic_load_explicit(&chosen_ns[p], memory_order_relaxed)) { /* a grammar may ask twice */
        clock_gettime(CLOCK_MONOTONIC, &now);
        atomic_store_explicit(&chosen_ns[p], now.tv_sec * 1000000000ll + now.tv_nsec, memory_order_release);
        atomic_fetch_add_explicit(&plan->forced, 1, memory_order_relaxed);
    }
    current = p;
    pending = true;
    return want[p];
}

float *llama_get_logits_ith(void *ctx, int32_t i) {
    REAL(llama_get_logits_ith)
    float *row = real(ctx, i); /* waits for the device: the stamp below is of finished logits */
    if (plan) atomic_fetch_add_explicit(&plan->fetches, 1, memory_order_relaxed);
    int32_t p = row ? deciding(ctx, i) : -1;
    if (p >= 0) row[force(p)] = 1e9f; /* far above any logit, and no penalty takes it away */
    return row;
}

/* Newer servers ask first whether a sampler on the device has already chosen. */
int32_t llama_get_sampled_token_ith(void *ctx, int32_t i) {
    REAL(llama_get_sampled_token_ith)
    int32_t id = real(ctx, i);
    int32_t p = id >= 0 ? deciding(ctx, i) : -1;
    return p >= 0 ? force(p) : id;
}

/* A chain that the device could run only in part leaves candidates for the rest of it: ids, logits and perhaps
 * probabilities, in one order. The candidates may be few and lack the recorded token: then it takes the first one's
 * place. They may also be the whole vocabulary, in an array that libllama keeps: then nothing of it is written over. */
int32_t *llama_get_sampled_candidates_ith(void *ctx, int32_t i);
float *llama_get_sampled_logits_ith(void *ctx, int32_t i);
float *llama_get_sampled_probs_ith(void *ctx, int32_t i);
uint32_t llama_get_sampled_logits_count_ith(void *ctx, int32_t i);

static uint32_t candidate_count(void *ctx, int32_t i) {
    REAL(llama_get_sampled_logits_count_ith)
    return real(ctx, i);
}

static int32_t *candidates(void *ctx, int32_t i) {
    REAL(llama_get_sampled_candidates_ith)
    return real(ctx, i);
}

static float *candidate_logits(void *ctx, int32_t i) {
    REAL(llama_get_sampled_logits_ith)
    return real(ctx, i);
}

static float *candidate_probs(void *ctx, int32_t i) {
    REAL(llama_get_sampled_probs_ith)
    return real(ctx, i);
}

static void force_candidates(void *ctx, int32_t i) {
    float *logits = candidate_logits(ctx, i), *probs = candidate_probs(ctx, i);
    int32_t *ids = candidates(ctx, i), p = logits && ids ? deciding(ctx, i) : -1;
    uint32_t n = p >= 0 ? candidate_count(ctx, i) : 0, k = 0;
    if (!n) return;
    int32_t id = force(p);
    if ((uint32_t)id < n && ids[id] == id) k = id;
    else while (k < n && ids[k] != id) k++;
    if (k == n) ids[k = 0] = id;
    logits[k] = 1e9f;
    if (probs) memset(probs, 0, n * sizeof *probs), probs[k] = 1;
}

int32_t *llama_get_sampled_candidates_ith(void *ctx, int32_t i) {
    force_candidates(ctx, i);
    return candidates(ctx, i);
}

float *llama_get_sampled_logits_ith(void *ctx, int32_t i) {
    force_candidates(ctx, i);
    return candidate_logits(ctx, i);
}

float *llama_get_sampled_probs_ith(void *ctx, int32_t i) {
    force_candidates(ctx, i);
    return candidate_probs(ctx, i);
}

/* The server's word on what it took. Prompt tokens are accepted too, but no choice is pending then. */
void llama_sampler_accept(void *sampler, int32_t token) {
    REAL(llama_sampler_accept)
    if (pending && armed()) {
        atomic_store_explicit(&chosen[current], token, memory_order_release);
        pending = false;
    }
    real(sampler, token);
}

/* A recording goes on after tokens that llama.cpp takes for an end (by their text: "<|call|>", say): only its last
 * token may end the answer. */
static bool ends(bool real, int32_t token) {
    if (!real || !armed() || current < (int32_t)plan->first || current >= (int32_t)plan->end) return real;
    return current + 1 == (int32_t)plan->end && token == want[current];
}

bool llama_vocab_is_eog(const void *vocab, int32_t token) {
    REAL(llama_vocab_is_eog)
    return ends(real(vocab, token), token);
}

bool llama_token_is_eog(const void *model, int32_t token) { /* its older name */
    REAL(llama_token_is_eog)
    return ends(real(model, token), token);
}

/* The prefix of llama_batch that every fork shares; ik_llama.cpp has three integers more, passed on in `tail`. */
typedef struct {
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits;
    int32_t tail[4];
} batch_t;

int32_t llama_decode(void *ctx, batch_t batch) {
    REAL(llama_decode)
    decoding(ctx, batch.n_tokens, batch.token, batch.pos);
    return real(ctx, batch);
}

/* llama_batch_ext is opaque: follow what is put into each one. */
typedef struct {
    void *batch;
    int32_t *token, *pos;
    int32_t n, room;
} followed_t;

static followed_t followed[32]; /* a server keeps one, and makes short-lived ones for warm-up and drafts */

static followed_t *follow(void *batch) {
    followed_t *vacant = NULL;
    for (size_t k = 0; k < sizeof followed / sizeof *followed; k++) {
        if (followed[k].batch == batch) return &followed[k];
        if (!followed[k].batch && !vacant) vacant = &followed[k];
    }
    if (vacant) *vacant = (followed_t){batch, vacant->token, vacant->pos, 0, vacant->room};
    return vacant;
}

static void put(void *batch, int32_t i, const int32_t *token, const int32_t *pos) {
    followed_t *f = plan && i >= 0 ? follow(batch) : NULL;
    if (!f) return;
    if (i >= f->room) {
        f->room = 2 * (i + 1);
        f->token = grown(f->token, f->room * sizeof *f->token);
        f->pos = grown(f->pos, f->room * sizeof *f->pos);
    }
    while (f->n <= i) f->token[f->n] = f->pos[f->n] = -1, f->n++;
    if (token) f->token[i] = *token;
    if (pos) f->pos[i] = *pos;
}

int32_t llama_batch_ext_add_token(void *batch, int32_t seq_id, int32_t id) {
    REAL(llama_batch_ext_add_token)
    int32_t i = real(batch, seq_id, id);
    put(batch, i, &id, NULL);
    return i;
}

bool llama_batch_ext_set_pos(void *batch, int32_t i, const int32_t *pos) {
    REAL(llama_batch_ext_set_pos)
    put(batch, i, NULL, pos);
    return real(batch, i, pos);
}

void llama_batch_ext_clear(void *batch) {
    REAL(llama_batch_ext_clear)
    followed_t *f = plan ? follow(batch) : NULL;
    if (f) f->n = 0;
    real(batch);
}

void llama_batch_ext_free(void *batch) {
    REAL(llama_batch_ext_free)
    followed_t *f = plan && batch ? follow(batch) : NULL;
    if (f) f->batch = NULL;
    real(batch);
}

int32_t llama_process(void *ctx, int type, void *batch) {
    REAL(llama_process)
    followed_t *f = plan ? follow(batch) : NULL;
    if (f) decoding(ctx, f->n, f->token, f->pos);
    return real(ctx, type, batch);
}
