// A program of ten lines that uses the installed library: the exact matmul of a 2x2 identity.
#include <cstdio>

#include "kernels/matmul/matmul.h"

int main() {
  plumb::Context ctx(1);
  const float eye[4] = {1, 0, 0, 1};
  const float w[4] = {1, 2, 3, 4};
  float c[4];
  plumb::matmul(ctx, {.a = {plumb::make_const_mat(eye, 2, 2, plumb::DType::f32)},
                      .b = {plumb::make_const_mat(w, 2, 2, plumb::DType::f32)},
                      .c = plumb::make_mat(c, 2, 2, plumb::DType::f32)});
  std::printf("%g %g %g %g\n", c[0], c[1], c[2], c[3]);
  return 0;
}
