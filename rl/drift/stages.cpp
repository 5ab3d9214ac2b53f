#include "rl/drift/stages.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/core/lanes.h"
#include "rl/drift/mix.h"

namespace plumb {
namespace {

float value_at(ConstMat m, std::int64_t row, std::int64_t col) {
  return m.dtype == DType::bf16 ? to_float(m.row<BF16>(row)[col]) : m.row<float>(row)[col];
}

/// Of a row's values in FP32, so that a BF16 and an FP32 tensor of equal values are equal. -0 and 0 differ.
std::uint64_t row_hash(ConstMat m, std::int64_t row) {
  std::uint64_t h = 0x9E3779B97F4A7C15u;
  for (std::int64_t c = 0; c < m.cols; ++c) {
    h = (h ^ std::bit_cast<std::uint32_t>(value_at(m, row, c))) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
  }
  return h;
}

/// Of one micro-batch: hashes of every row at every stage, and the stream after each block.
struct Recording {
  std::vector<std::uint64_t> hashes;  // (layers, stages, N)
  std::vector<float> streams;         // (layers + 1, M, D) of the scored rows
};

class Recorder {
 public:
  Recorder(const ModelConfig& config, const MicroBatch& batch)
      : config_(config), batch_(batch), rows_(batch.rows()), scored_(batch.responses()) {}

  Recording run(Context& ctx, TracedForward& forward, const Weights& weights) {
    const auto d = std::int64_t(config_.hidden_size);
    Recording r;
    r.hashes.assign(std::size_t(config_.layers * kStages * rows_), 0);
    r.streams.assign(std::size_t((config_.layers + 1) * scored_ * d), 0);
    forward.run(ctx, weights, batch_.batch(), [&](int layer, Stage stage, ConstMat m) {
      std::uint64_t* const out = r.hashes.data() + std::int64_t(layer * kStages + int(stage)) * rows_;
      ctx.parallel_for(rows_, 8, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) out[i] = row_hash(m, i);
      });
      if (stage == Stage::embedding) add_stream(m, r.streams.data());
      if (stage == Stage::post_store || stage == Stage::down) add_stream(m, r.streams.data() + (layer + 1) * scored_ * d);
    });
    return r;
  }

  std::int64_t row_of(std::int64_t response) const { return batch_.row_of_head()[batch_.head_of_response()[response]]; }

 private:
  void add_stream(ConstMat m, float* out) const {
    for (std::int64_t i = 0; i < scored_; ++i) {
      for (std::int64_t c = 0; c < m.cols; ++c) out[i * m.cols + c] += value_at(m, row_of(i), c);
    }
  }

  const ModelConfig& config_;
  const MicroBatch& batch_;
  std::int64_t rows_;
  std::int64_t scored_;
};

/// The first rows of the sequences in a batch, by row.
std::vector<std::int64_t> sequence_starts(const Batch& batch) {
  std::vector<std::int64_t> start(std::size_t(batch.rows), 0);
  for (std::int64_t i = 0; i < batch.n_sequences; ++i) {
    const SequenceRows& s = batch.sequences[i];
    std::fill_n(start.begin() + s.first_row, s.rows, s.first_row);
  }
  return start;
}

FirstDifference first_difference(const Recording& a, const Recording& b, const ModelConfig& config, std::int64_t rows, std::int64_t row,
                                 std::int64_t first_row) {
  const auto differs = [&](int layer, Stage stage, std::int64_t r) {
    const std::int64_t at = std::int64_t(layer * kStages + int(stage)) * rows + r;
    return a.hashes[std::size_t(at)] != b.hashes[std::size_t(at)];
  };
  for (int layer = 0; layer < config.layers; ++layer) {
    for (int s = 0; s < kStages; ++s) {
      if (!differs(layer, Stage(s), row)) continue;
      FirstDifference d{.kind = FirstDifference::Kind::stage, .layer = layer, .stage = Stage(s)};
      if (d.stage != Stage::attention) return d;
      for (std::int64_t r = first_row; r < row; ++r) {
        if (differs(layer, Stage::qkv, r) || differs(layer, Stage::k, r)) d.kind = FirstDifference::Kind::context;
      }
      return d;
    }
  }
  return {};
}

void add_growth(const Recording& a, const Recording& b, std::vector<double>& differences, std::vector<double>& sizes) {
  const std::size_t per = a.streams.size() / differences.size();
  for (std::size_t l = 0; l < differences.size(); ++l) {
    for (std::size_t i = l * per; i < (l + 1) * per; ++i) {
      const double x = a.streams[i], y = b.streams[i];
      differences[l] += (x - y) * (x - y);
      sizes[l] += y * y;
    }
  }
}

