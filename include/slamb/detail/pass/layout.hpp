// Divides tensors into segments and tiles, so that one pass covers all tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/core/detail/sentence.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/parameter.hpp"

namespace slamb::detail {

/// One tensor, as passes see it. Trivially copyable; on a device it is in device memory.
struct segment {
  void* data = nullptr;            ///< [size] the user's parameters, of data_type
  float* master = nullptr;         ///< [size] the parameters that passes read; null: these are `data`
  const void* gradient = nullptr;  ///< [size] of gradient_type
  std::uint64_t size = 0;
  std::uint64_t first = 0;               ///< of its elements, with all tensors laid end to end
  std::span<const std::uint8_t> rows{};  ///< tensor_options::rows, in host memory; read by the constructor alone
  std::uint64_t state = 0;  ///< of its elements in the state arrays, where tensors start at multiples of 16
  float weight_decay = 0.0F;
  float learning_rate_factor = 1.0F;
  std::uint32_t group = 0;
  bool adapt = true;
  bool dense = false;  ///< always exchanged dense
  bool one_dimensional = false;
  element_type data_type = element_type::float32;
  element_type gradient_type = element_type::float32;
  bool keeps_master = false;  ///< `master` is in the optimizer's memory
  /// The caller has the master copies. Of a shard without elements: of those that have some, whatever `master` is here.
  bool has_given_master = false;
  bool has_gradient = true;   ///< false: `gradient` of the user is null, and steps leave the tensor as it is
  bool is_counted = true;     ///< false: a lower rank of the shard group has the same elements, and counts them
  bool is_copied = false;     ///< some ranks of the shard group have the same elements
  bool is_everywhere = true;  ///< all ranks of the shard group have elements of the tensor
  std::int32_t shard = -1;    ///< parameter::shard
  std::uint64_t whole_size =
      0;  ///< elements of the whole tensor, of which these may be a shard; `shard_group` finds it

  void point_at(const parameter::gradient_pointer& other) noexcept {
    gradient = other.address();
    gradient_type = other.type();
    has_gradient = size == 0 || gradient != nullptr;
  }
  bool is_at(const parameter::gradient_pointer& other) const noexcept {
    return gradient == other.address() && gradient_type == other.type();
  }

  /// Of the parameters that passes read.
  element_type type_of_parameters() const noexcept {
    return keeps_master || has_given_master ? element_type::float32 : data_type;
  }
};

/// A piece of one tensor: the unit of work, and of the fixed order of sums.
struct tile {
  std::uint64_t first = 0;  ///< element of the tensor
  std::uint32_t segment = 0;
  std::uint32_t count = 0;
};

/// A part of one tensor that tiles must not cross.
struct tile_cut {
  std::uint32_t segment = 0;
  std::uint64_t first = 0;  ///< element of the tensor
  std::uint64_t count = 0;
};

/// A range of tiles.
struct tile_range {
  std::size_t first = 0;
  std::size_t last = 0;
};

/// A tensor of which ranks hold shards.
struct whole_tensor {
  std::uint64_t size = 0;                                           ///< elements of all shards, without copies
  bool is_counted = true, is_copied = false, is_everywhere = true;  ///< as in `segment`, of the rank that asks
};

/// The part of a tensor that a rank updates, where each rank updates a part of the model.
struct tensor_part {
  std::uint64_t first = 0;  ///< element of the tensor
  std::uint64_t count = 0;  ///< elements; 0: none
  std::uint64_t place = 0;  ///< of the first one in the buffer of gradients
  bool is_cut = true;       ///< false: all ranks have the whole tensor
};

/// The tables of segments and tiles.
class layout {
 public:
  static constexpr std::uint32_t tile_size = 8192;      ///< elements
  static constexpr std::uint64_t state_alignment = 16;  ///< elements: 64 bytes

  /// Elements that a tensor takes in a state array.
  static constexpr std::uint64_t padded(std::uint64_t size) noexcept {
    return (size + state_alignment - 1) / state_alignment * state_alignment;
  }

  layout() = default;

  /// @param takes_types  parameters and gradients may have sixteen bits
  /// @throws std::invalid_argument for null spans, sizes that overflow, options out of range, overlapping or misaligned spans,
  ///         types and masters that do not fit
  layout(std::span<const parameter> parameters, double weight_decay, bool takes_types = false);

  /// @param before_tiles  called with this object before tiles are made; may throw
  layout(std::span<const parameter> parameters, double weight_decay, bool takes_types,
         function_ref<void(const layout&)> before_tiles);

  /// The parts of the tensors of `whole` that a rank updates, as a model of its own. Pointers to parameters are the caller's to set.
  /// @param parts    [tensors]
  /// @param counted  false: another rank counts the elements of tensors that are not cut
  layout(const layout& whole, std::span<const tensor_part> parts, bool counted);

  /// Makes the tiles again, from these parts of tensors, which cover all elements in order.
  template <class Cut>
  void make_tiles(std::span<const Cut> cuts) {
    cuts_.assign(cuts.begin(), cuts.end());
    count_tiles();
  }

  std::span<const segment> segments() const noexcept { return segments_; }
  std::span<segment> segments() noexcept { return segments_; }
  std::span<const tile_cut> cuts() const noexcept { return cuts_; }
  std::size_t tile_count() const noexcept { return first_tile_.back(); }
  /// The table of all tiles, 16 bytes each.
  std::vector<tile> tile_table() const;

  std::uint64_t elements() const noexcept { return elements_; }              ///< d, of all tensors
  std::uint64_t state_elements() const noexcept { return state_elements_; }  ///< with padding
  std::uint32_t groups() const noexcept { return groups_; }

