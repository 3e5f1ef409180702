#include "service.h"

#include <time.h>

#include <algorithm>

namespace ostinato {

namespace {

static_assert(offsetof(Request, experts) == 16 && offsetof(Request, weights) == 80 && offsetof(Request, x) == 256);
static_assert(offsetof(Answer, y) == 256);

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Thread 0 alone writes the statistics, so no locked instruction is needed.
void add(std::atomic<int64_t>& to, int64_t value) {
  to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

// One token's routes: each expert has one, of row 0.
constexpr int32_t STARTS[MOST_ROUTES + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr int32_t ROWS[MOST_ROUTES] = {};

}  // namespace

Service::Service(Pool& pool, const int64_t* tables, int layers, int experts, const Box* boxes, int count)
    : pool_(pool),
      layers_(layers),
      experts_(experts),
      tables_(tables, tables + size_t(layers) * size_t(experts)),
      boxes_(boxes, boxes + count),
      last_(size_t(count)),
      counts_(new std::atomic<int64_t>[tables_.size()]()) {}

void Service::start() {
  park();
  for (size_t i = 0; i < boxes_.size(); i++) last_[i] = __atomic_load_n(&boxes_[i].answer->sequence, __ATOMIC_RELAXED);
  pool_.spin_for(this);
}

void Service::counts(int64_t* out) {
  for (size_t i = 0; i < tables_.size(); i++)  // most are 0, and a look leaves the line with the pool
    out[i] = counts_[i].load(std::memory_order_relaxed) ? counts_[i].exchange(0, std::memory_order_relaxed) : 0;
}

bool Service::poll() {
  if (stalled_.load(std::memory_order_relaxed)) return false;
  bool found = false;
  for (size_t i = 0; i < boxes_.size(); i++) {
    const uint32_t sequence = __atomic_load_n(&boxes_[i].request->sequence, __ATOMIC_ACQUIRE);
    if (sequence != last_[i]) found |= answer(i, sequence);
  }
  return found;
}

bool Service::find(const Request& request, const uint8_t** blocks) const {
  if (request.layer < 0 || request.layer >= layers_ || request.count < 1 || request.count > MOST_ROUTES) return false;
  for (int i = 0; i < request.count; i++) {
    const int32_t expert = request.experts[i];
    if (expert < 0 || expert >= experts_) return false;
    const int64_t block = tables_[size_t(request.layer) * size_t(experts_) + size_t(expert)];
    if (!block) return false;
    blocks[i] = reinterpret_cast<const uint8_t*>(block);
  }
  return true;
}

bool Service::answer(size_t box, uint32_t sequence) {
  const int64_t began = now_ns();
  const Request& request = *boxes_[box].request;
  Answer& answer = *boxes_[box].answer;
  const uint8_t* blocks[MOST_ROUTES];
  const bool known = find(request, blocks);
  if (known) {
    Job job;
    job.experts = request.count, job.blocks = blocks;
    job.starts = STARTS, job.rows = ROWS, job.weights = request.weights;
    job.x = request.x, job.tokens = 1, job.out = answer.y;
    if (!pool_.try_here(job)) return false;
    for (int i = 0; i < request.count; i++)
      counts_[size_t(request.layer) * size_t(experts_) + size_t(request.experts[i])].fetch_add(
          1, std::memory_order_relaxed);
    add(stats_.experts, request.count);
  }
  answer.status = known ? 0 : 1;
  // Before the answer, so that who has seen it finds its job counted.
  const int64_t taken = now_ns() - began;
  add(stats_.jobs, 1);
  add(stats_.busy_ns, taken);
  if (taken > stats_.longest_ns.load(std::memory_order_relaxed))
    stats_.longest_ns.store(taken, std::memory_order_relaxed);
  last_[box] = sequence;
  __atomic_store_n(&answer.sequence, sequence, __ATOMIC_RELEASE);
  return true;
}

}  // namespace ostinato
