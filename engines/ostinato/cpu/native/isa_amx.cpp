// -mamx-tile -mamx-bf16 and what isa_avx512bf16.cpp has
#include "job.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#include "tiles.h"

namespace {

template <class S>
struct WithTiles {
  using Few = Halves<typename S::Few>;

  static int tile_tokens(const Shape& s) { return s.hidden % 32 == 0 && s.width % 32 == 0 ? S::FROM_TOKENS : 0; }
  static int64_t x_tiles(const Shape& s) { return padded(s.hidden, S::ORDER) / 32; }
  static int64_t h_tiles(const Shape& s) { return padded(s.width, S::ORDER) / 32; }

  static void pack(const Shape& s, const Job& job, int32_t expert, int64_t pack) {
    const int32_t first = job.starts[expert] + int32_t(pack) * LANES, last = job.starts[expert + 1];
    uint8_t* to = job.x_packed + (job.packs[expert] + pack) * x_tiles(s) * TILE;
    for (int64_t k = 0; k < x_tiles(s); k++) {
      __m512i block[LANES];
      for (int t = 0; t < LANES; t++) {
        block[t] = first + t < last ? _mm512_loadu_si512(Few::x_row(s, job, job.rows[first + t]) + 64 * k)
                                    : _mm512_setzero_si512();
      }
      transpose(block);
      for (int t = 0; t < LANES; t++) _mm512_store_si512(to + k * TILE + 64 * t, block[t]);
    }
  }

  static void gate_up(const Shape& s, const Job& job, int32_t expert, int64_t row, int64_t end) {
    if (job.packs[expert] < 0) return Few::gate_up(s, job, expert, row, end);
    const uint8_t* block = job.blocks[expert];
    const int packs = packs_of(job, expert);
    const int64_t x_bytes = x_tiles(s) * TILE, h_bytes = h_tiles(s) * TILE;
    const uint8_t* x = job.x_packed + job.packs[expert] * x_bytes;
    uint8_t* inner = job.inner_packed + job.packs[expert] * h_bytes;
    configure();
    alignas(64) Product out[2 * MOST_PACKS];
    for (; row < end; row += LANES) {
      const Strip gate = S::strip(block + s.gate, block + s.gate_scales, row, s.hidden);
      const Strip up = S::strip(block + s.up, block + s.up_scales, row, s.hidden);
      for (int first = 0; first < packs; first += MOST_PACKS) {
        const int count = std::min(MOST_PACKS, packs - first);
        multiply<S>(gate, &up, s.hidden, x_tiles(s), x + first * x_bytes, count, out);
        for (int p = 0; p < count; p++)
          finish(s, block, row, out[2 * p], out[2 * p + 1], inner + (first + p) * h_bytes);
      }
    }
    _tile_release();
  }

  static int packs_of(const Job& job, int32_t expert) {
    return (job.starts[expert + 1] - job.starts[expert] + LANES - 1) / LANES;
  }

  // Activates 16 rows of 16 tokens and leaves them in pairs of rows, as the second half's right operand.
  static void finish(const Shape& s, const uint8_t* block, int64_t row, Product& g, Product& u, uint8_t* inner) {
    alignas(64) Product h;
    for (int r = 0; r < LANES; r++) {
      if (s.bias) {
        const float gate = reinterpret_cast<const float*>(block + s.gate_bias)[row + r];
        const float up = reinterpret_cast<const float*>(block + s.up_bias)[row + r];
        for (int t = 0; t < LANES; t++) g[r][t] += gate, u[r][t] += up;
      }
      activate(s, g[r], u[r], h[r]);
    }
    for (int r = 0; r < LANES; r++) {
      if (r % (2 * S::APART) >= S::APART) continue;
      const __m512i first = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_load_ps(h[r]))));
      const __m512i second = _mm512_cvtepu16_epi32(
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_load_ps(h[r + S::APART]))));
      _mm512_store_si512(inner + S::pair(row + r), _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
  }

  static void down(const Shape& s, const Job& job, int64_t row, int64_t end) {
    Few::clear(s, job, row, end);
    for (int32_t expert = 0; expert < job.experts; expert++) {
      if (job.packs[expert] >= 0) {
        down_tiles(s, job, expert, row, end);
      } else {
        for (int64_t r = row; r < end; r += LANES)
          Few::down_block(s, job, expert, r, int(std::min<int64_t>(LANES, end - r)));
      }
    }
  }

  static void down_tiles(const Shape& s, const Job& job, int32_t expert, int64_t row, int64_t end) {
    const uint8_t* block = job.blocks[expert];
    const int packs = packs_of(job, expert);
    const int64_t h_bytes = h_tiles(s) * TILE;
    const uint8_t* inner = job.inner_packed + job.packs[expert] * h_bytes;
    configure();
    alignas(64) Product out[2 * MOST_PACKS];
    for (; row < end; row += 2 * LANES) {
      const bool both = row + LANES < end;
      const Strip a = S::strip(block + s.down, block + s.down_scales, row, s.width);
      const Strip b = S::strip(block + s.down, block + s.down_scales, row + LANES, s.width);
      for (int first = 0; first < packs; first += MOST_PACKS) {
        const int count = std::min(MOST_PACKS, packs - first);
        multiply<S>(a, both ? &b : nullptr, s.width, h_tiles(s), inner + first * h_bytes, count, out);
        for (int p = 0; p < count; p++)
          for (int half = 0; half <= int(both); half++)
            scatter(s, job, expert, row + half * LANES, first + p, out[2 * p + half]);
      }
    }
    _tile_release();
  }

  static void scatter(const Shape& s, const Job& job, int32_t expert, int64_t row, int64_t pack, Product& product) {
    __m512i columns[LANES];
    for (int r = 0; r < LANES; r++) columns[r] = _mm512_load_si512(product[r]);
    transpose(columns);
    const int32_t first = job.starts[expert] + int32_t(pack) * LANES;
    const int tokens = std::min<int32_t>(LANES, job.starts[expert + 1] - first);
    const __m512 bias =
        s.bias ? _mm512_loadu_ps(job.blocks[expert] + s.down_bias + 4 * row) : _mm512_setzero_ps();
    for (int t = 0; t < tokens; t++) {
      float* out = job.out + job.rows[first + t] * s.hidden + row;
      const __m512 y = _mm512_add_ps(_mm512_castsi512_ps(columns[t]), bias);
      _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_set1_ps(job.weights[first + t]), y, _mm512_loadu_ps(out)));
    }
  }

  static constexpr ostinato::Kernels table() {
    using P = typename S::Few;
    return {"amx", P::x_stride, P::h_stride, tile_tokens, P::prepare, pack, gate_up, down};
  }
};

}  // namespace

namespace ostinato {
const Kernels* amx_kernels(int32_t dtype) {
  static constexpr Kernels BF16 = WithTiles<Bf16Tiles>::table(), FP4 = WithTiles<Mxfp4Tiles>::table();
  return dtype == BFLOAT16 ? &BF16 : dtype == MXFP4 ? &FP4 : nullptr;
}
}  // namespace ostinato
#else
namespace ostinato {
const Kernels* amx_kernels(int32_t) { return nullptr; }
}  // namespace ostinato
#endif
