#include "model/probe/craft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "model/probe/infer.h"
#include "model/safetensors/safetensors.h"

namespace plumb {
namespace {

constexpr double kTheta = 1e4;
constexpr std::uint64_t kPositions = 128;  // small: a table of another last bit is then still the same to BF16
constexpr std::int64_t kPoolRows = 192;
constexpr std::int64_t kTiePoolElements = std::int64_t(1) << 20;

/// A tensor of the pool: how wide, how spread.
struct PoolTensor {
  std::string name;
  std::int64_t cols;
  double scale = 1;
  double mean = 0;
  bool weight = false;  // one row, the same for all
};

std::vector<PoolTensor> pool_tensors(Region region, std::int64_t width) {
  const std::int64_t q = 4 * width, k = 2 * width;
  switch (region) {
    case Region::swiglu: return {{"gate", width, 2}, {"up", width}, {"up.0", width}};
    case Region::resid_norm: return {{"h", width}, {"r", width, 4}, {"w", width, 0.2, 1, true}, {"up.0", width}, {"up.1", width}};
    case Region::rope: return {{"q", q}, {"k", k}, {"up.0", q}, {"up.1", k}};
    case Region::qk_norm_rope: break;
  }
  return {{"q", q, 3}, {"k", k, 3}, {"wq", width, 0.2, 1, true}, {"wk", width, 0.2, 1, true}, {"up.0", q}, {"up.1", k}};
}

bool has_heads(Region region) { return region == Region::rope || region == Region::qk_norm_rope; }

/// Of a pool for sites; of one for orders of a sum the inputs spread over many powers of two: the sum of the squares of alike BF16 numbers
/// is often exact, and then equal in every order.
enum class Pool : std::uint32_t { sites = 1, orders = 2 };

float pool_value(const PoolTensor& p, Pool pool, const RandomKey& key, std::uint64_t i) {
  const double x = p.mean + p.scale * random_normal(key, i);
  if (p.weight || pool == Pool::sites) return float(x);
  RandomKey spread = key;
  spread.sample = 1;
  return float(std::ldexp(x, int(std::lrint(2 * random_normal(spread, i)))));
}

RegionInputs random_pool(Region region, std::int64_t width, std::int64_t rows, Pool pool) {
  RegionInputs in{.region = region, .theta = kTheta};
  std::uint32_t which = 0;
  for (const PoolTensor& p : pool_tensors(region, width)) {
    ++which;
    const RandomKey key{.seed = 1, .purpose = Purpose::test, .step = p.weight ? 0 : std::uint32_t(pool), .draw = which};
    RegionTensor t(p.weight ? 1 : rows, p.cols, DType::bf16);
    for (std::int64_t i = 0; i < t.elements(); ++i) t.set(i, pool_value(p, pool, key, std::uint64_t(i)));
    in.tensors[p.name] = std::move(t);
  }
  if (!has_heads(region)) return in;
  in.head_dim = int(width);
  for (std::int64_t i = 0; i < rows; ++i)
    in.positions.push_back(std::int32_t(random_below({.seed = 2, .step = std::uint32_t(pool)}, std::uint64_t(i), kPositions)));
  in.table = RopeTable::of_positions(in.head_dim, kTheta, in.positions);
  return in;
}

/// One row for all tokens.
bool is_weight(const std::string& name) { return name == "w" || name == "wq" || name == "wk"; }

/// `rows` of `pool` behind the rows of `kept`, which may be empty.
void append_rows(RegionInputs& kept, const RegionInputs& pool, const std::vector<std::int64_t>& rows) {
  if (rows.empty()) return;
  if (kept.tensors.empty()) kept = {.region = pool.region, .head_dim = pool.head_dim, .eps = pool.eps, .theta = pool.theta};
  for (const auto& [name, from] : pool.tensors) {
    RegionTensor& to = kept.tensors[name];
    if (is_weight(name)) {
      to = from;
      continue;
    }
    const std::size_t row_bytes = from.bytes().size() / std::size_t(from.rows());
    RegionTensor grown(to.rows() + std::int64_t(rows.size()), from.cols(), from.dtype());
    std::copy(to.bytes().begin(), to.bytes().end(), grown.bytes().begin());
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::memcpy(&grown.bytes()[(std::size_t(to.rows()) + i) * row_bytes], &from.bytes()[std::size_t(rows[i]) * row_bytes], row_bytes);
    to = std::move(grown);
  }
  if (pool.head_dim == 0) return;
  for (const std::int64_t r : rows) kept.positions.push_back(pool.positions[std::size_t(r)]);
  kept.table = RopeTable::of_positions(kept.head_dim, kept.theta, kept.positions);
}

/// Two choices, and by how many elements they differ in each row of the pool (only rows in which they do).
struct Pair {
  std::vector<std::pair<std::int64_t, int>> apart;  // row, elements
  std::int64_t missing = 0;                         // elements still wanted
};

/// Adds the elements of every row in which two results differ.
void count_apart(const RegionTensors& a, const RegionTensors& b, std::vector<int>& rows) {
  for (const auto& [name, x] : a) {
    const std::span<const std::byte> left(x.bytes()), right(b.at(name).bytes());
    const std::size_t row_bytes = left.size() / rows.size();
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (std::memcmp(&left[r * row_bytes], &right[r * row_bytes], row_bytes) == 0) continue;
      for (std::size_t i = r * row_bytes; i < (r + 1) * row_bytes; i += 2) rows[r] += std::memcmp(&left[i], &right[i], 2) != 0;
    }
  }
}

/// The choices of one pool, compared in pairs. Whoever adds results says which outputs they are of.
class Separation {
 public:
  explicit Separation(std::int64_t rows) : rows_(std::size_t(rows)) {}
  /// All pairs among these shall differ by `wanted` elements, or by as many as the pool has.
  void add(const std::vector<RegionTensors>& results, std::int64_t wanted) {
    std::vector<int> apart(rows_);
    for (std::size_t i = 0; i < results.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        std::fill(apart.begin(), apart.end(), 0);
        count_apart(results[i], results[j], apart);
        Pair pair;
        for (std::size_t r = 0; r < rows_; ++r) {
          if (apart[r] == 0) continue;
          pair.apart.emplace_back(std::int64_t(r), apart[r]);
          pair.missing += apart[r];
        }
        pair.missing = std::min(pair.missing, wanted);
        if (pair.missing > 0) pairs_.push_back(std::move(pair));
      }
    }
  }
  /// Rows that together give every pair what it wants, each the one that helps most.
  std::vector<std::int64_t> choose() {
    std::vector<std::int64_t> chosen;
    while (true) {
      std::vector<std::int64_t> gain(rows_, 0);
      for (const Pair& p : pairs_)
        for (const auto& [row, apart] : p.apart) gain[std::size_t(row)] += std::min<std::int64_t>(p.missing, apart);
      const auto best = std::max_element(gain.begin(), gain.end());
      if (*best == 0) return chosen;
      chosen.push_back(best - gain.begin());
      take(chosen.back());
    }
  }

