#pragma once

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "slamb/core/detail/sentence.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

SLAMB_DECL layout::layout(std::span<const parameter> parameters, double weight_decay, bool takes_types)
    : layout(parameters, weight_decay, takes_types, [](const layout&) {}) {}

SLAMB_DECL void layout::require_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) const {
  if (tensor >= segments_.size())
    throw_sentence({"set_gradient() was given tensor ", tensor, ", but there are ", segments_.size()});
  const segment& s = segments_[tensor];
  if (s.size == 0 || gradient.address() == nullptr) return;
  require_type(gradient, tensor);
  const memory_span own = span_of(gradient.address(), s.size * size_of(gradient.type()), tensor, "gradient", false);
  const auto next =
      std::ranges::partition_point(written_, [&own](const memory_span& w) { return w.last <= own.first; });
  if (next != written_.end() && next->first < own.last) throw_overlap(own, *next);
}

SLAMB_DECL void layout::require_gradients(std::span<const parameter::gradient_pointer> gradients) const {
  require_number(gradients.size(), "set_gradients()", " gradients");
  for (std::size_t i = 0; i < gradients.size(); ++i) require_gradient(i, gradients[i]);
}

SLAMB_DECL void layout::set_pointers(std::span<const parameter::data_pointer> data,
                                     const std::optional<std::span<const parameter::gradient_pointer>>& gradients) {
  require_number(data.size(), "set_parameters()", " pointers");
  if (gradients) require_number(gradients->size(), "set_parameters()", " gradients");
  std::vector<segment> moved = segments_;
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (moved[i].size == 0) continue;
    require(data[i].address() != nullptr, i, {"has null data; it must point to size elements"});
    require(data[i].type() == moved[i].data_type, i,
            {"has ", name_of(data[i].type()), " data now, but it was constructed with ", name_of(moved[i].data_type),
             "; the types of parameters cannot change"});
    require_aligned(data[i].address(), data[i].type(), i, "data");
    moved[i].data = data[i].address();
    if (!gradients) continue;
    if ((*gradients)[i].address() != nullptr) require_type((*gradients)[i], i);
    moved[i].point_at((*gradients)[i]);
  }
  written_ = disjoint_spans(moved);
  segments_ = std::move(moved);
}

SLAMB_DECL void layout::set_weight_decay(std::span<const double> decays) {
  require_number(decays.size(), "set_options()", " weight decays");
  for (std::size_t i = 0; i < decays.size(); ++i) require_non_negative(name(i) + "'s weight_decay", decays[i]);
  for (std::size_t i = 0; i < decays.size(); ++i) segments_[i].weight_decay = static_cast<float>(decays[i]);
}

SLAMB_DECL void layout::reject(std::size_t tensor, std::initializer_list<sentence_part> what) {
  throw_sentence({"tensor ", tensor, " "}, what);
}

SLAMB_DECL void layout::require_types(const parameter& p, std::size_t i) const {
  require_taken(p.data.type(), "data", i);
  require_type(p.gradient, i);
  require(p.size == 0 || p.master == nullptr || p.data.type() != element_type::float32, i,
          {"has a master copy, but its data is float32; only bfloat16 and float16 data have one, so master must be "
           "null"});
  require_aligned(p.data.address(), p.data.type(), i, "data");
  require_aligned(p.master, element_type::float32, i, "master");
}

SLAMB_DECL void layout::require_type(const parameter::gradient_pointer& gradient, std::size_t i) const {
  require_taken(gradient.type(), "gradients", i);
  require_aligned(gradient.address(), gradient.type(), i, "gradient");
}

SLAMB_DECL void layout::require_taken(element_type type, const char* what, std::size_t i) const {
  static constexpr const char* why =
      ", but this optimizer takes float32 alone; give it the Backend slamb::precision::mixed<...>, which takes "
      "float32, bfloat16 and float16";
  require(takes_types_ || type == element_type::float32, i, {"has ", name_of(type), " ", what, why});
}

SLAMB_DECL void layout::require_number(std::size_t given, const char* call, const char* of_what) const {
  if (given != segments_.size())
    throw_sentence({call, " was given ", given, of_what, ", but there are ", segments_.size(), " tensors"});
}

SLAMB_DECL void layout::require_aligned(const void* array, element_type type, std::size_t i, const char* what) {
  const auto address = reinterpret_cast<std::uintptr_t>(array);
  require(address % size_of(type) == 0, i,
          {"has a ", what, " pointer to ", name_of(type), ", whose address is ", std::uint64_t{address},
           "; it must be a multiple of ", std::uint64_t{size_of(type)}});
}

