// The functions that native.py calls.
#include <cstring>
#include <exception>
#include <memory>

#include "service.h"

using namespace ostinato;

extern "C" {

void* ostinato_open(int threads, const int* cores, int spins) {
  try {
    return new Pool(threads, cores, spins);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// The number of another shape, -1: the instruction set is not to be had. `isa` null: the widest.
int ostinato_add(void* pool, const Shape* shape, const char* isa) {
  for (const char* const* name = ISAS; *name; name++) {
    if (isa && std::strcmp(isa, *name)) continue;
    if (const Kernels* found = kernels(*name, shape->dtype)) return static_cast<Pool*>(pool)->add(*found, *shape);
  }
  return -1;
}

int ostinato_offers(const char* isa, int dtype) { return kernels(isa, dtype) != nullptr; }

const char* ostinato_isa(void* pool, int form) { return static_cast<Pool*>(pool)->table(form).isa; }

void ostinato_close(void* pool) { delete static_cast<Pool*>(pool); }

// 0, or 1: no memory for scratch.
int ostinato_compute(void* pool, int form, int experts, const int64_t* blocks, const int32_t* starts,
                     const int32_t* rows, const float* weights, const void* x, int64_t tokens, float* out) {
  Job job;
  job.form = form;
  job.experts = experts;
  job.blocks = reinterpret_cast<const uint8_t* const*>(blocks);
  job.starts = starts, job.rows = rows, job.weights = weights;
  job.x = static_cast<const uint8_t*>(x), job.tokens = tokens, job.out = out;
  try {
    static_cast<Pool*>(pool)->run(job);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// `forms`: one a layer. `boxes`: pairs of a request's and an answer's address.
void* ostinato_service(void* pool, const int64_t* tables, const int32_t* forms, int layers, int experts,
                       const int64_t* boxes, int count) {
  return new Service(*static_cast<Pool*>(pool), tables, forms, layers, experts, reinterpret_cast<const Box*>(boxes),
                     count);
}

void ostinato_start(void* service) { static_cast<Service*>(service)->start(); }

void ostinato_park(void* service) { static_cast<Service*>(service)->park(); }

void ostinato_stall(void* service, int on) { static_cast<Service*>(service)->stall(on != 0); }

void ostinato_counts(void* service, int64_t* out) { static_cast<Service*>(service)->counts(out); }

void ostinato_stats(void* service, int64_t* out) {
  const Stats& stats = static_cast<Service*>(service)->stats();
  out[0] = stats.jobs.load(), out[1] = stats.experts.load();
  out[2] = stats.busy_ns.load(), out[3] = stats.longest_ns.load();
}

void ostinato_stop(void* service) { delete static_cast<Service*>(service); }
}