 private:
  void take(std::int64_t row) {
    for (Pair& p : pairs_) {
      const auto at = std::find_if(p.apart.begin(), p.apart.end(), [&](const auto& x) { return x.first == row; });
      if (at == p.apart.end()) continue;
      p.missing -= std::min<std::int64_t>(p.missing, at->second);
      p.apart.erase(at);
    }
    std::erase_if(pairs_, [](const Pair& p) { return p.missing == 0; });
  }
  std::size_t rows_;
  std::vector<Pair> pairs_;
};

/// The outputs of all, or the gradients that belong to one row each.
RegionWanted row_outputs(const RegionInputs& in, bool gradients) {
  RegionWanted wanted;
  for (const auto& [name, dtype] : all_outputs(in))
    if (name.starts_with("grad.") == gradients && !name.starts_with("grad.w")) wanted[name] = dtype;
  return wanted;
}

std::vector<std::int64_t> rows_that_show_sites(Context& ctx, const RegionInputs& pool, std::int64_t rows) {
  Separation separation(rows);
  const auto outputs = row_outputs(pool, false), gradients = row_outputs(pool, true);
  std::vector<RegionTensors> forward;
  for (RegionNumerics n : forward_candidates(pool, outputs, false)) {
    forward.push_back(run_region(ctx, pool, n, outputs));
    std::vector<RegionTensors> backward;
    for (const BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
      for (const BackwardMode qk_norm : {BackwardMode::fused, BackwardMode::mirror}) {
        n.backward = mode;
        n.qk_norm = qk_norm;
        backward.push_back(run_region(ctx, pool, n, gradients));
      }
    }
    separation.add(backward, kCraftedApart);
  }
  separation.add(forward, kCraftedApart);
  return separation.choose();
}

