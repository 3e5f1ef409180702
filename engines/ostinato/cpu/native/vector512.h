// 16 floats of AVX512F.
#pragma once
#include <immintrin.h>

#include "float_policies.h"

namespace {

struct Avx512 {
  static constexpr const char* NAME = "avx512";
  static constexpr int WIDTH = 16, TOKENS = 8;
  using F = __m512;
  static F zero() { return _mm512_setzero_ps(); }
  static F f32(const uint8_t* at) { return _mm512_loadu_ps(at); }
  static F bf16(const uint8_t* at) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F f16(const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F plus(F a, F b) { return _mm512_add_ps(a, b); }
  static float total(F a) { return _mm512_reduce_add_ps(a); }
};

}  // namespace
