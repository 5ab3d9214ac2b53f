// Every site in every preset: moving it changes the model's outputs unless kernels/numerics/inert.h says that it cannot, and then
// it changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "kernels/core/error.h"
#include "kernels/numerics/inert.h"
#include "model/model_testing.h"

namespace plumb {
namespace {

using namespace testing_model;

class SiteToggles : public testing::TestWithParam<Family> {
 protected:
  SiteToggles() : config_(small_config(GetParam())), master_(lively_parameters(config_, 5)) {
    constexpr int kLengths[] = {24, 17, 30};
    packed_ = std::make_unique<Packed>(random_sequences(config_, kLengths, 3));
    bf16_ = make_weights(ctx_, config_, DType::bf16, master_);
    f32_ = make_weights(ctx_, config_, DType::f32, master_);
  }

  /// Log-probs and entropies of all rows.
  std::vector<float> outputs(const Numerics& n, float temperature) {
    const Weights& w = n.compute == DType::f32 ? *f32_ : *bf16_;
    Qwen model(config_, n, {}, packed_->batch().rows, 64, false);
    const ConstMat hidden = model.forward(ctx_, w, packed_->batch(), nullptr, false);
    std::vector<float> out(std::size_t(2 * hidden.rows));
    logprob_forward(ctx_,
                    {.hidden = hidden,
                     .weight = w.lm_head(),
                     .packed = w.packed(Role::lm_head),
                     .matmul_order = n.reductions.matmul,
                     .targets = packed_->targets.data(),
                     .temperature = temperature,
                     .logprob = out.data(),
                     .entropy = out.data() + hidden.rows},
                    model.head_sites());
    return out;
  }

  static bool equal(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  Context ctx_{2};
  ModelConfig config_;
  Buffer master_;
  std::unique_ptr<Packed> packed_;
  std::unique_ptr<Weights> bf16_;
  std::unique_ptr<Weights> f32_;
};

TEST_P(SiteToggles, ChangeTheOutputsUnlessInertByRight) {
  std::set<Site> inert_somewhere;
  for (std::string_view name : usable_presets()) {
    const Numerics base = preset(name);
    for (const float temperature : {1.0f, 0.7f}) {
      const auto want = outputs(base, temperature);
      const auto inert =
          inert_sites(base, {.qk_norm = config_.qk_norm, .head_dim = config_.head_dim, .temperature_one = temperature == 1.0f});
      for (int i = 0; i < kSites; ++i) {
        const Site site = Site(i);
        Numerics n = base;
        n.base.set(site, !n.base.rounded(site));
        std::erase_if(n.overrides, [&](const SiteOverride& o) { return o.site == site; });
        if (!unsupported(n).empty()) continue;  // stored in the compute dtype
        const bool by_right = std::any_of(inert.begin(), inert.end(), [&](const InertSite& s) { return s.site == site; });
        EXPECT_EQ(equal(outputs(n, temperature), want), by_right) << name << " " << name_of(site) << " temperature " << temperature;
        if (by_right && n.compute == DType::bf16) inert_somewhere.insert(site);
      }
    }
  }
  for (Site s : {Site::embedding, Site::rope_rotated, Site::logits_temperature}) EXPECT_TRUE(inert_somewhere.contains(s)) << name_of(s);
}

INSTANTIATE_TEST_SUITE_P(Families, SiteToggles, testing::Values(Family::qwen3, Family::llama),
                         [](const auto& p) { return std::string(name_of(p.param)); });

}  // namespace
}  // namespace plumb
