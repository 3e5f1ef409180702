// -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
#include "job.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include "vector512.h"

namespace ostinato {
const Kernels* avx512_kernels(int32_t dtype) { return float_kernels<Avx512>(dtype); }
}  // namespace ostinato
#else
namespace ostinato {
const Kernels* avx512_kernels(int32_t) { return nullptr; }
}  // namespace ostinato
#endif
