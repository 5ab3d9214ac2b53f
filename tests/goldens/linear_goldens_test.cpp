// PyTorch's BF16 linear (oneDNN) at several K, bit for bit: the order onednn_blocks. Needs PLUMB_SHARED.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "model/safetensors/safetensors.h"

namespace plumb {
namespace {

struct Matrix {
  explicit Matrix(const StoredTensor& t) : values(std::size_t(t.elements())), cols(t.shape[1]) {
    std::memcpy(values.data(), t.data.data(), t.data.size());
  }
  ConstMat rows(std::int64_t n) const { return make_const_mat(values.data(), n, cols, DType::bf16); }
  std::vector<BF16> values;
  std::int64_t cols;
};

/// Elements of x W^T that differ from the golden ones, for the first `rows` rows of x.
std::size_t different(Context& ctx, const SafetensorsFile& file, std::int64_t rows, MatmulOrder order) {
  const Matrix x(file.get("x"));
  const Matrix w(file.get("w"));
  const std::vector<BF16> want = Matrix(file.get("y." + std::to_string(rows))).values;
  const std::int64_t cols = std::int64_t(w.values.size()) / w.cols;
  std::vector<BF16> y(std::size_t(rows * cols));
  matmul(ctx, {.a = {x.rows(rows)}, .b = {w.rows(cols)}, .c = make_mat(y.data(), rows, cols, DType::bf16)}, order);
  std::size_t n = 0;
  for (std::size_t i = 0; i < y.size(); ++i) n += y[i].bits != want[i].bits;
  return n;
}

TEST(LinearGoldens, OneDnnBlocksAreEveryBitOfPyTorch) {
  const char* shared = std::getenv("PLUMB_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "PLUMB_SHARED is not set: no golden values of PyTorch's linear";
  std::deque<Context> contexts;
  for (Isa isa : machine_isas()) contexts.emplace_back(2, isa);
  std::size_t of_the_chain = 0;
  for (Context& ctx : contexts) {
    for (int k : {64, 301, 512, 576, 896, 1024, 1536, 2048, 4864}) {
      const SafetensorsFile file(std::string(shared) + "/conformance/linear/k" + std::to_string(k) + ".safetensors");
      for (std::int64_t rows : {4, 33, 64}) {  // one row takes another path there: PyTorch depends on the batch
        EXPECT_EQ(different(ctx, file, rows, MatmulOrder::onednn_blocks), 0u) << "K " << k << " M " << rows << " " << name_of(ctx.isa());
        of_the_chain += different(ctx, file, rows, MatmulOrder::pair_swapped);
      }
    }
  }
  EXPECT_GT(of_the_chain, 0u);  // one chain over all of k is not it
}

}  // namespace
}  // namespace plumb
