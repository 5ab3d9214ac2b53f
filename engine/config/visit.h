// How a configuration struct describes itself, once, for every use: parsing, printing, hashing, documentation.
//
//   struct Clip { double low = 0.2; double high = 0.2; };
//   template <class V> void visit(V& v, Clip& c) {
//     v.field("low", c.low, "lower clip of the ratio: 1 - low");
//     v.field("high", c.high, "upper clip of the ratio: 1 + high");
//   }
//
// A visitor has  field(name, value&, doc, scope)  for scalars, enums, optionals and lists, and  section(name, struct&, doc, scope)
// for nested structs; scope may be left out.  custom(ConfigField)  is for what neither fits (numerics_section.h). Enumerations name their
// values with constexpr auto enum_names(E) -> std::array<std::pair<E, const char*>, N>.
#pragma once

namespace plumb {

/// Whether a key is part of the run's identity. `execution` keys (threads, logging, paths, number of steps) may differ on
/// resume and are left out of the hash; a section's scope covers all that is in it.
enum class KeyScope { identity, execution };

}  // namespace plumb
