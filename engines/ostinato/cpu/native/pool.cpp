#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace ostinato {

namespace {

// Between two jobs of a prefill a thread keeps looking for about this many pauses (some 50 us) before it sleeps.
constexpr int IDLE_SPINS = 1000;
// Parts that a phase of few rows is cut into, for each thread: one would leave no room for a thread that is late.
constexpr uint32_t PARTS = 3;
constexpr uint32_t MOST_ROWS = 32;

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t cut(uint64_t count, uint64_t by) { return uint32_t((count + by - 1) / by); }

}  // namespace

Pool::Pool(const Kernels& kernels, const Shape& shape, int threads, const int* cores, int spins)
    : kernels_(kernels), shape_(shape), threads_count_(threads), spins_(spins) {
  for (int i = 0; i < threads; i++) threads_.emplace_back(&Pool::loop, this, i, cores[i]);
}

Pool::~Pool() {
  spin_for(nullptr);
  stop_.store(true);
  generation_.fetch_add(1);
  futex_wake_all(generation_);
  for (auto& thread : threads_) thread.join();
}

void Pool::loop(int index, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  pthread_setname_np(pthread_self(), "ostinato-cpu");
  uint32_t seen = 0;
  while (await(index, seen)) {
    seen = generation_.load(std::memory_order_acquire);
    work(seen);
  }
}

// Until there is a job newer than `seen`; false: the pool closes.
bool Pool::await(int index, uint32_t seen) {
  for (int spins = 0;; spins++) {
    if (stop_.load(std::memory_order_relaxed)) return false;
    if (generation_.load(std::memory_order_acquire) != seen) return true;
    if (errand_.load(std::memory_order_relaxed)) {
      if (index == 0) {
        // With the order of these and of spin_for's, no errand is run after spin_for(nullptr) has returned.
        on_errand_.store(true);
        if (Errand* errand = errand_.load()) {
          if (errand->poll()) spins = 0;
        }
        on_errand_.store(false);
      } else {
        relax();
      }
      if (spins >= spins_) {
        sched_yield();
        spins = 0;
      }
    } else if (spins < std::min(IDLE_SPINS, spins_)) {
      relax();
    } else {
      sleepers_.fetch_add(1);
      // A job or an errand that came between the look above and here: its wake may have found no sleeper.
      if (!errand_.load() && !stop_.load()) futex_wait(generation_, seen);
      sleepers_.fetch_sub(1);
      spins = 0;
    }
  }
}

void Pool::wake() {
  if (sleepers_.load()) futex_wake_all(generation_);
}

void Pool::spin_for(Errand* errand) {
  errand_.store(errand);
  if (errand) {
    std::lock_guard<std::mutex> lock(running_);
    plan_.total = 0;
    publish();
  } else {
    while (on_errand_.load()) sched_yield();
  }
}

void Pool::plan(Job& job, bool announced) {
  Plan& p = plan_;
  p.announced = announced;
  const int64_t x_stride = kernels_.x_stride(shape_), routes = job.starts[job.experts];
  if (x_stride) job.ready = ready_.at_least(size_t(job.tokens * x_stride));
  job.inner = inner_.at_least(size_t(routes * kernels_.h_stride(shape_)));
  uint32_t preparing = 0;
  if (x_stride && job.tokens == 1) {
    kernels_.prepare(shape_, job, 0);  // shorter than telling another thread
  } else if (x_stride) {
    p.unit_tokens = uint32_t(std::clamp<int64_t>(job.tokens / (4 * threads_count_), 1, 16));
    preparing = cut(uint64_t(job.tokens), p.unit_tokens);
  }
  const uint32_t packs = plan_packs(job), step = packs ? 16 : 1;
  const uint64_t parts = PARTS * uint64_t(threads_count_), rows = uint64_t(job.experts) * uint64_t(shape_.width);
  p.unit_rows = std::min(MOST_ROWS, step * cut(rows, step * parts));
  p.unit_columns = std::min(MOST_ROWS, step * cut(uint64_t(shape_.hidden), step * parts));
  p.prepared = preparing;
  p.packed = p.prepared + packs;
  p.halfway = p.packed + cut(rows, p.unit_rows);
  p.total = p.halfway + cut(uint64_t(shape_.hidden), p.unit_columns);
  p.job = job;
}