/// Rows whose sum has other last bits in another order, seen where nothing is rounded after it.
std::vector<std::int64_t> rows_with_other_sums(Context& ctx, const RegionInputs& pool, std::int64_t rows) {
  const RegionWanted unrounded = {{"out.0", DType::f32}};
  std::vector<int> apart(static_cast<std::size_t>(rows));
  for (const bool rounded : {false, true}) {
    RegionNumerics n;
    n.sites.set(Site::resid_sum_to_var, rounded);
    const RegionTensors first = run_region(ctx, pool, n, unrounded);
    for (const auto& [order, name] : enum_names(RowSumOrder{})) {
      n.row_sum = order;
      count_apart(first, run_region(ctx, pool, n, unrounded), apart);
    }
  }
  std::vector<std::int64_t> found;
  for (std::int64_t r = 0; r < rows; ++r)
    if (apart[std::size_t(r)] != 0) found.push_back(r);
  return found;
}

std::vector<std::int64_t> rows_that_show_orders(Context& ctx, const RegionInputs& pool, std::int64_t rows) {
  Separation separation(rows);
  const auto outputs = row_outputs(pool, false);
  for (RegionNumerics n : forward_candidates(pool, outputs, false)) {
    std::vector<RegionTensors> results;
    for (const auto& [order, name] : enum_names(RowSumOrder{})) {
      n.row_sum = order;
      results.push_back(run_region(ctx, pool, n, outputs));
    }
    separation.add(results, kCraftedTies);
  }
  return separation.choose();
}

void check_width(Region region, int width) {
  const bool heads = has_heads(region);
  const int most = heads ? 512 : 8192;
  if (width >= 8 && width <= most && (!heads || width % 2 == 0)) return;
  throw UsageError(fmt::format("the width of {} is {}; {} from 8 to {} is right", enum_name(region), width,
                               heads ? "an even number" : "a number", most));
}

/// Tensors of a file in the making; they own what they show.
class TensorList {
 public:
  void add(const std::string& name, StoredType type, std::vector<std::int64_t> shape, const void* data, std::size_t bytes) {
    data_.emplace_back(static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes);
    tensors_.push_back({.name = name, .dtype = type, .shape = std::move(shape)});
  }
  std::vector<StoredTensor> tensors() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].data = data_[i];
    return tensors_;
  }

 private:
  std::vector<std::vector<std::byte>> data_;
  std::vector<StoredTensor> tensors_;
};

void add_table(TensorList& list, const RegionInputs& in) {
  const std::int64_t half = in.head_dim / 2, rows = in.table.positions();
  const std::size_t bytes = std::size_t(rows * half) * sizeof(float);
  list.add("table.cos", StoredType::f32, {rows, half}, in.table.cos(0, false), bytes);
  list.add("table.sin", StoredType::f32, {rows, half}, in.table.sin(0, false), bytes);
  const std::vector<std::int64_t> positions(in.positions.begin(), in.positions.end());
  list.add("in.pos", StoredType::i64, {rows}, positions.data(), positions.size() * sizeof(std::int64_t));
}

}  // namespace

RegionInputs craft_inputs(Context& ctx, Region region, int width) {
  if (width == 0) width = has_heads(region) ? 64 : 256;
  check_width(region, width);
  RegionInputs kept;
  const RegionInputs pool = random_pool(region, width, kPoolRows, Pool::sites);
  append_rows(kept, pool, rows_that_show_sites(ctx, pool, kPoolRows));
  if (region == Region::qk_norm_rope || region == Region::resid_norm) {
    const std::int64_t rows = std::max<std::int64_t>(1, kTiePoolElements / width / (has_heads(region) ? 6 : 1));
    const RegionInputs pool_of_sums = random_pool(region, width, rows, Pool::orders);
    RegionInputs sums;
    append_rows(sums, pool_of_sums, rows_with_other_sums(ctx, pool_of_sums, rows));
    if (!sums.tensors.empty()) append_rows(kept, sums, rows_that_show_orders(ctx, sums, sums.tensors.at("up.0").rows()));
  }
  check_inputs(kept);
  return kept;
}

void write_region_inputs(const std::filesystem::path& path, const RegionInputs& in) {
  TensorList list;
  for (const auto& [name, t] : in.tensors) {
    const bool weight = is_weight(name);
    list.add(name.starts_with("up.") ? name : "in." + name, t.dtype() == DType::f32 ? StoredType::f32 : StoredType::bf16,
             weight ? std::vector{t.cols()} : std::vector{t.rows(), t.cols()}, t.bytes().data(), t.bytes().size());
  }
  std::map<std::string, std::string> metadata = {{"region", enum_name(in.region)}, {"eps", fmt::format("{}", in.eps)}};
  if (in.head_dim > 0) {
    add_table(list, in);
    metadata["head_dim"] = std::to_string(in.head_dim);
    metadata["theta"] = fmt::format("{}", in.theta);
  }
  write_safetensors(path, list.tensors(), metadata);
}

}  // namespace plumb
