// Answers the mailboxes that decode steps write: library.py's Mailbox says where each field lies.
#pragma once
#include <memory>

#include "pool.h"

namespace ostinato {

constexpr int MOST_ROUTES = 16;

struct Request {
  uint32_t sequence;
  int32_t layer, count, reserved;
  int32_t experts[MOST_ROUTES];
  float weights[MOST_ROUTES];
  uint8_t rest[112];
  uint8_t x[1];
};

struct Answer {
  uint32_t sequence;
  int32_t status;
  uint8_t rest[248];
  float y[1];
};

struct Box {
  Request* request;
  Answer* answer;
};

struct Stats {
  std::atomic<int64_t> jobs{0}, experts{0}, busy_ns{0}, longest_ns{0};
};

class Service : public Errand {
 public:
  Service(Pool& pool, const int64_t* tables, int layers, int experts, const Box* boxes, int count);
  ~Service() override { park(); }

  void start();
  void park() { pool_.spin_for(nullptr); }
  void stall(bool on) { stalled_.store(on, std::memory_order_relaxed); }
  void counts(int64_t* out);  // since the last call, [layers, experts]
  const Stats& stats() const { return stats_; }
  bool poll() override;

 private:
  bool answer(size_t box, uint32_t sequence);
  // Fills the job's blocks; false: not every expert is here.
  bool find(const Request& request, const uint8_t** blocks) const;

  Pool& pool_;
  const int layers_, experts_;
  const std::vector<int64_t> tables_;
  const std::vector<Box> boxes_;
  std::vector<uint32_t> last_;  // answered, by box
  std::unique_ptr<std::atomic<int64_t>[]> counts_;
  std::atomic<bool> stalled_{false};
  Stats stats_;
};

}  // namespace ostinato
