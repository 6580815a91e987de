// The collectives that a recipe requires of a Communicator. Checked at compile time if the Communicator's type shows them,
// otherwise at construction.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/compressor/chain.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb::detail {

/// The sparsifier of a chain, or the compressor itself.
template <class Compressor>
struct sparsifier_in {
  using type = Compressor;
};
template <capability::chained Compressor>
struct sparsifier_in<Compressor> {
  using type = decltype(Compressor::sparsifier);
};

/// True if ranks send codes. `sends_choices` is true if one rank broadcasts a selection.
template <class Compressor>
inline constexpr bool sends_codes = quantizer<Compressor> || capability::chained<Compressor>;
template <class Compressor>
inline constexpr bool sends_choices = data_dependent_sparsifier<typename sparsifier_in<Compressor>::type>;

/// The collectives of bytes that an optimizer calls in addition to all_reduce_sum.
struct byte_collectives {
  bool of_codes = false;    ///< all_gather and all_to_all
  bool of_choices = false;  ///< broadcast
};
/// The byte collectives that recipes with this Compressor call.
template <class Compressor>
inline constexpr byte_collectives byte_collectives_of{.of_codes = sends_codes<Compressor>,
                                                      .of_choices = sends_choices<Compressor>};

/// True if the Communicator's ranks are nodes, and it reports that it cannot broadcast spans of T within a node.
template <class Communicator, class T, class Stream>
inline constexpr bool lacks_broadcast_in_node = requires {
  requires !Communicator::template broadcasts_in_node<T, Stream>;
};

/// Does not compile if a Communicator lacks a collective that recipes with this Compressor call. Otherwise `value` is true.
template <class Communicator, class Stream, class Compressor>
struct suitable_communicator {
  static constexpr bool value = true;

  static_assert(!lacks_broadcast_in_node<Communicator, float, Stream>,
                "slamb: hierarchical_communicator<Intra, Inter> needs an Intra with broadcast(std::span<float>, root, "
                "stream) for the Backend's stream, because the leader broadcasts sums to the ranks of its node");
  static_assert(
      !(sends_codes<Compressor> || sends_choices<Compressor>) ||
          !lacks_broadcast_in_node<Communicator, std::byte, Stream>,
      "slamb: hierarchical_communicator<Intra, Inter> needs an Intra with broadcast(std::span<std::byte>, root, "
      "stream) for the Backend's stream, because the leader broadcasts codes and choices to the ranks of its node");
  static_assert(capability::has_all_reduce_sum<Communicator, float, Stream>,
                "slamb: the Communicator must have all_reduce_sum(std::span<float>, stream) for the Backend's stream");
  static_assert(!quantizer<Compressor> || capability::has_all_to_all<Communicator, std::byte, Stream>,
                "slamb: a quantized exchange needs a Communicator with all_to_all(std::span<const std::byte>, "
                "std::span<std::byte>, stream) for the Backend's stream, and so does sync::partition");
  static_assert(!quantizer<Compressor> || capability::has_all_gather<Communicator, std::byte, Stream>,
                "slamb: a quantized exchange needs a Communicator with all_gather(std::span<const std::byte>, "
                "std::span<std::byte>, stream) for the Backend's stream, and so does sync::partition");
  static_assert(!capability::chained<Compressor> || (capability::has_all_to_all<Communicator, std::byte, Stream> &&
                                                     capability::has_all_gather<Communicator, std::byte, Stream>),
                "slamb: a chain sends codes; it needs a Communicator with all_to_all and all_gather of "
                "std::span<const std::byte> and std::span<std::byte> for the Backend's stream");
  static_assert(!sends_choices<Compressor> || capability::has_broadcast<Communicator, std::byte, Stream>,
                "slamb: a compressor that chooses by value needs a Communicator with broadcast(std::span<std::byte>, "
                "root, stream) for the Backend's stream, because the leader broadcasts its choice");
  static_assert(
      !requires(const Communicator& c) { c.local_size(); } || capability::has_all_reduce_in_node<Communicator, Stream>,
      "slamb: a Communicator with local_size() must have local_rank() too, and all_reduce_in_node(std::span<float>, "
      "stream) for the Backend's stream; otherwise the ranks of a node would diverge");
};

/// Checks at construction that an any_communicator has the collectives that `Compressor` needs, because its type does not show
/// them. Returns it.
/// @throws std::invalid_argument naming the missing collective
template <class Compressor, class Stream>
any_communicator<Stream> suitable(any_communicator<Stream> ranks) {
  const auto require = [&ranks](bool is_called, collective kind, const char* name) {
    if (is_called && !ranks.has(kind))
      throw std::invalid_argument(
          std::string("slamb: this optimizer's Compressor or partition needs a Communicator with ") + name +
          " of bytes; the one in the any_communicator has none");
  };
  require(sends_codes<Compressor>, collective::all_to_all, "all_to_all");
  require(sends_codes<Compressor>, collective::all_gather, "all_gather");
  require(sends_choices<Compressor>, collective::broadcast, "broadcast");
  return ranks;
}

}  // namespace slamb::detail