SLAMB_DECL void layout::append(const parameter& p, std::size_t i, double weight_decay) {
  constexpr auto most = std::numeric_limits<std::ptrdiff_t>::max() / sizeof(double);
  require(i < std::numeric_limits<std::uint32_t>::max(), i, {"is one too many: at most 2^32 − 1 tensors"});
  require(p.size == 0 || p.data.address() != nullptr, i, {"has null data; it must point to size elements"});
  require(p.size <= most - elements_, i,
          {"has size ", p.size, ", and the sizes so far add up to ", elements_, "; their sum must be at most ", most});
  require(p.dimensions >= 0, i, {"has dimensions = ", p.dimensions, ", but it must be >= 0"});
  require(p.options.group >= 0 && p.options.group < 65536, i,
          {"has group = ", p.options.group, ", but it must be in [0, 65535]"});
  require(p.options.rows.empty() || p.size % p.options.rows.size() == 0, i,
          {"has ", p.options.rows.size(), " rows, which must divide its size ", p.size});
  require(p.shard < 65536, i, {"has shard = ", p.shard, ", but it must be the number of a shard, or negative"});
  const double decay = p.options.weight_decay.value_or(weight_decay);
  require_non_negative(name(i) + "'s weight_decay", decay);
  require_non_negative(name(i) + "'s learning_rate_factor", p.options.learning_rate_factor);
  segments_.push_back({.data = p.data.address(),
                       .master = p.master,
                       .gradient = p.gradient.address(),
                       .size = p.size,
                       .first = elements_,
                       .rows = p.options.rows,
                       .state = state_elements_,
                       .weight_decay = static_cast<float>(decay),
                       .learning_rate_factor = static_cast<float>(p.options.learning_rate_factor),
                       .group = static_cast<std::uint32_t>(p.options.group),
                       .adapt = p.options.adapt,
                       .dense = !p.options.compress,
                       .one_dimensional = p.dimensions <= 1,
                       .data_type = p.data.type(),
                       .gradient_type = p.gradient.type(),
                       .has_given_master = p.master != nullptr,
                       .has_gradient = p.size == 0 || p.gradient.address() != nullptr,
                       .shard = std::max(p.shard, -1),
                       .whole_size = p.whole_size});
  elements_ += p.size;
  state_elements_ += padded(p.size);
  groups_ = std::max(groups_, static_cast<std::uint32_t>(p.options.group) + 1);
}

SLAMB_DECL layout::memory_span layout::span_of(const void* array, std::uintptr_t bytes, std::size_t tensor,
                                               const char* what, bool written) {
  const auto first = reinterpret_cast<std::uintptr_t>(array);
  require(
      first <= std::numeric_limits<std::uintptr_t>::max() - bytes, tensor,
      {written && std::string_view(what) == "data" ? "has " : "has a ", what, " that reaches past the end of memory"});
  return {first, first + bytes, tensor, what, written};
}

SLAMB_DECL void layout::throw_overlap(const memory_span& own, const memory_span& other) {
  throw_sentence({"the ", own.what, " of tensor ", own.tensor, " overlaps the ", other.what, " of tensor ",
                  other.tensor, "; parameters must not share memory"});
}

SLAMB_DECL std::vector<layout::memory_span> layout::disjoint_spans(std::span<const segment> segments) {
  std::vector<memory_span> spans, all_written;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const segment& s = segments[i];
    if (s.size == 0) continue;
    spans.push_back(span_of(s.data, s.size * size_of(s.data_type), i, "data", true));
    if (s.gradient != nullptr)
      spans.push_back(span_of(s.gradient, s.size * size_of(s.gradient_type), i, "gradient", false));
    if (s.master != nullptr && !s.keeps_master)
      spans.push_back(span_of(s.master, s.size * sizeof(float), i, "master", true));
  }
  std::sort(spans.begin(), spans.end(), [](const memory_span& a, const memory_span& b) { return a.first < b.first; });
  memory_span any{0, 0, 0, "", false};     // the span that reaches furthest so far
  memory_span written{0, 0, 0, "", true};  // likewise among written spans
  for (const memory_span& s : spans) {
    const memory_span& before = s.written ? any : written;
    if (s.first < before.last) throw_overlap(s, before);
    if (s.last > any.last) any = s;
    if (s.written && s.last > written.last) written = s;
    if (s.written) all_written.push_back(s);
  }
  return all_written;
}

SLAMB_DECL layout::layout(std::span<const parameter> parameters, double weight_decay, bool takes_types,
                          function_ref<void(const layout&)> before_tiles)
    : takes_types_(takes_types) {
  segments_.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    require_types(parameters[i], i);
    append(parameters[i], i, weight_decay);
  }
  written_ = disjoint_spans(segments_);
  before_tiles(std::as_const(*this));
  std::vector<tile_cut> dense;
  for (std::size_t i = 0; i < segments_.size(); ++i)
    dense.push_back({static_cast<std::uint32_t>(i), 0, segments_[i].size});
  make_tiles(std::span<const tile_cut>(dense));
}

