// mxfp4 decoded to bf16 in registers. A step is 128 values: 64 bytes seen as 32 lanes of 16 bits, each with four values.
// Shifting a lane by 0, 4, 8, 12 bits brings each of them to where a table look-up finds it, so lane i of look-up j is
// value 4 i + j, and x is kept in that order: no byte is ever moved apart.
#pragma once
#include "bf16_policies.h"

namespace {

constexpr int64_t BLOCK = 128;

// The look-up takes the lowest 5 bits of a lane, of which 4 count: the table holds the 16 values twice.
inline __m512i fp4_table() {
  const __m256i half = _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, int16_t(0x8000),
                                         int16_t(0xbf00), int16_t(0xbf80), int16_t(0xbfc0), int16_t(0xc000),
                                         int16_t(0xc040), int16_t(0xc080), int16_t(0xc0c0));
  return _mm512_broadcast_i64x4(half);
}

// The four scale bytes of a step, byte g in every 32-bit lane of 128-bit lane g: lanes 8 g .. 8 g + 7 of 16 bits are the
// values of group g.
inline __m512i spread_scales(uint32_t four) {
  const __m512i where = _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi32(int(0x80808000))),
                                                     _mm_set1_epi32(int(0x80808001)), 1)),
      _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi32(int(0x80808002))),
                              _mm_set1_epi32(int(0x80808003)), 1),
      1);
  return _mm512_shuffle_epi8(_mm512_set1_epi32(int(four)), where);
}

inline uint32_t four_scales(const uint8_t* at) {
  uint32_t four;
  std::memcpy(&four, at, 4);
  return four;
}

inline uint32_t scales_of_rest(const uint8_t* at, int64_t count) {
  uint32_t some = 0;
  for (int64_t g = 0; g < count / 32; g++) some |= uint32_t(at[g]) << (8 * g);
  return some;
}

inline int64_t in_blocks(int64_t i) { return i / BLOCK * BLOCK + (i & 3) * 32 + (i % BLOCK >> 2); }

struct RowsScaled {
  Row rows[LANES];
  const Row* get(const Shape&, const uint8_t* matrix, const uint8_t* scales, int64_t row, int count, int64_t columns) {
    for (int r = 0; r < count; r++) rows[r] = {matrix + (row + r) * columns / 2, scales + (row + r) * columns / 32};
    return rows;
  }
};

// A scale of 0 counts as 0 (for 2^-127) and 255 as infinity (for not a number).
struct Mxfp4Dot {
  using Math = Mxfp4Dot;
  using Sum = __m512;
  using Rows = RowsScaled;
  static constexpr int64_t STEP = BLOCK;
  static constexpr int TOKENS = 8;
  static constexpr int X_BYTES = 2;
  struct Weights {
    __m512bh values[4];
    __m512 scale;
  };

  static Sum zero() { return _mm512_setzero_ps(); }
  static void prefetch(Row w, int64_t i) {
    _mm_prefetch(reinterpret_cast<const char*>(w.values + i / 2 + AHEAD), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(w.values + i / 2 + AHEAD + 64), _MM_HINT_T0);
  }
  static Weights decode(__m512i packed, uint32_t scales) {
    const __m512i table = fp4_table();
    Weights w;
    w.values[0] = pairs(_mm512_permutexvar_epi16(packed, table));
    w.values[1] = pairs(_mm512_permutexvar_epi16(_mm512_srli_epi16(packed, 4), table));
    w.values[2] = pairs(_mm512_permutexvar_epi16(_mm512_srli_epi16(packed, 8), table));
    w.values[3] = pairs(_mm512_permutexvar_epi16(_mm512_srli_epi16(packed, 12), table));
    w.scale = _mm512_castsi512_ps(_mm512_slli_epi32(spread_scales(scales), 23));
    return w;
  }
  static Weights load(Row w, int64_t i) {
    return decode(_mm512_loadu_si512(w.values + i / 2), four_scales(w.scales + i / 32));
  }
  static __m512i bytes_of_rest(Row w, int64_t i, int64_t count) {
    return _mm512_maskz_loadu_epi8((__mmask64(1) << (count / 2)) - 1, w.values + i / 2);
  }
  static Weights load_rest(Row w, int64_t i, int64_t count) {
    return decode(bytes_of_rest(w, i, count), scales_of_rest(w.scales + i / 32, count));
  }
  static Sum add(Sum sum, const Weights& w, const uint8_t* x, int64_t i) {
    __m512 part = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
      part = _mm512_dpbf16_ps(part, w.values[j], pairs(_mm512_loadu_si512(x + 2 * i + 64 * j)));
    return _mm512_fmadd_ps(part, w.scale, sum);
  }
  static Sum add_rest(Sum sum, const Weights& w, const uint8_t* x, int64_t i, int64_t) { return add(sum, w, x, i); }
  static float total(Sum even, Sum odd) { return _mm512_reduce_add_ps(_mm512_add_ps(even, odd)); }

  static int64_t x_stride(const Shape& s) { return 2 * padded(s.hidden, BLOCK); }
  static int64_t h_stride(const Shape& s) { return 2 * padded(s.width, BLOCK); }
  static void prepare(const Shape& s, const Job& job, int64_t token) {
    const uint8_t* from = job.x + 2 * token * s.hidden;
    uint8_t* to = job.ready + token * x_stride(s);
    for (int64_t i = 0; i < s.hidden; i += BLOCK) {
      alignas(64) uint8_t block[2 * BLOCK] = {};
      std::memcpy(block, from + 2 * i, size_t(2 * std::min(BLOCK, s.hidden - i)));
      for (int q = 0; q < 4; q++) {
        __m512i values = _mm512_load_si512(block + 64 * q);
        for (int j = 0; j < 4; j++) {
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i + 64 * j + 16 * q), _mm512_cvtepi64_epi16(values));
          values = _mm512_srli_epi64(values, 16);
        }
      }
    }
  }
  static void store(const Shape&, uint8_t* inner, int64_t row, int rows, const float* h) {
    uint16_t* to = reinterpret_cast<uint16_t*>(inner);
    for (int r = 0; r < rows; r++) to[in_blocks(row + r)] = to_bf16(h[r]);
  }
};

}  // namespace
