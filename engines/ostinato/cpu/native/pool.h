// Threads that are pinned once and stay. They spin while a service runs and for a moment after a job, else they sleep.
//
// A job is a row of units in up to four phases (prepare x, pack it, first half, second half). Threads take the next unit by
// a ticket, and a phase begins when every unit before it is complete. So no thread is ever waited for that has not
// taken a unit: one that wakes late, or that the system has set aside, costs nothing but its help.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "job.h"
#include "scratch.h"

namespace ostinato {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What thread 0 does while it would only wait.
class Errand {
 public:
  virtual ~Errand() = default;
  virtual bool poll() = 0;  // true: there was something to do
};

class Pool {
 public:
  // `spins`: how often a thread looks before it lets another run; few where threads share cores.
  Pool(const Kernels& kernels, const Shape& shape, int threads, const int* cores, int spins);
  ~Pool();
  Pool(const Pool&) = delete;

  void run(Job job);      // from any thread of the caller's, which sleeps until the job is done
  bool try_here(Job job);  // from thread 0, which takes part; false: another job is running
  void spin_for(Errand* errand);  // null: the errand is over, and thread 0 has left it when this returns
  const Kernels& table() const { return kernels_; }
  const Shape& shape() const { return shape_; }

 private:
  struct Plan {
    Job job;
    uint32_t prepared, packed, halfway, total;  // units up to the end of each phase
    uint32_t unit_tokens, unit_rows, unit_columns;
    bool announced;  // a caller sleeps until the job is done
  };
  void loop(int index, int core);
  bool await(int index, uint32_t seen);
  void plan(Job& job, bool announced);
  uint32_t plan_packs(Job& job);
  uint32_t publish();
  void work(uint32_t generation);
  void unit(uint32_t number);
  void await_completed(uint32_t count);
  void wake();

  const Kernels& kernels_;
  const Shape shape_;
  const int threads_count_, spins_;
  std::vector<std::thread> threads_;
  std::mutex running_;
  Plan plan_{};
  std::vector<int64_t> packs_;
  std::vector<int32_t> pack_experts_;  // of each pack
  Scratch ready_, inner_, x_packed_, inner_packed_;

  alignas(64) std::atomic<uint32_t> generation_{0};  // one more: there is a job. Threads sleep on it
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<Errand*> errand_{nullptr};
  alignas(64) std::atomic<bool> on_errand_{false};
  alignas(64) std::atomic<uint64_t> ticket_{0};  // generation << 32 | units not yet taken
  alignas(64) std::atomic<uint32_t> completed_{0};
  alignas(64) std::atomic<uint32_t> finished_{0};  // generation of the last job of a caller's that is done
  std::atomic<uint32_t> callers_{0};
};

}  // namespace ostinato
