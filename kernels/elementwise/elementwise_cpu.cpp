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

/// a = a + b in a's own format, and a = b, for the formats that are held in FP32 memory.
void add_emulated(const Mat& a, const ConstMat& b, std::int64_t row) {
  const RowIn left(a, row);
  const RowIn right(b, row);
  const RowOut out(a, row);
  for_lanes(0, a.cols, [&](std::int64_t i, auto n) { out.store(i, left.load(i, n) + right.load(i, n), n); });
}
void convert_emulated(const ConstMat& in, const Mat& out, std::int64_t row) {
  const RowIn from(in, row);
  const RowOut to(out, row);
  for_lanes(0, in.cols, [&](std::int64_t i, auto n) { to.store(i, from.load(i, n), n); });
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
    if (is_emulated(a.dtype)) {
      for (std::int64_t r = begin; r < end; ++r) add_emulated(a, b, r);
      return;
    }
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
      if (is_emulated(in.dtype) || is_emulated(out.dtype)) {
        convert_emulated(in, out, r);
      } else if (in.dtype == DType::f32) {
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
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const int part = int(std::min<std::int64_t>(kLanes, end - i));
      store_part(x + i, round_if(true, load_part(x + i, part), to), part);
    }
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
