// -mavx2 -mfma -mf16c
#include "job.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "float_policies.h"

namespace {

struct Avx2 {
  static constexpr const char* NAME = "avx2";
  static constexpr int WIDTH = 8, TOKENS = 4;
  using F = __m256;
  static F zero() { return _mm256_setzero_ps(); }
  static F f32(const uint8_t* at) { return _mm256_loadu_ps(reinterpret_cast<const float*>(at)); }
  static F bf16(const uint8_t* at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static F f16(const uint8_t* at) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F plus(F a, F b) { return _mm256_add_ps(a, b); }
  static float total(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
};

}  // namespace

namespace ostinato {
const Kernels* avx2_kernels(int32_t dtype) { return float_kernels<Avx2>(dtype); }
}  // namespace ostinato
#else
namespace ostinato {
const Kernels* avx2_kernels(int32_t) { return nullptr; }
}  // namespace ostinato
#endif
