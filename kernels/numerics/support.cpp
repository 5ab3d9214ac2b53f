// What the kernels can do of what Numerics can say. A kernel that learns more deletes its line here.
#include "kernels/numerics/numerics.h"

namespace plumb {
namespace {

template <class E>
std::string other_than(const char* key, E value, std::initializer_list<E> known) {
  for (E k : known) {
    if (value == k) return "";
  }
  return std::string(key) + " " + enum_name(value);
}

std::string other_than(const char* key, int value, int known) {
  return value == known ? "" : std::string(key) + " " + std::to_string(value);
}

/// Stored in the compute dtype, so rounded there: `f` would be a lie.
std::string stored_site(const Numerics& n) {
  for (Site site : {Site::rope_out, Site::attn_out, Site::swiglu_out, Site::linear_out, Site::norm_out}) {
    const auto name = std::string(name_of(site)) + " f (it is stored in " + name_of(n.compute) + ")";
    if (!n.base.rounded(site)) return name;
    for (const SiteOverride& o : n.overrides) {
      if (o.site == site && !o.rounded) return name;
    }
  }
  return "";
}

}  // namespace

std::string unsupported(const Numerics& n) {
  const Reductions& r = n.reductions;
  const std::string faults[] = {
      n.compute == DType::f32 ? "" : stored_site(n),
      other_than("reductions.attention_qk", r.attention_qk, {MatmulOrder::pair_swapped, MatmulOrder::natural}),
      other_than("reductions.attention_pv", r.attention_pv, {MatmulOrder::pair_swapped, MatmulOrder::natural}),
      n.softmax == Softmax::flash ? "" : other_than("softmax normalised with reductions.attention_kv_split", r.attention_kv_split, 1),
      other_than("reductions.shards", r.shards, 1),
  };
  std::string out;
  for (const std::string& fault : faults) {
    if (!fault.empty()) out += (out.empty() ? "" : ", ") + fault;
  }
  return out;
}

}  // namespace plumb