// Packs of 16 tokens of the experts that use tiles; how many there are.
uint32_t Pool::plan_packs(Job& job) {
  const int least = kernels_.tile_tokens(shape_);
  packs_.assign(size_t(job.experts), -1);
  pack_experts_.clear();
  for (int32_t expert = 0; least && expert < job.experts; expert++) {
    const int32_t tokens = job.starts[expert + 1] - job.starts[expert];
    if (tokens < least) continue;
    packs_[size_t(expert)] = int64_t(pack_experts_.size());
    pack_experts_.insert(pack_experts_.end(), cut(uint64_t(tokens), 16), expert);
  }
  job.packs = packs_.data();
  // 16 tokens of 2 bytes, with room for rows that are padded to 128 values.
  const size_t packs = pack_experts_.size(), hidden = size_t(shape_.hidden) + 128, width = size_t(shape_.width) + 128;
  if (packs) {
    job.x_packed = x_packed_.at_least(packs * 32 * hidden);
    job.inner_packed = inner_packed_.at_least(packs * 32 * width);
  }
  return uint32_t(packs);
}

uint32_t Pool::publish() {
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  completed_.store(0, std::memory_order_relaxed);
  ticket_.store(uint64_t(generation) << 32 | plan_.total, std::memory_order_release);
  generation_.store(generation);
  wake();
  return generation;
}

void Pool::run(Job job) {
  std::lock_guard<std::mutex> lock(running_);
  plan(job, true);
  const uint32_t generation = publish();
  for (int spins = 0; finished_.load(std::memory_order_acquire) != generation; spins++) {
    if (spins < std::min(IDLE_SPINS, spins_)) {
      relax();
      continue;
    }
    callers_.fetch_add(1);
    const uint32_t last = finished_.load();
    if (last != generation) futex_wait(finished_, last);
    callers_.fetch_sub(1);
  }
}

bool Pool::try_here(Job job) {
  std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
  if (!lock) return false;
  plan(job, false);
  const uint32_t total = plan_.total;
  work(publish());
  await_completed(total);
  return true;
}

void Pool::await_completed(uint32_t count) {
  for (int spins = 0; completed_.load(std::memory_order_acquire) < count; spins++) {
    if (spins < std::min(spins_, 2000)) {
      relax();
    } else {
      sched_yield();
    }
  }
}

void Pool::work(uint32_t generation) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (uint32_t(ticket >> 32) == generation && uint32_t(ticket)) {
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
    // Until this unit is complete the job can't end, so the plan is this generation's.
    const uint32_t total = plan_.total;
    const bool announced = plan_.announced;
    unit(total - uint32_t(ticket));
    if (completed_.fetch_add(1, std::memory_order_acq_rel) + 1 == total && announced) {
      // Of a job that nobody sleeps for this could come after a later job's, and hide it.
      finished_.store(generation);
      if (callers_.load()) futex_wake_all(finished_);
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void Pool::unit(uint32_t number) {
  const Plan& p = plan_;
  if (number < p.prepared) {
    const int64_t first = int64_t(number) * p.unit_tokens;
    const int64_t end = std::min(first + p.unit_tokens, p.job.tokens);
    for (int64_t token = first; token < end; token++) kernels_.prepare(shape_, p.job, token);
  } else if (number < p.packed) {
    await_completed(p.prepared);
    const int64_t pack = number - p.prepared;
    const int32_t expert = pack_experts_[size_t(pack)];
    kernels_.pack(shape_, p.job, expert, pack - packs_[size_t(expert)]);
  } else if (number < p.halfway) {
    await_completed(p.packed);
    int64_t row = int64_t(number - p.packed) * p.unit_rows;
    const int64_t end = std::min(row + p.unit_rows, p.job.experts * shape_.width);
    while (row < end) {  // rows of all experts are counted on, so a unit may end in the next one
      const int64_t expert = row / shape_.width, base = expert * shape_.width;
      const int64_t until = std::min(end, base + shape_.width);
      kernels_.gate_up(shape_, p.job, int32_t(expert), row - base, until - base);
      row = until;
    }
  } else {
    await_completed(p.halfway);
    const int64_t column = int64_t(number - p.halfway) * p.unit_columns;
    kernels_.down(shape_, p.job, column, std::min(column + p.unit_columns, shape_.hidden));
  }
}

}  // namespace ostinato
