// What one call computes, and what a set of kernels offers. D = hidden size, I = an expert's inner width.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ostinato {

enum Dtype : int32_t { FLOAT32, BFLOAT16, FLOAT16, MXFP4 };
enum Kind : int32_t { SILU, GELU_TANH, SILU_CLAMP, SWIGLU_OAI };

// Filled by native.py, field by field. Offsets are bytes from the start of an expert's block.
struct Shape {
  int64_t hidden, width;
  int32_t dtype, bias, kind, reserved;
  float alpha, limit;
  int64_t gate, up, down, gate_scales, up_scales, down_scales, gate_bias, up_bias, down_bias;
};

struct Job {
  int32_t experts = 0;
  const uint8_t* const* blocks = nullptr;  // one an expert
  const int32_t* starts = nullptr;         // routes of expert e: starts[e] .. starts[e + 1]
  const int32_t* rows = nullptr;           // of x and of out, one a route
  const float* weights = nullptr;          // one a route
  const uint8_t* x = nullptr;              // [tokens, D] in the activations' type
  int64_t tokens = 0;
  float* out = nullptr;                    // [tokens, D]
  // Scratch of the pool: x as the kernels read it, [tokens, Kernels::x_stride], and the inner activations,
  // [routes, Kernels::h_stride]. What lies past a row's end is zero and is never written.
  uint8_t* ready = nullptr;
  uint8_t* inner = nullptr;
  // Scratch of tiles: x and the inner activations of an expert's routes, packed by 16 from packs[e] on.
  uint8_t* x_packed = nullptr;
  uint8_t* inner_packed = nullptr;
  const int64_t* packs = nullptr;  // one an expert, -1: it uses no tiles
};

// One instruction set's code for one type of weights. Each output element is computed by one call, in an order that
// depends on nothing but the job, so how rows are split over threads never shows in a result.
struct Kernels {
  const char* isa;
  int64_t (*x_stride)(const Shape&);  // bytes of a prepared row of x, 0: read as it is
  int64_t (*h_stride)(const Shape&);  // bytes of a row of inner activations
  int (*tile_tokens)(const Shape&);   // an expert with this many tokens or more uses tiles, 0: none does. With tiles,
                                      // rows are cut at multiples of 16
  void (*prepare)(const Shape&, const Job&, int64_t token);
  void (*pack)(const Shape&, const Job&, int32_t expert, int64_t pack);  // 16 tokens of x, where tiles are used
  void (*gate_up)(const Shape&, const Job&, int32_t expert, int64_t row, int64_t end);
  void (*down)(const Shape&, const Job&, int64_t row, int64_t end);
};

// Null: this build or this processor has not got the instruction set, or it has nothing of its own for the type.
const Kernels* kernels(const char* isa, int32_t dtype);
// The widest first, ended by null.
extern const char* const ISAS[];

}  // namespace ostinato
