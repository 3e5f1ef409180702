// The function between an expert's two products, on 16 values at once: plain loops that each instruction set's
// compiler flags turn into its own vectors, so a value never depends on where in the 16 it stands.
#pragma once
#include <cstring>

#include "job.h"

namespace {

using ostinato::Shape;

constexpr int LANES = 16;

// exp within 2 units in the last place over the range of floats (Cephes' expf polynomial).
inline float exp_(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  float n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // rounds to the nearest integer
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  int32_t bits = (int32_t(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return p * scale;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_(-x)); }
inline float below(float x, float limit) { return x > limit ? limit : x; }
inline float within(float x, float limit) { return below(x < -limit ? -limit : x, limit); }

inline void activate(const Shape& s, const float* g, const float* u, float* h) {
  const float limit = s.limit, alpha = s.alpha;
  switch (s.kind) {
    case ostinato::GELU_TANH:  // 0.5 (1 + tanh(z)) = sigmoid(2 z)
      for (int i = 0; i < LANES; i++) {
        float z = 1.5957691216057308f * (g[i] + 0.044715f * g[i] * g[i] * g[i]);
        h[i] = g[i] * sigmoid(z) * u[i];
      }
      break;
    case ostinato::SILU_CLAMP:
      for (int i = 0; i < LANES; i++) {
        float gate = below(g[i], limit);
        h[i] = gate * sigmoid(gate) * within(u[i], limit);
      }
      break;
    case ostinato::SWIGLU_OAI:
      for (int i = 0; i < LANES; i++) {
        float gate = below(g[i], limit);
        h[i] = gate * sigmoid(alpha * gate) * (within(u[i], limit) + 1.0f);
      }
      break;
    default:
      for (int i = 0; i < LANES; i++) h[i] = g[i] * sigmoid(g[i]) * u[i];
  }
}

inline uint16_t to_bf16(float value) {  // nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bf16(uint16_t half) {
  uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float from_f16(uint16_t half) {
  uint32_t bits = uint32_t(half & 0x7fff) << 13, sign = uint32_t(half & 0x8000) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  value *= 0x1p112f;
  std::memcpy(&bits, &value, 4);
  if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace
