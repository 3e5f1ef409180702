// The two halves of an expert for any number of tokens, over a policy P whose Math multiplies one row of weights with the
// rows of up to P::TOKENS tokens. A row's sum runs in the same order for any number of tokens.
#pragma once
#include <algorithm>

#include "activation.h"

namespace {

using ostinato::Job;

// One row: the weights and, for mxfp4, the scales of its groups.
struct Row {
  const uint8_t* values;
  const uint8_t* scales;
};

template <class P, int N>
inline void dot(Row w, const uint8_t* const* x, int64_t n, float* out) {
  constexpr int64_t STEP = P::STEP;
  typename P::Sum even[N], odd[N];
#pragma GCC unroll 8
  for (int t = 0; t < N; t++) even[t] = P::zero(), odd[t] = P::zero();
  int64_t i = 0;
  for (; i + 2 * STEP <= n; i += 2 * STEP) {
    P::prefetch(w, i);
    auto first = P::load(w, i);
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) even[t] = P::add(even[t], first, x[t], i);
    auto second = P::load(w, i + STEP);
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) odd[t] = P::add(odd[t], second, x[t], i + STEP);
  }
  if (i + STEP <= n) {
    auto first = P::load(w, i);
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) even[t] = P::add(even[t], first, x[t], i);
    i += STEP;
  }
  if (i < n) {
    auto rest = P::load_rest(w, i, n - i);
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) odd[t] = P::add_rest(odd[t], rest, x[t], i, n - i);
  }
#pragma GCC unroll 8
  for (int t = 0; t < N; t++) out[t * LANES] = P::total(even[t], odd[t]);
}

// out[t][r] for `rows` rows (at most 16) and `tokens` tokens (at most P::TOKENS). One copy of it a policy: inlined
// wherever it is used it tripled the time to compile.
template <class P>
__attribute__((noinline)) void dots(const Row* w, int rows, const uint8_t* const* x, int tokens, int64_t n, float (*out)[LANES]) {
  for (int r = 0; r < rows; r++) {
    float* column = &out[0][r];
    switch (tokens) {
      case 1: dot<P, 1>(w[r], x, n, column); break;
      case 2: dot<P, 2>(w[r], x, n, column); break;
      case 3: dot<P, 3>(w[r], x, n, column); break;
      case 4: dot<P, 4>(w[r], x, n, column); break;
      default:
        if constexpr (P::TOKENS == 8) {
          switch (tokens) {
            case 5: dot<P, 5>(w[r], x, n, column); break;
            case 6: dot<P, 6>(w[r], x, n, column); break;
            case 7: dot<P, 7>(w[r], x, n, column); break;
            default: dot<P, 8>(w[r], x, n, column);
          }
        }
    }
  }
}

template <class P>
struct Halves {
  static const uint8_t* x_row(const Shape& s, const Job& job, int64_t token) {
    const int64_t prepared = P::x_stride(s);
    return prepared ? job.ready + token * prepared : job.x + token * s.hidden * P::X_BYTES;
  }

  static void add_bias(const uint8_t* bias, int64_t row, int rows, float (*values)[LANES], int tokens) {
    const float* b = reinterpret_cast<const float*>(bias) + row;
    for (int t = 0; t < tokens; t++)
      for (int r = 0; r < rows; r++) values[t][r] += b[r];
  }

  static void gate_up(const Shape& s, const Job& job, int32_t expert, int64_t row, int64_t end) {
    const uint8_t* block = job.blocks[expert];
    const int32_t first = job.starts[expert], last = job.starts[expert + 1];
    typename P::Rows gates, ups;
    alignas(64) float g[P::TOKENS][LANES] = {}, u[P::TOKENS][LANES] = {}, h[LANES];
    for (; row < end; row += LANES) {
      const int rows = int(std::min<int64_t>(LANES, end - row));
      for (int32_t route = first; route < last; route += P::TOKENS) {
        const int tokens = std::min<int32_t>(P::TOKENS, last - route);
        const uint8_t* x[P::TOKENS];
        for (int t = 0; t < tokens; t++) x[t] = x_row(s, job, job.rows[route + t]);
        dots<typename P::Math>(gates.get(s, block + s.gate, block + s.gate_scales, row, rows, s.hidden), rows, x, tokens, s.hidden, g);
        dots<typename P::Math>(ups.get(s, block + s.up, block + s.up_scales, row, rows, s.hidden), rows, x, tokens, s.hidden, u);
        if (s.bias) {
          add_bias(block + s.gate_bias, row, rows, g, tokens);
          add_bias(block + s.up_bias, row, rows, u, tokens);
        }
        for (int t = 0; t < tokens; t++) {
          activate(s, g[t], u[t], h);
          P::store(s, job.inner + (route + t) * P::h_stride(s), row, rows, h);
        }
      }
    }
  }

  // `row` .. `end` (at most 16 rows) of one expert, added to out.
  static void down_block(const Shape& s, const Job& job, int32_t expert, int64_t row, int rows) {
    const uint8_t* block = job.blocks[expert];
    const int32_t first = job.starts[expert], last = job.starts[expert + 1];
    typename P::Rows downs;
    alignas(64) float y[P::TOKENS][LANES] = {};
    for (int32_t route = first; route < last; route += P::TOKENS) {
      const int tokens = std::min<int32_t>(P::TOKENS, last - route);
      const uint8_t* h[P::TOKENS];
      for (int t = 0; t < tokens; t++) h[t] = job.inner + (route + t) * P::h_stride(s);
      dots<typename P::Math>(downs.get(s, block + s.down, block + s.down_scales, row, rows, s.width), rows, h, tokens, s.width, y);
      if (s.bias) add_bias(block + s.down_bias, row, rows, y, tokens);
      for (int t = 0; t < tokens; t++) {
        float* out = job.out + job.rows[route + t] * s.hidden + row;
        const float weight = job.weights[route + t];
        for (int r = 0; r < rows; r++) out[r] += weight * y[t][r];
      }
    }
  }

  static void clear(const Shape& s, const Job& job, int64_t row, int64_t end) {
    for (int64_t t = 0; t < job.tokens; t++) std::fill(job.out + t * s.hidden + row, job.out + t * s.hidden + end, 0.0f);
  }

  static void down(const Shape& s, const Job& job, int64_t row, int64_t end) {
    clear(s, job, row, end);
    for (int32_t expert = 0; expert < job.experts; expert++)
      for (int64_t r = row; r < end; r += LANES)
        down_block(s, job, expert, r, int(std::min<int64_t>(LANES, end - r)));
  }

  static int no_tiles(const Shape&) { return 0; }

  static constexpr ostinato::Kernels table(const char* isa) {
    return {isa, P::x_stride, P::h_stride, no_tiles, P::prepare, nullptr, gate_up, down};
  }
};

inline int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// Rows of weights that are used where they lie.
template <int BYTES>
struct RowsInPlace {
  Row rows[LANES];
  const Row* get(const Shape&, const uint8_t* matrix, const uint8_t*, int64_t row, int count, int64_t columns) {
    for (int r = 0; r < count; r++) rows[r] = {matrix + (row + r) * columns * BYTES, nullptr};
    return rows;
  }
};

}  // namespace