SLAMB_DECL layout::layout(const layout& whole, std::span<const tensor_part> parts, bool counted)
    : takes_types_(whole.takes_types_), segments_(whole.segments_), groups_(whole.groups_) {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    segment& s = segments_[i];
    s.master = nullptr;
    s.gradient = nullptr;
    s.keeps_master = false;
    s.has_given_master = false;
    s.rows = {};
    s.size = parts[i].count;
    s.first = parts[i].place;
    s.state = state_elements_;
    s.is_counted = counted || parts[i].is_cut;
    elements_ += s.size;
    state_elements_ += padded(s.size);
    cuts_.push_back({static_cast<std::uint32_t>(i), 0, s.size});
  }
  count_tiles();
}

SLAMB_DECL void layout::set_whole(std::span<const whole_tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    segment& s = segments_[i];
    s.whole_size = tensors[i].size;
    s.is_counted = tensors[i].is_counted;
    s.is_copied = tensors[i].is_copied;
    s.is_everywhere = tensors[i].is_everywhere;
    s.dense = s.dense || s.is_copied;
  }
}

SLAMB_DECL void layout::set_types_of_empty(std::size_t tensor, element_type data, bool has_given_master) {
  segment& s = segments_[tensor];
  s.data = nullptr;
  s.master = nullptr;
  s.data_type = data;
  s.has_given_master = has_given_master;
}

SLAMB_DECL void layout::count_tiles() {
  first_tile_.assign(segments_.size() + 1, 0);
  for (const tile_cut& c : cuts_) first_tile_[c.segment + 1] += tiles_in(c.count);
  for (std::size_t i = 0; i < segments_.size(); ++i) first_tile_[i + 1] += first_tile_[i];
}

SLAMB_DECL std::vector<tile> layout::tile_table() const {
  std::vector<tile> all;
  all.reserve(tile_count());
  for (const tile_cut& c : cuts_)
    for (std::uint64_t done = 0; done < c.count; done += tile_size)
      all.push_back(
          {c.first + done, c.segment, static_cast<std::uint32_t>(std::min<std::uint64_t>(tile_size, c.count - done))});
  return all;
}

SLAMB_DECL std::uint64_t layout::elements_of(tile_range tiles) const {
  if (tiles.first == 0 && tiles.last == tile_count()) return elements_;
  std::uint64_t sum = 0, first = 0;
  for (const tile_cut& c : cuts_) {
    const std::uint64_t last = first + tiles_in(c.count);
    const std::uint64_t from = std::max<std::uint64_t>(tiles.first, first),
                        to = std::min<std::uint64_t>(tiles.last, last);
    if (from < to) sum += std::min(c.count, (to - first) * tile_size) - (from - first) * tile_size;
    first = last;
  }
  return sum;
}

SLAMB_DECL void layout::for_each_piece(
    std::uint64_t room, function_ref<void(const tile_range&, std::uint64_t, std::uint64_t)> visit) const {
  tile_range piece{0, 0};
  std::uint64_t begin = 0, elements = 0;
  const auto end_piece = [&] {
    if (elements > 0) visit(piece, begin, elements);
    piece.first = piece.last;
    begin += std::exchange(elements, 0);
  };
  for (const tile_cut& c : cuts_) {
    for (std::uint64_t left = c.count; left > 0;) {
      const std::uint64_t next = std::min<std::uint64_t>(tile_size, left);
      if (elements + next > room) end_piece();
      const std::uint64_t free = std::max(room - std::min(room, elements), next);
      const std::uint64_t taken = left <= free ? left : free / tile_size * tile_size;
      piece.last += tiles_in(taken);
      elements += taken;
      left -= taken;
    }
  }
  end_piece();
}

SLAMB_DECL std::vector<tensor_batch> batches_of(const layout& tensors, std::size_t cache_bytes, std::size_t bytes) {
  std::vector<tensor_batch> all;
  const std::size_t count = tensors.segments().size();
  for (std::size_t first = 0; first < count;) {
    std::size_t last = first, size = 0;
    while (last < count && (last == first || size + tensors.segments()[last].size * bytes <= cache_bytes))
      size += tensors.segments()[last++].size * bytes;
    all.push_back({first, last, {tensors.tiles_of(first).first, tensors.tiles_of(last - 1).last}});
    first = last;
  }
  return all;
}

SLAMB_DECL std::vector<tensor_batch> one_batch_of(const layout& tensors) {
  return {{0, tensors.segments().size(), {0, tensors.tile_count()}}};
}

}  // namespace slamb::detail
