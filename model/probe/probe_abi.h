/* What `plumb numerics probe --library FILE --symbol NAME --region REGION` calls: one function of the C ABI, plain C. Shapes are row-major
 * and dense; a BF16 value is its 16 bits. The function reads the inputs, writes every element of the outputs and nothing else, and returns
 * 0, or another number when it cannot. It is called twice and must give the same bits. docs/probe.md has an example.
 *
 * The function named by --symbol computes outputs (its gradient pointers are NULL), the one named by --backward gradients (its output
 * pointers are NULL). */
#pragma once
#include <stdint.h>

/* --region rope, qk_norm_rope: int NAME(const struct plumb_probe_rope*), called for q and for k.
 * x, y = first and second half of a head (normed and weighted first in qk_norm_rope): x' = x*c - y*s, y' = y*c + x*s. */
struct plumb_probe_rope {
  int64_t rows; /* tokens */
  int64_t heads;
  int64_t head_dim;
  float eps;
  double theta;             /* angle = position * theta^(-2j/head_dim) */
  const int64_t* positions; /* (rows); NULL where the inputs (--inputs) hold a table and no positions */
  const float* cos;         /* (rows, head_dim/2) the table in FP32, for who takes one instead of positions */
  const float* sin;
  const uint16_t* in;     /* (rows, heads, head_dim) */
  const uint16_t* weight; /* (head_dim); NULL in region rope */
  uint16_t* out;          /* (rows, heads, head_dim) */
  const uint16_t* d_out;  /* (rows, heads, head_dim) the gradient of out */
  uint16_t* d_in;         /* (rows, heads, head_dim) */
  uint16_t* d_weight;     /* (head_dim); NULL in region rope */
};

/* --region swiglu: int NAME(const struct plumb_probe_swiglu*). out = gate / (1 + exp(-gate)) * up. */
struct plumb_probe_swiglu {
  int64_t rows;
  int64_t cols;
  const uint16_t* gate;  /* (rows, cols) */
  const uint16_t* up;    /* (rows, cols) */
  uint16_t* out;         /* (rows, cols) */
  const uint16_t* d_out; /* (rows, cols) */
  uint16_t* d_gate;      /* (rows, cols) */
  uint16_t* d_up;        /* (rows, cols) */
};

/* --region resid_norm: int NAME(const struct plumb_probe_resid_norm*). s = h + r; stream_out = s;
 * out = s / sqrt(mean(s^2) + eps) * w. */
struct plumb_probe_resid_norm {
  int64_t rows;
  int64_t cols;
  float eps;
  int32_t stream_is_f32;    /* 0: r and stream_out are uint16_t (BF16); 1 (--stream f32): float */
  const uint16_t* h;        /* (rows, cols) the block's output */
  const void* r;            /* (rows, cols) the stream */
  const uint16_t* w;        /* (cols) */
  uint16_t* out;            /* (rows, cols) */
  void* stream_out;         /* (rows, cols) */
  const uint16_t* d_out;    /* (rows, cols) */
  const uint16_t* d_stream; /* (rows, cols) the gradient of stream_out; NULL where the inputs hold none */
  uint16_t* d_sum;          /* (rows, cols) the gradient of s, that is of h and of r */
  uint16_t* d_weight;       /* (cols) */
};
