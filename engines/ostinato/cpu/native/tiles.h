// AMX: 16 rows of weights times 16 tokens at a time. The weights are the left operand, so rows are read as they lie;
// the tokens are packed in pairs of values as the right operand wants them: [pair][token][2].
#pragma once
#include "mxfp4_policy.h"

namespace {

constexpr int64_t TILE = 1024;  // bytes
constexpr int BLOCK_TILES = 8;    // of 16 rows: 256 columns, 8 KB of the first-level cache
constexpr int MOST_PACKS = 8;     // of 16 tokens, that stay in the second-level cache over a unit's rows

// 16 rows of weights, and 16 rows' tiles: tile k at first + k * step, its rows `stride` bytes apart.
struct Strip {
  const uint8_t* values;
  const uint8_t* scales;
};
struct Tiles {
  const uint8_t* first;
  int64_t stride, step;
};

inline void configure() {
  struct {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  _tile_loadconfig(&config);
}

using Product = float[LANES][LANES];  // [row][token]

// Twice 16 rows (`b` may be null) times each pack of tokens: out[2 p] = a·p, out[2 p + 1] = b·p. One pair of packs is
// summed in the tiles. With more, blocks of the rows are laid out in the first-level cache, where every pair of packs
// finds them, and the sums wait in `out`.
template <class S>
inline void multiply(const Strip& a, const Strip* b, int64_t columns, int64_t tiles, const uint8_t* packed, int packs,
                     Product* out) {
  alignas(64) uint8_t of_a[BLOCK_TILES * TILE], of_b[BLOCK_TILES * TILE];
  const int64_t pack_bytes = tiles * TILE;
  const bool wait = packs > 2;
  for (int64_t first = 0; first < tiles; first += BLOCK_TILES) {
    const int64_t count = std::min<int64_t>(BLOCK_TILES, tiles - first);
    const Tiles left = S::tiles(a, columns, first, count, wait, of_a);
    const Tiles right = b ? S::tiles(*b, columns, first, count, wait, of_b) : left;
    for (int p = 0; p < packs; p += 2) {
      const uint8_t* const tokens = packed + p * pack_bytes + first * TILE;
      Product* const sums = out + 2 * p;
      const bool two = p + 1 < packs;
      if (first == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      } else if (wait) {
        _tile_loadd(0, sums[0], 64);
        _tile_loadd(1, sums[1], 64);
        _tile_loadd(2, sums[2], 64);
        _tile_loadd(3, sums[3], 64);
      }
      for (int64_t k = 0; k < count; k++) {
        _tile_loadd(6, tokens + k * TILE, 64);
        _tile_loadd(4, left.first + k * left.step, left.stride);
        _tile_dpbf16ps(0, 4, 6);
        if (b) {
          _tile_loadd(5, right.first + k * right.step, right.stride);
          _tile_dpbf16ps(1, 5, 6);
        }
        if (two) {
          _tile_loadd(7, tokens + pack_bytes + k * TILE, 64);
          _tile_dpbf16ps(2, 4, 7);
          if (b) _tile_dpbf16ps(3, 5, 7);
        }
      }
      if (wait || first + count == tiles) {
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
      }
    }
  }
}

inline void transpose(__m512i* r) {  // 16 x 16 values of 32 bits
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; j++) {
      t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0x88);
      t[i + 4 + j] = _mm512_shuffle_i32x4(r[i + j], r[i + 4 + j], 0xdd);
    }
  for (int j = 0; j < 8; j++) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
  }
}

// How an expert's weights become tiles, and in which order its values stand in them. A pair of values is what a pack
// keeps together: APART in the row, and at `pair` of its first, in bytes, in a pack.
struct Bf16Tiles {
  using Few = Bf16Dot;
  // Up to here products of rows cost no more than the reading of them (on AHEAD's machine 4 and 8 tokens: 102 and 90
  // GB/s, with tiles 98 and 104).
  static constexpr int FROM_TOKENS = 5;
  static constexpr int64_t ORDER = 32;
  static constexpr int APART = 1;
  static int64_t pair(int64_t k) { return k / 2 * 64; }
  static Strip strip(const uint8_t* matrix, const uint8_t*, int64_t row, int64_t columns) {
    return {matrix + 2 * row * columns, nullptr};
  }
  static Tiles tiles(const Strip& strip, int64_t columns, int64_t first, int64_t count, bool copy, uint8_t* to) {
    const uint8_t* const from = strip.values + 64 * first;
    for (int r = 0; r < LANES; r++)
      for (int64_t k = 0; k < count; k++) {
        const uint8_t* const at = from + 2 * r * columns + 64 * k;
        _mm_prefetch(reinterpret_cast<const char*>(at + 64 * BLOCK_TILES), _MM_HINT_T1);
        if (copy) _mm512_store_si512(to + k * TILE + 64 * r, _mm512_loadu_si512(at));
      }
    if (copy) return {to, 64, TILE};
    return {from, 2 * columns, 64};
  }
};

struct Mxfp4Tiles {
  using Few = Mxfp4Dot;
  static constexpr int FROM_TOKENS = 2;  // decoding to tiles is cheaper than the products of two tokens' rows
  static constexpr int64_t ORDER = BLOCK;
  static constexpr int APART = 4;
  static int64_t pair(int64_t k) { return k / BLOCK * 4 * TILE + (k & 3) * TILE + (k % BLOCK >> 3) * 64; }
  static Strip strip(const uint8_t* matrix, const uint8_t* scales, int64_t row, int64_t columns) {
    return {matrix + row * columns / 2, scales + row * columns / 32};
  }
  // Decoded with the scale in the values: bf16 has room for it. Scales below 2^-125 and above 2^125 are held to these,
  // so that every value stays a normal number.
  static Tiles tiles(const Strip& strip, int64_t columns, int64_t first, int64_t count, bool, uint8_t* to) {
    const __m512i table = fp4_table(), least = _mm512_set1_epi16(2), most = _mm512_set1_epi16(252);
    for (int r = 0; r < LANES; r++) {
      const Row w = {strip.values + r * columns / 2, strip.scales + r * columns / 32};
      for (int64_t k = 0; k < count; k += 4) {
        const int64_t i = 32 * (first + k), rest = columns - i;
        _mm_prefetch(reinterpret_cast<const char*>(w.values + i / 2 + 256), _MM_HINT_T0);
        const uint8_t* const scales = w.scales + i / 32;
        const bool whole = rest >= BLOCK;
        __m512i packed = whole ? _mm512_loadu_si512(w.values + i / 2) : Mxfp4Dot::bytes_of_rest(w, i, rest);
        __m512i scale = spread_scales(whole ? four_scales(scales) : scales_of_rest(scales, rest));
        scale = _mm512_or_si512(scale, _mm512_slli_epi32(scale, 16));
        scale = _mm512_min_epu16(_mm512_max_epu16(scale, least), most);
        scale = _mm512_slli_epi16(_mm512_sub_epi16(scale, _mm512_set1_epi16(127)), 7);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          const __mmask32 not_zero = _mm512_test_epi16_mask(packed, _mm512_set1_epi16(7));
          const __m512i value = _mm512_permutexvar_epi16(packed, table);
          _mm512_store_si512(to + (k + j) * TILE + 64 * r, _mm512_mask_add_epi16(value, not_zero, value, scale));
          packed = _mm512_srli_epi16(packed, 4);
        }
      }
    }
    return {to, 64, TILE};
  }
};

}  // namespace
