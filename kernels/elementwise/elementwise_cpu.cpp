#include "kernels/elementwise/elementwise_cpu.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/rows.h"

namespace plumb::cpu {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements worth a second thread

std::int64_t rows_per_thread(std::int64_t cols) { return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(cols, 1)); }

template <class A, class B>
void add_row(A* a, const B* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int part = int(std::min<std::int64_t>(kLanes, n - i));
    store_part(a + i, load_part(a + i, part) + load_part(b + i, part), part);
  }
}

template <class In, class Out>
void convert_row(const In* in, Out* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int part = int(std::min<std::int64_t>(kLanes, n - i));
    store_part(out + i, load_part(in + i, part), part);
  }
}

template <class T>
void sum_columns(const ConstMat& x, float* sums, std::int64_t begin, std::int64_t end) {
  for (std::int64_t c = begin; c < end; c += kLanes) {
    const int part = int(std::min<std::int64_t>(kLanes, end - c));
    F32x16 sum = load_part(sums + c, part);
    for (std::int64_t r = 0; r < x.rows; ++r) sum = sum + load_part(x.row<T>(r) + c, part);
    store_part(sums + c, sum, part);
  }
}

/// Calls f(BF16{} or float{}) as the dtype says.
template <class F>
void with_type(DType dtype, F&& f) {
  if (dtype == DType::bf16) return f(BF16{});
  f(float{});
}

}  // namespace

void add_in_place(Context& ctx, Mat a, ConstMat b) {
  ctx.parallel_for(a.rows, rows_per_thread(a.cols), [&](std::int64_t begin, std::int64_t end, int) {
    with_type(a.dtype, [&]<class A>(A) {
      with_type(b.dtype, [&]<class B>(B) {
        for (std::int64_t r = begin; r < end; ++r) add_row(a.row<A>(r), b.row<B>(r), a.cols);
      });
    });
  });
}

void convert(Context& ctx, ConstMat in, Mat out) {
  const std::size_t row_bytes = std::size_t(in.cols) * bytes_of(in.dtype);
  ctx.parallel_for(in.rows, rows_per_thread(in.cols), [&](std::int64_t begin, std::int64_t end, int) {
    if (in.dtype == out.dtype) {
      for (std::int64_t r = begin; r < end; ++r) std::memcpy(out.row_bytes(r), in.row_bytes(r), row_bytes);
      return;
    }
    for (std::int64_t r = begin; r < end; ++r) {
      if (in.dtype == DType::f32) {
        convert_row(in.row<float>(r), out.row<BF16>(r), in.cols);
      } else {
        convert_row(in.row<BF16>(r), out.row<float>(r), in.cols);
      }
    }
  });
}

void column_sums(Context& ctx, ConstMat x, float* sums) {
  const std::int64_t grain = std::max<std::int64_t>(kLanes, kGrain / std::max<std::int64_t>(x.rows, 1));
  ctx.parallel_for(x.cols, grain, [&](std::int64_t begin, std::int64_t end, int) {
    with_type(x.dtype, [&]<class T>(T) { sum_columns<T>(x, sums, begin, end); });
  });
}

void round_in_place(Context& ctx, float* x, std::int64_t n, DType to) {
  ctx.parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
    if (to != DType::bf16) {
      for_lanes(begin, end, [&](std::int64_t i, auto part) { store_part(x + i, round_to(to, load_part(x + i, part)), part); });
      return;
    }
    for_lanes(begin, end, [&](std::int64_t i, auto part) { store_part(x + i, round_bf16(load_part(x + i, part)), part); });
  });
}

void scale_in_place(Context& ctx, float* x, std::int64_t n, float factor) {
  ctx.parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
    for_lanes(begin, end, [&](std::int64_t i, auto part) { store_part(x + i, load_part(x + i, part) * F32x16(factor), part); });
  });
}

void gather_rows(Context& ctx, ConstMat in, const std::int32_t* index, Mat out) {
  const std::size_t row_bytes = std::size_t(in.cols) * bytes_of(in.dtype);
  ctx.parallel_for(out.rows, rows_per_thread(in.cols), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      if (index[r] >= 0) {
        std::memcpy(out.row_bytes(r), in.row_bytes(index[r]), row_bytes);
      } else {
        std::memset(out.row_bytes(r), 0, row_bytes);
      }
    }
  });
}

void scatter_rows(Context& ctx, ConstMat in, const std::int32_t* index, Mat out) {
  const std::size_t row_bytes = std::size_t(in.cols) * bytes_of(in.dtype);
  ctx.parallel_for(in.rows, rows_per_thread(in.cols), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r)
      if (index[r] >= 0) std::memcpy(out.row_bytes(index[r]), in.row_bytes(r), row_bytes);
  });
}

void fill_zero(Context& ctx, Mat x) {
  const std::size_t row_bytes = std::size_t(x.cols) * bytes_of(x.dtype);
  ctx.parallel_for(x.rows, rows_per_thread(x.cols), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) std::memset(x.row_bytes(r), 0, row_bytes);
  });
}

}  // namespace plumb::cpu
