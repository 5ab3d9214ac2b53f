// Numerics: which bits. One value per side (rollout, update): compute dtype, every rounding site with its overrides by
// layer and place, the backward mode of each region and the order of every reduction. Printable, hashable, comparable.
// The sites are described in docs/numerics.md; `b` = rounded to the compute dtype there, `f` = kept in FP32.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"

namespace plumb {

enum class Site : std::uint8_t {
  embedding,           // the embedding row as it enters the stream
  resid_store,         // h + r as written back to the residual stream
  resid_sum_to_var,    // the h + r that feeds mean(x^2)
  resid_sum_to_scale,  // the h + r that is multiplied by rstd
  norm_xhat,           // sum * rstd, before the weight
  norm_out,            // xhat * w, input of the next matmul
  qk_norm_xhat,        // q * rstd_head, before the weight (Qwen3)
  qk_norm_out,         // xhat * w, the value handed to the rotation (Qwen3)
  rope_cos_sin_table,  // cos and sin of the angle
  rope_rotated,        // the copy of the head vector that rotate_half makes
  rope_products,       // x*c, y*s, y*c, x*s
  rope_out,            // x*c - y*s, y*c + x*s
  attn_scores,         // q . k
  attn_scaled,         // times 1/sqrt(head_dim)
  attn_probs,          // the probabilities handed to the product with V
  attn_out,            // the product with V
  swiglu_silu,         // silu(gate)
  swiglu_out,          // silu(gate) * up
  linear_out,          // every linear's output, one rounding after the FP32 bias
  lm_head_logits,      // the logits
  logits_temperature,  // the logits divided by the temperature
  count
};
inline constexpr int kSites = int(Site::count);

/// "rope.products" and so on; the names of configuration files and documentation.
std::string_view name_of(Site site);
/// Throws UsageError naming the nearest valid site.
Site site_from_name(std::string_view name);

/// A set of sites: bit set = `b`, rounded to `to`.
struct Sites {
  std::uint32_t mask = 0;
  DType to = DType::bf16;
  constexpr bool rounded(Site s) const { return (mask >> int(s) & 1u) != 0; }
  constexpr void set(Site s, bool b) { mask = b ? mask | 1u << int(s) : mask & ~(1u << int(s)); }
  friend constexpr bool operator==(Sites, Sites) = default;
};
constexpr Sites make_sites(std::initializer_list<Site> rounded) {
  Sites s;
  for (Site x : rounded) s.set(x, true);
  return s;
}

/// Where in a layer a site sits. `block` holds everything but the residual norms.
enum class Place : std::uint8_t { block, input_norm, post_attention_norm, final_norm, count };
constexpr auto enum_names(Place) {
  using enum Place;
  return std::array{std::pair{block, "block"}, std::pair{input_norm, "input_norm"}, std::pair{post_attention_norm, "post_attention_norm"},
                    std::pair{final_norm, "final_norm"}};
}

/// In layers first..last (negative counts from the end, -1 = the last layer) and at `place` the site has value `rounded`.
/// The final norm belongs to no layer: overrides at Place::final_norm ignore the range.
struct SiteOverride {
  int first_layer = 0;
  int last_layer = -1;
  Place place = Place::block;
  Site site = Site::embedding;
  bool rounded = false;
  friend bool operator==(const SiteOverride&, const SiteOverride&) = default;
};

/// mirror: each gradient is rounded where autograd of the same forward would; fused: FP32 inside, one rounding per output.
enum class BackwardMode : std::uint8_t { fused, mirror };
constexpr auto enum_names(BackwardMode) {
  return std::array{std::pair{BackwardMode::fused, "fused"}, std::pair{BackwardMode::mirror, "mirror"}};
}

/// How the probabilities of attention are formed.
enum class Softmax : std::uint8_t {
  flash,  // P = exp(s - m) unnormalised (rounded at attn.probs), sum of the unrounded exp in FP32, one multiplication by its reciprocal at
          // the end
  normalised,  // P = softmax(s) (rounded at attn.probs), then P V
};
constexpr auto enum_names(Softmax) { return std::array{std::pair{Softmax::flash, "flash"}, std::pair{Softmax::normalised, "normalised"}}; }
/// Where 1/sqrt(head_dim) is applied.
enum class ScaleAt : std::uint8_t { scores, query };
constexpr auto enum_names(ScaleAt) { return std::array{std::pair{ScaleAt::scores, "scores"}, std::pair{ScaleAt::query, "query"}}; }

/// Order of summation of a dot product over k, always in FP32 FMAs from +0. Weight gradients, whose chain runs over the rows of a
/// step, have an order of their own: kernels/matmul's weight_gradient_order.
enum class MatmulOrder : std::uint8_t {
  pair_swapped,   // one chain over k = 1, 0, 3, 2, ..., an odd K padded by one zero: what vdpbf16ps does
  natural,        // one chain over k = 0, 1, 2, ..., an odd K padded by one zero
  onednn_blocks,  // pair-swapped chains over blocks of 512 (K <= 1024) or 1024 of k, each from +0, summed in order
  chains_2,       // K split into 2, 4, 8 consecutive ranges of even length, a pair-swapped chain each, summed in a fixed tree
  chains_4,
  chains_8,
};
constexpr auto enum_names(MatmulOrder) {
  using enum MatmulOrder;
  return std::array{std::pair{pair_swapped, "pair_swapped"}, std::pair{natural, "natural"},   std::pair{onednn_blocks, "onednn_blocks"},
                    std::pair{chains_2, "chains_2"},         std::pair{chains_4, "chains_4"}, std::pair{chains_8, "chains_8"}};
}

/// Order of a row's sum of squares (norms) and of the norm's backward dot product.
enum class RowSumOrder : std::uint8_t {
  lanes16,  // element i to lane i % 16, absent elements +0, lanes folded by halves
  lanes8,   // the same over 8 lanes
  lanes32,  // the same over 32 lanes: Inductor's code for AVX-512 where BF16 tensors are read
  lanes1,   // one after another
  torch,    // as PyTorch's CPU reduction (kernels/numerics/row_sum.h)
};
constexpr auto enum_names(RowSumOrder) {
  using enum RowSumOrder;
  return std::array{std::pair{lanes16, "lanes16"}, std::pair{lanes8, "lanes8"}, std::pair{lanes32, "lanes32"}, std::pair{lanes1, "lanes1"},
                    std::pair{torch, "torch"}};
}

/// Order of the sum of a query's exponentials. PyTorch's flash attention takes the last T mod 16 keys of a sequence of T apart, for
/// every query alike: `lanes16_tail` and `torch_fast` do so too, and so need whole sequences (needs_whole_sequences).
enum class AttentionSum : std::uint8_t {
  lanes16,       // 16 lanes over the tile, absent keys +0, folded by halves
  lanes16_tail,  // the same over whole groups of 16 keys, then the sequence's last T mod 16 keys one by one
};
constexpr auto enum_names(AttentionSum) {
  return std::array{std::pair{AttentionSum::lanes16, "lanes16"}, std::pair{AttentionSum::lanes16_tail, "lanes16_tail"}};
}

/// The exponential of attention's softmax (the site attn.exp of the stacks).
enum class AttentionExp : std::uint8_t {
  exact,           // the engine's exp (core/math.h), below 1 ulp
  torch_fast,      // PyTorch's flash attention: Malossi et al. 2015, relative error 1e-4; the sequence's last T mod 16 keys exact
  torch_fast_all,  // the same for every key: what torch_fast is in an endless sequence
  u20,             // vLLM's CPU attention: a fifth-degree polynomial, 20 ulp
};
constexpr auto enum_names(AttentionExp) {
  using enum AttentionExp;
  return std::array{std::pair{exact, "exact"}, std::pair{torch_fast, "torch_fast"}, std::pair{torch_fast_all, "torch_fast_all"},
                    std::pair{u20, "u20"}};
}

/// The configuration name of a value of one of the enumerations above.
template <class E>
constexpr const char* enum_name(E value) {
  for (const auto& [v, name] : enum_names(E{})) {
    if (v == value) return name;
  }
  return "?";
}

struct Reductions {
  MatmulOrder matmul = MatmulOrder::pair_swapped;        // every linear and the head, and their inputs' gradients
  RowSumOrder row_sum = RowSumOrder::lanes16;            // norms
  MatmulOrder attention_qk = MatmulOrder::pair_swapped;  // q . k and its gradients: pair_swapped or natural
  MatmulOrder attention_pv = MatmulOrder::pair_swapped;  // P V and its gradients: pair_swapped or natural
  AttentionSum attention_sum = AttentionSum::lanes16;
  AttentionExp attention_exp = AttentionExp::exact;
  int attention_kv_tile = 512;  // keys per tile of the running maximum, from absolute position 0; a multiple of 16
  int attention_kv_split = 1;   // the keys in this many consecutive ranges of whole tiles, their partial results merged in a fixed tree
  int shards = 1;               // weight-gradient chains summed in a fixed tree
  friend bool operator==(const Reductions&, const Reductions&) = default;
};

/// True when the value of a query depends on the length of the sequence that it stands in: a trainer can compute that, a sampler,
/// which does not know where its sequences will end, cannot.
bool needs_whole_sequences(const Reductions&);
/// The same in a sequence without end: what a sampler can compute, equal but for the last length mod 16 positions of a sequence.
Reductions without_sequence_end(Reductions);

struct BackwardModes {
  BackwardMode norm = BackwardMode::fused;
  BackwardMode qk_norm = BackwardMode::fused;
  BackwardMode rope = BackwardMode::fused;
  BackwardMode attention = BackwardMode::fused;
  BackwardMode swiglu = BackwardMode::fused;
  BackwardMode linear = BackwardMode::fused;     // mirror: gradients of weights, biases and norms rounded once at the step's end
  BackwardMode embedding = BackwardMode::fused;  // mirror: each added row rounds
  bool merged_qkv = true;                        // the gradient of the norm's output: one chain over q, k, v rows, or R(R(gv + gk) + gq)
  bool merged_gate_up = true;                    // likewise one chain over gate and up, or R(g_gate + g_up)
  // Compiled as one graph (Inductor): what passes between operators inside one of its kernels is not rounded. That is the sum where
  // q, k, v and gate, up are not merged, the sum over a kv head's copies, q's gradient between rotation and norm, attention's dS
  // before the scale, the rows of the embedding's gradient.
  bool one_graph = false;
  friend bool operator==(const BackwardModes&, const BackwardModes&) = default;
};

struct Numerics {
  std::string preset = "fused";  // the name it started from; informative, not part of equality or hash
  // Storage of activations and of the weights' compute copy, and what `b` rounds to: bf16, f16, or, for dose-response experiments, one
  // of e8_dtype. f32 makes every site `f`.
  DType compute = DType::bf16;
  Sites base;                           // the sites' values where no override applies
  std::vector<SiteOverride> overrides;  // later ones win
  Softmax softmax = Softmax::flash;
  ScaleAt scale_at = ScaleAt::scores;
  Reductions reductions;
  BackwardModes backward;

  /// The sites of layer (0-based, of n_layers) at a place, compute dtype applied.
  Sites sites(int layer, int n_layers, Place place) const;
  /// One line per fact, stable: the hash is over this text.
  std::string describe() const;
  std::uint64_t hash() const;
  friend bool operator==(const Numerics& a, const Numerics& b);
};

/// A preset of configs/numerics by name; presets.h says where its knowledge comes from. Throws UsageError naming the nearest.
Numerics preset(std::string_view name);
const std::vector<std::string_view>& preset_names();

/// What of it no kernel does yet, as "reductions.matmul natural"; empty when everything can run.
std::string unsupported(const Numerics&);
/// The presets that can run.
std::vector<std::string_view> usable_presets();

}  // namespace plumb
