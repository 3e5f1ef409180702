// Policies that multiply in float32: any weights, for every instruction set, over a vector type V of it.
#pragma once
#include <cstdlib>

#include "rows.h"

namespace {

constexpr float FP4[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};

// 2^(e - 127); OCP microscaling's E8M0, where 255 is not a number.
inline float scale_of(uint8_t exponent) {
  uint32_t bits = exponent == 255 ? 0x7fc00000u : exponent ? uint32_t(exponent) << 23 : 0x00400000u;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Rows of mxfp4, decoded before they are used. No std::vector: the linker keeps one copy of its functions for all
// instruction sets, which may be one that this processor can't run.
struct RowsDecoded {
  Row rows[LANES];
  float* values = nullptr;
  const uint8_t* held = nullptr;
  ~RowsDecoded() { std::free(values); }
  const Row* get(const Shape&, const uint8_t* matrix, const uint8_t* scales, int64_t row, int count, int64_t columns) {
    const uint8_t* wanted = matrix + row * columns / 2;
    if (held == wanted) return rows;  // the next tokens of the same rows
    held = wanted;
    if (!values) values = static_cast<float*>(std::malloc(size_t(4 * LANES * columns)));
    for (int r = 0; r < count; r++) {
      float* to = values + r * columns;
      const uint8_t* packed = matrix + (row + r) * columns / 2;
      const uint8_t* exponents = scales + (row + r) * columns / 32;
      for (int64_t i = 0; i < columns; i += 2) {
        const float scale = scale_of(exponents[i / 32]);
        to[i] = FP4[packed[i / 2] & 15] * scale;
        to[i + 1] = FP4[packed[i / 2] >> 4] * scale;
      }
      rows[r] = {reinterpret_cast<const uint8_t*>(to), nullptr};
    }
    return rows;
  }
};

// W: a weight as it is read.
template <class V, ostinato::Dtype W>
struct FloatMath {
  using Sum = typename V::F;
  static constexpr int64_t STEP = V::WIDTH;
  static constexpr int TOKENS = V::TOKENS;
  static constexpr int W_BYTES = W == ostinato::FLOAT32 ? 4 : 2;

  static Sum zero() { return V::zero(); }
  static void prefetch(Row w, int64_t i) { __builtin_prefetch(w.values + i * W_BYTES + 2048); }
  static Sum load(Row w, int64_t i) {
    const uint8_t* at = w.values + i * W_BYTES;
    if constexpr (W == ostinato::FLOAT32) return V::f32(at);
    if constexpr (W == ostinato::BFLOAT16) return V::bf16(at);
    return V::f16(at);
  }
  static Sum load_rest(Row w, int64_t i, int64_t count) {
    alignas(64) uint8_t rest[64] = {};
    std::memcpy(rest, w.values + i * W_BYTES, size_t(count * W_BYTES));
    return load({rest, nullptr}, 0);
  }
  static Sum add(Sum sum, Sum w, const uint8_t* x, int64_t i) { return V::fma(w, V::f32(x + 4 * i), sum); }
  static Sum add_rest(Sum sum, Sum w, const uint8_t* x, int64_t i, int64_t) { return add(sum, w, x, i); }
  static float total(Sum even, Sum odd) { return V::total(V::plus(even, odd)); }
};

// X: the type of x before it is prepared.
template <class M, ostinato::Dtype X, class R, bool ROUND>
struct FloatPolicy {
  using Math = M;
  using Rows = R;
  static constexpr int TOKENS = M::TOKENS;
  static constexpr int X_BYTES = X == ostinato::FLOAT32 ? 4 : 2;

  static int64_t h_stride(const Shape& s) { return 4 * padded(s.width, LANES); }
  static int64_t x_stride(const Shape& s) {
    return X == ostinato::FLOAT32 && s.hidden % LANES == 0 ? 0 : 4 * padded(s.hidden, LANES);
  }
  static void prepare(const Shape& s, const Job& job, int64_t token) {
    float* to = reinterpret_cast<float*>(job.ready + token * x_stride(s));
    const uint8_t* from = job.x + token * s.hidden * X_BYTES;
    if constexpr (X == ostinato::FLOAT32) {
      std::memcpy(to, from, size_t(4 * s.hidden));
    } else {
      const uint16_t* half = reinterpret_cast<const uint16_t*>(from);
      for (int64_t i = 0; i < s.hidden; i++) to[i] = X == ostinato::BFLOAT16 ? from_bf16(half[i]) : from_f16(half[i]);
    }
  }
  static void store(const Shape&, uint8_t* inner, int64_t row, int rows, const float* h) {
    float* to = reinterpret_cast<float*>(inner) + row;
    for (int r = 0; r < rows; r++) to[r] = ROUND ? from_bf16(to_bf16(h[r])) : h[r];
  }
};

template <class V>
using Float32 = FloatPolicy<FloatMath<V, ostinato::FLOAT32>, ostinato::FLOAT32, RowsInPlace<4>, false>;
template <class V>
using Bfloat16 = FloatPolicy<FloatMath<V, ostinato::BFLOAT16>, ostinato::BFLOAT16, RowsInPlace<2>, true>;
// Inner activations of float16 models stay float32: rounding them could overflow, and nothing here needs it.
template <class V>
using Float16 = FloatPolicy<FloatMath<V, ostinato::FLOAT16>, ostinato::FLOAT16, RowsInPlace<2>, false>;
template <class V>
using Mxfp4 = FloatPolicy<FloatMath<V, ostinato::FLOAT32>, ostinato::BFLOAT16, RowsDecoded, true>;

template <class V>
const ostinato::Kernels* float_kernels(int32_t dtype) {
  static constexpr ostinato::Kernels TABLES[] = {
      Halves<Float32<V>>::table(V::NAME), Halves<Bfloat16<V>>::table(V::NAME), Halves<Float16<V>>::table(V::NAME),
      Halves<Mxfp4<V>>::table(V::NAME)};
  return &TABLES[dtype];
}

}  // namespace