/// What the output of a stage depends on, besides its inputs.
bool concerns(Stage stage, Site site) {
  const bool norm = site == Site::resid_sum_to_var || site == Site::resid_sum_to_scale || site == Site::norm_xhat || site == Site::norm_out;
  switch (stage) {
    case Stage::embedding: return site == Site::embedding;
    case Stage::input_store:
    case Stage::post_store: return site == Site::resid_store;
    case Stage::input_norm:
    case Stage::post_norm: return norm;
    case Stage::final_norm: return norm || site == Site::resid_store;
    case Stage::q:
    case Stage::k: return region_of(site) == Region::rope_path || site == Site::rope_out;
    case Stage::attention: return region_of(site) == Region::attention || site == Site::attn_out;
    case Stage::swiglu: return region_of(site) == Region::swiglu || site == Site::swiglu_out;
    default: return site == Site::linear_out;
  }
}

bool fact_concerns(Stage stage, const std::string& fact) {
  const auto is = [&](const char* name) { return fact.starts_with(name); };
  if (is("compute")) return true;
  switch (stage) {
    case Stage::input_norm:
    case Stage::post_norm:
    case Stage::final_norm:
    case Stage::q:
    case Stage::k: return is("reductions.row_sum");
    case Stage::attention: return is("softmax") || is("scale_at") || is("reductions.attention_");
    case Stage::qkv:
    case Stage::o:
    case Stage::gate_up:
    case Stage::down: return is("reductions.matmul");
    default: return false;
  }
}

}  // namespace

StageComparison compare_stages(Evaluator& evaluator, const Numerics& a, const Numerics& b) {
  DriftModel& model = evaluator.model();
  const ModelConfig& config = model.config();
  const std::int64_t rows = evaluator.micro_batch_rows();
  TracedForward forward_a(config, a, rows, evaluator.longest());
  TracedForward forward_b(config, b, rows, evaluator.longest());
  const SideScores& scores_a = evaluator.of(a);
  const SideScores& scores_b = evaluator.of(b);
  MicroBatch batch(rows);
  StageComparison out;
  std::vector<double> differences(std::size_t(config.layers) + 1, 0), sizes = differences;
  const std::vector<TrainSequence>& sequences = evaluator.sequences();
  for (std::size_t first = 0; first < sequences.size();) {
    evaluator.stop_if_asked();
    first += batch.pack(sequences, first);
    Recorder recorder(config, batch);
    const Recording ra = recorder.run(model.ctx(), forward_a, model.weights(a.compute));
    const Recording rb = recorder.run(model.ctx(), forward_b, model.weights(b.compute));
    const std::vector<std::int64_t> starts = sequence_starts(batch.batch());
    for (std::int64_t i = 0; i < batch.responses(); ++i) {
      const std::int64_t row = recorder.row_of(i);
      FirstDifference d = first_difference(ra, rb, config, batch.rows(), row, starts[std::size_t(row)]);
      const std::size_t token = out.tokens.size();
      const bool equal = std::bit_cast<std::uint32_t>(scores_a.logprob[token]) == std::bit_cast<std::uint32_t>(scores_b.logprob[token]);
      if (d.kind == FirstDifference::Kind::none && !equal) d = {.kind = FirstDifference::Kind::head, .layer = config.layers - 1};
      out.tokens.push_back(d);
    }
    add_growth(ra, rb, differences, sizes);
  }
  for (std::size_t l = 0; l < differences.size(); ++l) out.growth.push_back(sizes[l] > 0 ? std::sqrt(differences[l] / sizes[l]) : 0);
  return out;
}

std::string suspects(const Numerics& a, const Numerics& b, const ModelConfig& config, const FirstDifference& d) {
  if (d.kind == FirstDifference::Kind::none) return "";
  if (d.kind == FirstDifference::Kind::context) return "keys and values of earlier tokens";
  std::string out;
  const NumericsMix mix(a, b, config, PlayersBy::sites);
  for (const Player& p : mix.players()) {
    const bool head = d.kind == FirstDifference::Kind::head;
    bool concerned = false;
    for (int s = 0; s < kSites; ++s) {
      if (p.name == name_of(Site(s))) concerned = head ? region_of(Site(s)) == Region::head : concerns(d.stage, Site(s));
    }
    if (head) concerned = concerned || p.name == "reductions.matmul";
    if (!head && fact_concerns(d.stage, p.name)) concerned = true;
    if (p.region == Region::storage) concerned = true;
    if (concerned) out += (out.empty() ? "" : ", ") + p.differs;
  }
  return out;
}

}  // namespace plumb
