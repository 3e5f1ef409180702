// Without any extension: what the compiler makes of plain loops.
#include "float_policies.h"

namespace {

struct Plain {
  static constexpr const char* NAME = "plain";
  static constexpr int WIDTH = 8, TOKENS = 4;
  struct F {
    float v[WIDTH];
  };
  static F zero() { return {}; }
  static F f32(const uint8_t* at) {
    F r;
    std::memcpy(r.v, at, sizeof r.v);
    return r;
  }
  static F bf16(const uint8_t* at) {
    uint16_t half[WIDTH];
    std::memcpy(half, at, sizeof half);
    F r;
    for (int i = 0; i < WIDTH; i++) r.v[i] = from_bf16(half[i]);
    return r;
  }
  static F f16(const uint8_t* at) {
    uint16_t half[WIDTH];
    std::memcpy(half, at, sizeof half);
    F r;
    for (int i = 0; i < WIDTH; i++) r.v[i] = from_f16(half[i]);
    return r;
  }
  static F fma(F a, F b, F c) {
    for (int i = 0; i < WIDTH; i++) c.v[i] += a.v[i] * b.v[i];
    return c;
  }
  static F plus(F a, F b) {
    for (int i = 0; i < WIDTH; i++) a.v[i] += b.v[i];
    return a;
  }
  static float total(F a) {
    return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
  }
};

}  // namespace

namespace ostinato {
const Kernels* plain_kernels(int32_t dtype) { return float_kernels<Plain>(dtype); }
}  // namespace ostinato
