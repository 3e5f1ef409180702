// -mavx512bf16 and what isa_avx512.cpp has
#include "job.h"

#if defined(__AVX512BF16__)
#include "mxfp4_policy.h"

namespace ostinato {
const Kernels* avx512bf16_kernels(int32_t dtype) {
  static constexpr Kernels BF16 = Halves<Bf16Dot>::table("avx512bf16"), FP4 = Halves<Mxfp4Dot>::table("avx512bf16");
  return dtype == BFLOAT16 ? &BF16 : dtype == MXFP4 ? &FP4 : nullptr;
}
}  // namespace ostinato
#else
namespace ostinato {
const Kernels* avx512bf16_kernels(int32_t) { return nullptr; }
}  // namespace ostinato
#endif
