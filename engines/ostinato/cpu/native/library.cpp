// The functions that native.py calls.
#include <cstring>
#include <exception>
#include <memory>

#include "service.h"

using namespace ostinato;

extern "C" {

// Null: the instruction set is not to be had. `isa` null: the widest.
void* ostinato_open(const Shape* shape, const char* isa, int threads, const int* cores, int spins) {
  for (const char* const* name = ISAS; *name; name++) {
    if (isa && std::strcmp(isa, *name)) continue;
    if (const Kernels* found = kernels(*name, shape->dtype)) {
      try {
        return new Pool(*found, *shape, threads, cores, spins);
      } catch (const std::exception&) {
        return nullptr;
      }
    }
  }
  return nullptr;
}

int ostinato_offers(const char* isa, int dtype) { return kernels(isa, dtype) != nullptr; }

const char* ostinato_isa(void* pool) { return static_cast<Pool*>(pool)->table().isa; }

void ostinato_close(void* pool) { delete static_cast<Pool*>(pool); }

// 0, or 1: no memory for scratch.
int ostinato_compute(void* pool, int experts, const int64_t* blocks, const int32_t* starts, const int32_t* rows,
                     const float* weights, const void* x, int64_t tokens, float* out) {
  Job job;
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

// `boxes`: pairs of a request's and an answer's address.
void* ostinato_service(void* pool, const int64_t* tables, int layers, int experts, const int64_t* boxes, int count) {
  return new Service(*static_cast<Pool*>(pool), tables, layers, experts, reinterpret_cast<const Box*>(boxes), count);
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