  /// @throws std::invalid_argument if there is no such tensor, or `gradient` is misaligned, of a type that the optimizer does not
  ///         take, or overlaps memory that the optimizer writes
  void require_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) const;

  /// @throws std::invalid_argument if `gradients` and tensors differ in number, or as `require_gradient`.
  void require_gradients(std::span<const parameter::gradient_pointer> gradients) const;

  /// Tells what is known of the whole tensors, [tensors]. Those of which ranks hold copies are always exchanged dense.
  void set_whole(std::span<const whole_tensor> tensors);

  /// Gives a shard without elements the type of the others of its tensor, and says whether those have master copies of the caller's.
  void set_types_of_empty(std::size_t tensor, element_type data, bool has_given_master);

  /// Points all tensors at other parameters, and at other gradients if some are given.
  /// @throws std::invalid_argument if they and the tensors differ in number, if `data` differ in type, or as the constructor:
  ///         nothing has changed then
  void set_pointers(std::span<const parameter::data_pointer> data,
                    const std::optional<std::span<const parameter::gradient_pointer>>& gradients);

  /// Sets the weight decays of all tensors.
  /// @throws std::invalid_argument if they and the tensors differ in number, or one is out of range: nothing has changed then
  void set_weight_decay(std::span<const double> decays);

  /// The number of each tensor's first tile, then the number of all tiles.
  std::span<const std::size_t> first_tiles() const noexcept { return first_tile_; }

  /// The tiles of a tensor.
  tile_range tiles_of(std::size_t segment) const noexcept { return {first_tile_[segment], first_tile_[segment + 1]}; }

  /// The elements of consecutive tiles.
  std::uint64_t elements_of(tile_range tiles) const;

  /// Divides all tiles into consecutive pieces of at most `room` elements, but at least one tile.
  /// @param visit  visit(tiles, place of their first element, with all tensors laid end to end, elements), in order
  void for_each_piece(std::uint64_t room,
                      function_ref<void(const tile_range&, std::uint64_t, std::uint64_t)> visit) const;

  /// Place of a tensor's first element, with all tensors laid end to end; for the number of tensors, the end of the last.
  std::uint64_t first_element(std::size_t tensor) const noexcept {
    return tensor == segments_.size() ? elements_ : segments_[tensor].first;
  }
  /// The tiles of a part of a tensor.
  static constexpr std::uint64_t tiles_in(std::uint64_t elements) noexcept {
    return (elements + tile_size - 1) / tile_size;
  }
  /// Place of the tile's first element.
  std::uint64_t first_element(const tile& t) const noexcept { return segments_[t.segment].first + t.first; }

 private:
  static std::string name(std::size_t tensor) { return "tensor " + std::to_string(tensor); }

  static void require(bool holds, std::size_t tensor, std::initializer_list<sentence_part> what) {
    if (!holds) reject(tensor, what);
  }
  [[noreturn]] static void reject(std::size_t tensor, std::initializer_list<sentence_part> what);

  void require_types(const parameter& p, std::size_t i) const;

  void require_type(const parameter::gradient_pointer& gradient, std::size_t i) const;

  void require_taken(element_type type, const char* what, std::size_t i) const;

  void require_number(std::size_t given, const char* call, const char* of_what) const;

  static void require_aligned(const void* array, element_type type, std::size_t i, const char* what);

  void append(const parameter& p, std::size_t i, double weight_decay);

  void count_tiles();

  // Memory of the user's that belongs to a tensor.
  struct memory_span {
    std::uintptr_t first, last;
    std::size_t tensor;
    const char* what;
    bool written;
  };

  static memory_span span_of(const void* array, std::uintptr_t bytes, std::size_t tensor, const char* what,
                             bool written);

  [[noreturn]] static void throw_overlap(const memory_span& own, const memory_span& other);

  // Parameters are written, so they may share memory with no other span; gradients may share among themselves. Returns the
  // user's memory that steps write.
  static std::vector<memory_span> disjoint_spans(std::span<const segment> segments);

  bool takes_types_ = false;
  std::vector<segment> segments_;
  std::vector<memory_span> written_;  // the user's memory that steps write, in the order of its addresses
  std::vector<tile_cut> cuts_;
  std::vector<std::size_t> first_tile_{0};
  std::uint64_t elements_ = 0;
  std::uint64_t state_elements_ = 0;
  std::uint32_t groups_ = 1;
};

/// Tensors first … last − 1, and their tiles.
struct tensor_batch {
  std::size_t first, last;
  tile_range tiles;
};

/// Divides all tensors into batches that fit the cache, in order. A larger tensor is a batch of its own.
///
/// @param bytes  bytes of an element that the passes touch
std::vector<tensor_batch> batches_of(const layout& tensors, std::size_t cache_bytes, std::size_t bytes);

/// All tensors in one batch, for steps with one pass.
std::vector<tensor_batch> one_batch_of(const layout& tensors);

/// True if a tensor of `size` elements is exchanged dense at every step.
///
/// @param compress  tensor_options::compress
/// @param dense_below  tensors of fewer elements are exchanged dense
constexpr bool is_sent_dense(std::uint64_t size, bool one_dimensional, bool compress,
                             std::uint64_t dense_below) noexcept {
  return !compress || one_dimensional || size < dense_below;
}

/// The most elements that `c` selects at any step from a tensor of `size`.
template <compressor C>
constexpr std::uint64_t largest_payload_of(const C& c, std::uint64_t size) noexcept {
  if constexpr (requires { c.largest_payload(size); })
    return c.largest_payload(size);
  else
    return size;
}

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/pass/layout.ipp"
#endif
