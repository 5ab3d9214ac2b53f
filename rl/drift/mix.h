// Two numerics taken apart into players: what can be moved from A to B apart from the rest. Only what a forward shows is counted:
// backward modes and gradient chains are not.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/numerics/numerics.h"
#include "model/config.h"

namespace plumb {

/// The parts of docs/numerics.md: the three regions of the paper's claim, the outer sites, and what is no site.
enum class Region : std::uint8_t {
  rope_path,   // rope.cos_sin_table, rope.rotated, rope.products, qk_norm.xhat, qk_norm.out
  swiglu,      // swiglu.silu
  resid_norm,  // resid.store, resid.sum_to_var, resid.sum_to_scale, norm.xhat
  attention,   // attn.scores, attn.scaled, attn.probs, softmax, scale_at, exp
  head,        // lm_head.logits, logits.temperature
  embedding,   // embedding
  storage,     // compute dtype, and the sites that are its stores
  reductions,  // the order of every sum
};
constexpr auto enum_names(Region) {
  using enum Region;
  return std::array{std::pair{rope_path, "rope_path"},
                    std::pair{swiglu, "swiglu"},
                    std::pair{resid_norm, "resid_norm"},
                    std::pair{attention, "attention"},
                    std::pair{head, "head"},
                    std::pair{embedding, "embedding"},
                    std::pair{storage, "storage"},
                    std::pair{reductions, "reductions"}};
}
Region region_of(Site);

enum class PlayersBy : std::uint8_t { regions, sites, layers };
constexpr auto enum_names(PlayersBy) {
  using enum PlayersBy;
  return std::array{std::pair{regions, "regions"}, std::pair{sites, "sites"}, std::pair{layers, "layers"}};
}

struct Player {
  std::string name;     // "rope_path", "rope.products", "reductions.matmul", "layer 3"
  std::string differs;  // "rope.products b > f, rope.rotated b > f"
  Region region = Region::rope_path;
};

class NumericsMix {
 public:
  static constexpr int kMaxLayerPlayers = 32;  // deeper models: consecutive layers move together

  NumericsMix(const Numerics& a, const Numerics& b, const ModelConfig&, PlayersBy, float temperature = 1);
  /// At most 63, in a fixed order.
  const std::vector<Player>& players() const { return players_; }
  /// What differs but cannot matter: sites of a QK norm that the model has not, the temperature's where it is 1.
  const std::vector<Player>& absent() const { return absent_; }
  std::uint64_t everything() const { return (std::uint64_t(1) << players_.size()) - 1; }
  /// A with the values that B has for the players whose bit is set. Equal mixes are equal values, however they were named.
  Numerics mix(std::uint64_t moved) const;

 private:
  struct Cell {
    int layer = 0;
    Place place = Place::block;
    Site site = Site::embedding;
    int player = 0;
  };
  struct Fact {
    void (*copy)(const Numerics& from, Numerics& to) = nullptr;
    int player = 0;
  };
  int player(const std::string& name, Region, const std::string& difference);
  void add_cells(PlayersBy, float temperature);
  void add_facts(PlayersBy);
  std::string player_name(PlayersBy, Site, int own_layer) const;
  std::string layer_name(int layer) const;

  Numerics a_;
  Numerics b_;
  ModelConfig config_;
  std::vector<Player> players_;
  std::vector<Player> absent_;
  std::vector<Cell> cells_;
  std::vector<Fact> facts_;
};

/// The differing sites and facts by name, "rope.products b > f"; empty when a forward shows none.
std::vector<std::string> forward_differences(const Numerics& a, const Numerics& b, const ModelConfig&);

}  // namespace plumb
