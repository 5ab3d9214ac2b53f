/* Somebody's kernels, as the prober sees them: a shared library in plain C that knows nothing but the header. Some are right, each with its
 * own roundings; some misbehave. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/probe/probe_abi.h"

static float wide(uint16_t bits) {
  const uint32_t u = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static uint16_t narrow(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

static float rounded(float x) { return wide(narrow(x)); }

static float silu(float g) { return (float)(g / (1 + exp(-(double)g))); }

/* Two operators, the first of which stores what it computes. */
int swiglu_eager(const struct plumb_probe_swiglu* a) {
  for (int64_t i = 0; i < a->rows * a->cols; ++i) a->out[i] = narrow(rounded(silu(wide(a->gate[i]))) * wide(a->up[i]));
  return 0;
}

/* One kernel. */
int swiglu_fused(const struct plumb_probe_swiglu* a) {
  for (int64_t i = 0; i < a->rows * a->cols; ++i) a->out[i] = narrow(silu(wide(a->gate[i])) * wide(a->up[i]));
  return 0;
}

int swiglu_fused_backward(const struct plumb_probe_swiglu* a) {
  for (int64_t i = 0; i < a->rows * a->cols; ++i) {
    const float d = wide(a->d_out[i]), g = wide(a->gate[i]), u = wide(a->up[i]);
    const double sigma = 1 / (1 + exp(-(double)g));
    a->d_gate[i] = narrow((float)(d * u * sigma * (1 + g * (1 - sigma))));
    a->d_up[i] = narrow(d * silu(g));
  }
  return 0;
}

/* BF16 table and products, as older serving kernels have it; QK norm where there is a weight, its normalised value rounded. */
int rope_legacy(const struct plumb_probe_rope* a) {
  const int64_t half = a->head_dim / 2;
  for (int64_t head = 0; head < a->rows * a->heads; ++head) {
    const uint16_t* in = a->in + head * a->head_dim;
    uint16_t* out = a->out + head * a->head_dim;
    const float* cosine = a->cos + head / a->heads * half;
    const float* sine = a->sin + head / a->heads * half;
    double squares = 0;
    for (int64_t i = 0; i < a->head_dim; ++i) squares += (double)wide(in[i]) * wide(in[i]);
    const float rstd = (float)(1 / sqrt(squares / (double)a->head_dim + a->eps));
    for (int64_t j = 0; j < half; ++j) {
      float x = wide(in[j]), y = wide(in[half + j]);
      if (a->weight) {
        x = rounded(rounded(x * rstd) * wide(a->weight[j]));
        y = rounded(rounded(y * rstd) * wide(a->weight[half + j]));
      }
      const float c = rounded(cosine[j]), s = rounded(sine[j]);
      out[j] = narrow(rounded(x * c) - rounded(y * s));
      out[half + j] = narrow(rounded(y * c) + rounded(x * s));
    }
  }
  return 0;
}

/* The norm reads the sum before it is stored; the stream is BF16 or FP32, as it is asked for. */
int norm_of_unrounded_sum(const struct plumb_probe_resid_norm* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    double squares = 0;
    for (int pass = 0; pass < 2; ++pass) {
      const float rstd = (float)(1 / sqrt(squares / (double)a->cols + a->eps));
      for (int64_t i = row * a->cols; i < (row + 1) * a->cols; ++i) {
        const float r = a->stream_is_f32 ? ((const float*)a->r)[i] : wide(((const uint16_t*)a->r)[i]);
        const float s = r + wide(a->h[i]);
        if (pass == 0) {
          squares += (double)s * s;
          if (a->stream_is_f32) ((float*)a->stream_out)[i] = s;
          if (!a->stream_is_f32) ((uint16_t*)a->stream_out)[i] = narrow(s);
        } else {
          a->out[i] = narrow(rounded(s * rstd) * wide(a->w[i - row * a->cols]));
        }
      }
    }
  }
  return 0;
}

/* None of these is right. */

int swiglu_that_fails(const struct plumb_probe_swiglu* a) { return a->rows > 0 ? 7 : 0; }

int swiglu_that_crashes(const struct plumb_probe_swiglu* a) {
  (void)a;
  abort();
}

int swiglu_that_exits(const struct plumb_probe_swiglu* a) {
  (void)a;
  exit(3);
}

int swiglu_that_overruns(const struct plumb_probe_swiglu* a) {
  swiglu_eager(a);
  a->out[a->rows * a->cols] = 0;
  return 0;
}

int swiglu_that_underruns(const struct plumb_probe_swiglu* a) {
  swiglu_eager(a);
  a->out[-1] = 0;
  return 0;
}

int swiglu_that_stops_early(const struct plumb_probe_swiglu* a) {
  struct plumb_probe_swiglu less = *a;
  less.cols = 1;
  less.rows = a->rows * a->cols - 1;
  return swiglu_eager(&less);
}

int swiglu_of_two_minds(const struct plumb_probe_swiglu* a) {
  static int calls = 0;
  return calls++ == 0 ? swiglu_eager(a) : swiglu_fused(a);
}

int swiglu_that_writes_its_input(const struct plumb_probe_swiglu* a) {
  ((uint16_t*)(uintptr_t)a->gate)[0] = 0;
  return swiglu_eager(a);
}

int swiglu_of_another_formula(const struct plumb_probe_swiglu* a) {
  for (int64_t i = 0; i < a->rows * a->cols; ++i) a->out[i] = narrow(silu(1.1f * wide(a->gate[i])) * wide(a->up[i]));
  return 0;
}
