#include "model/weights.h"

#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"

namespace plumb {
namespace {

constexpr std::int64_t kPanelRows = 32;  // a packed sub-range must start at a multiple of these

/// The matmul operand that starts at parameter `first`, `rows` rows high.
struct Operand {
  const Parameter* first = nullptr;
  std::int64_t rows = 0;
};

constexpr int kOperandsPerLayer = 4;  // qkv, o, gate_up, down; the LM head comes after all layers

Operand operand(const ParameterList& list, const ModelConfig& c, int index) {
  if (index == c.layers * kOperandsPerLayer) {
    const Parameter* head = list.find(c.tied ? Role::embedding : Role::lm_head);
    return {head, head->rows};
  }
  const int layer = index / kOperandsPerLayer;
  switch (index % kOperandsPerLayer) {
    case 0: return {list.find(Role::q, layer), c.q_cols() + 2 * std::int64_t(c.kv_cols())};
    case 1: return {list.find(Role::o, layer), c.hidden_size};
    case 2: return {list.find(Role::gate, layer), 2 * std::int64_t(c.intermediate_size)};
    default: return {list.find(Role::down, layer), c.hidden_size};
  }
}

/// Bytes of all panels; their offsets when `offsets` is not null.
std::size_t lay_out_panels(const ParameterList& list, const ModelConfig& c, DType dtype, std::vector<std::size_t>* offsets) {
  constexpr std::size_t kLine = 64;
  std::size_t bytes = 0;
  for (int i = 0; i <= c.layers * kOperandsPerLayer; ++i) {
    const Operand o = operand(list, c, i);
    if (offsets != nullptr) offsets->push_back(bytes);
    bytes += (packed_bytes(o.rows, o.first->cols, dtype) + kLine - 1) / kLine * kLine;
  }
  return bytes;
}

}  // namespace

Weights::Weights(const ModelConfig& config, DType dtype)
    : config_(config), parameters_(config), dtype_(dtype), flat_(std::size_t(parameters_.flat_size()) * bytes_of(dtype)) {
  panels_ = Buffer(lay_out_panels(parameters_, config_, dtype, &panel_offsets_));
}

Mat Weights::mat(const Parameter& p) const { return rows_from(p, p.rows, p.cols); }

Mat Weights::rows_from(const Parameter& first, std::int64_t rows, std::int64_t cols) const {
  return make_mat(static_cast<char*>(flat_.data()) + std::size_t(first.offset) * bytes_of(dtype_), rows, cols, dtype_);
}

ConstMat Weights::mat(Role role, int layer) const {
  const Parameter* p = parameters_.find(role, layer);
  return p == nullptr ? ConstMat{} : ConstMat(mat(*p));
}

ConstMat Weights::qkv(int layer) const {
  return rows_from(*parameters_.find(Role::q, layer), config_.q_cols() + 2 * std::int64_t(config_.kv_cols()), config_.hidden_size);
}

ConstMat Weights::qkv_bias(int layer) const {
  const Parameter* first = parameters_.find(Role::q_bias, layer);
  return first == nullptr ? ConstMat{} : ConstMat(rows_from(*first, 1, config_.q_cols() + 2 * std::int64_t(config_.kv_cols())));
}

ConstMat Weights::gate_up(int layer) const {
  return rows_from(*parameters_.find(Role::gate, layer), 2 * std::int64_t(config_.intermediate_size), config_.hidden_size);
}

ConstMat Weights::gate_up_bias(int layer) const {
  const Parameter* first = parameters_.find(Role::gate_bias, layer);
  return first == nullptr ? ConstMat{} : ConstMat(rows_from(*first, 1, 2 * std::int64_t(config_.intermediate_size)));
}

ConstMat Weights::lm_head() const { return mat(config_.tied ? Role::embedding : Role::lm_head); }

PackedWeight Weights::panel(int index, std::int64_t first, std::int64_t rows) const {
  if (first % kPanelRows != 0) return {};
  const std::int64_t depth = operand(parameters_, config_, index).first->cols;
  const std::size_t skipped = first == 0 ? 0 : packed_bytes(first, depth, dtype_);
  return {static_cast<const char*>(panels_.data()) + panel_offsets_[std::size_t(index)] + skipped, rows, depth, dtype_};
}

PackedWeight Weights::packed_qkv(int layer) const {
  return panel(layer * kOperandsPerLayer, 0, config_.q_cols() + 2 * std::int64_t(config_.kv_cols()));
}

PackedWeight Weights::packed_gate_up(int layer) const {
  return panel(layer * kOperandsPerLayer + 2, 0, 2 * std::int64_t(config_.intermediate_size));
}

PackedWeight Weights::packed(Role role, int layer) const {
  const int base = layer * kOperandsPerLayer;
  const std::int64_t q = config_.q_cols();
  const std::int64_t kv = config_.kv_cols();
  const std::int64_t f = config_.intermediate_size;
  switch (role) {
    case Role::q: return panel(base, 0, q);
    case Role::k: return panel(base, q, kv);
    case Role::v: return panel(base, q + kv, kv);
    case Role::o: return panel(base + 1, 0, config_.hidden_size);
    case Role::gate: return panel(base + 2, 0, f);
    case Role::up: return panel(base + 2, f, f);
    case Role::down: return panel(base + 3, 0, config_.hidden_size);
    case Role::lm_head: return panel(config_.layers * kOperandsPerLayer, 0, config_.vocab_size);
    default: throw Error("internal: this role has no packed weight");
  }
}

void Weights::repack(Context& ctx) {
  for (int i = 0; i <= config_.layers * kOperandsPerLayer; ++i) {
    const Operand o = operand(parameters_, config_, i);
    char* panels = static_cast<char*>(panels_.data()) + panel_offsets_[std::size_t(i)];
    pack_weight(ctx, rows_from(*o.first, o.rows, o.first->cols), 0, o.rows, panels);
  }
}

std::size_t Weights::memory_bytes() const { return flat_.size() + panels_.size(); }

std::size_t Weights::memory_bytes(const ModelConfig& config, DType dtype) {
  const ParameterList list(config);
  return std::size_t(list.flat_size()) * bytes_of(dtype) + lay_out_panels(list, config, dtype, nullptr);
}

void set_weights(Context& ctx, Weights& weights, const Buffer& master) {
  const std::int64_t n = weights.parameters().flat_size();
  require(master.size() == std::size_t(n) * sizeof(float), "internal: master weights of another model");
  constexpr std::int64_t kRow = 4096;  // rows of a view over the flat array, so that threads can share the work
  const auto view = [&](void* data, DType dtype) { return make_mat(data, n / kRow, kRow, dtype); };
  convert(ctx, view(master.data(), DType::f32), view(weights.flat(), weights.dtype()));
  const std::int64_t done = n / kRow * kRow;
  const Mat from = make_mat(static_cast<float*>(master.data()) + done, 1, n - done, DType::f32);
  const Mat to = make_mat(static_cast<char*>(weights.flat()) + std::size_t(done) * bytes_of(weights.dtype()), 1, n - done, weights.dtype());
  convert(ctx, from, to);
  weights.repack(ctx);
}

}  // namespace plumb
