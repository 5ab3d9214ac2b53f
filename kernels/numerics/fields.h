// The members of a Numerics as lists, so that what reads, writes or changes each of them by name need not repeat the names.
#pragma once
#include <string>
#include <type_traits>

#include "kernels/numerics/numerics.h"

namespace plumb {

/// Calls f(name, pointer to the member of Reductions) for each, in the order of files and print-outs.
template <class F>
void for_each_reduction(F&& f) {
  f("matmul", &Reductions::matmul);
  f("row_sum", &Reductions::row_sum);
  f("attention_qk", &Reductions::attention_qk);
  f("attention_pv", &Reductions::attention_pv);
  f("attention_sum", &Reductions::attention_sum);
  f("attention_exp", &Reductions::attention_exp);
  f("attention_kv_tile", &Reductions::attention_kv_tile);
  f("attention_kv_split", &Reductions::attention_kv_split);
  f("shards", &Reductions::shards);
}

/// The same for the regions' modes in BackwardModes.
template <class F>
void for_each_backward_mode(F&& f) {
  f("norm", &BackwardModes::norm);
  f("qk_norm", &BackwardModes::qk_norm);
  f("rope", &BackwardModes::rope);
  f("attention", &BackwardModes::attention);
  f("swiglu", &BackwardModes::swiglu);
  f("linear", &BackwardModes::linear);
  f("embedding", &BackwardModes::embedding);
}

/// The text of a member's value: an enumerator's name, or a number.
template <class T>
std::string value_text(T value) {
  if constexpr (std::is_enum_v<T>) {
    return enum_name(value);
  } else {
    return std::to_string(value);
  }
}

/// Sites with a value at each norm; the others have one per layer, or one in all.
constexpr bool is_norm_site(Site s) { return s >= Site::resid_store && s <= Site::norm_out; }

}  // namespace plumb
