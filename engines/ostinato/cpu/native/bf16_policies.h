// Policies over AVX512-BF16's dot product of pairs: bf16 weights, and mxfp4 decoded to bf16 in registers.
#pragma once
#include "vector512.h"

namespace {

// Bytes of a row's memory that are asked for before they are needed. On 15 cores of an H200's host one expert of 9.4 MB
// came at 93, 100, 113 and 109 GB/s with 512, 1024, 2048 and 4096.
constexpr int64_t AHEAD = 2048;

inline __m512bh pairs(__m512i v) { return reinterpret_cast<__m512bh>(v); }

// Rows of bf16 activations, read where they lie: the last values of a row are read under a mask.
struct Bf16Dot {
  using Math = Bf16Dot;
  using Sum = __m512;
  using Rows = RowsInPlace<2>;
  static constexpr int64_t STEP = 32;
  static constexpr int TOKENS = 8;
  static constexpr int X_BYTES = 2;

  static Sum zero() { return _mm512_setzero_ps(); }
  static void prefetch(Row w, int64_t i) {
    _mm_prefetch(reinterpret_cast<const char*>(w.values + 2 * i + AHEAD), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(w.values + 2 * i + AHEAD + 64), _MM_HINT_T0);
  }
  static __mmask32 mask(int64_t count) { return __mmask32((uint64_t(1) << count) - 1); }
  static __m512i load(Row w, int64_t i) { return _mm512_loadu_si512(w.values + 2 * i); }
  static __m512i load_rest(Row w, int64_t i, int64_t count) {
    return _mm512_maskz_loadu_epi16(mask(count), w.values + 2 * i);
  }
  static Sum add(Sum sum, __m512i w, const uint8_t* x, int64_t i) {
    return _mm512_dpbf16_ps(sum, pairs(w), pairs(_mm512_loadu_si512(x + 2 * i)));
  }
  static Sum add_rest(Sum sum, __m512i w, const uint8_t* x, int64_t i, int64_t count) {
    return _mm512_dpbf16_ps(sum, pairs(w), pairs(_mm512_maskz_loadu_epi16(mask(count), x + 2 * i)));
  }
  static float total(Sum even, Sum odd) { return _mm512_reduce_add_ps(_mm512_add_ps(even, odd)); }

  static int64_t x_stride(const Shape&) { return 0; }
  static int64_t h_stride(const Shape& s) { return padded(2 * s.width, 64); }
  static void prepare(const Shape&, const Job&, int64_t) {}
  static void store(const Shape&, uint8_t* inner, int64_t row, int rows, const float* h) {
    __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(h));
    _mm256_mask_storeu_epi16(inner + 2 * row, __mmask16((1u << rows) - 1), reinterpret_cast<__m256i>(half));
  }
};

}  // namespace
