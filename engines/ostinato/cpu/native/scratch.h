// Memory that grows and is zero where it was never written, as the kernels rely on for the ends of rows.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace ostinato {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { release(); }

  // At a page's start; what was held is gone when it has to grow.
  uint8_t* at_least(size_t wanted) {
    if (wanted <= size_) return data_;
    release();
    wanted += wanted / 4;
    void* found = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(found), size_ = wanted;
    return data_;
  }

 private:
  void release() {
    if (data_) munmap(data_, size_);
    data_ = nullptr, size_ = 0;
  }
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ostinato
