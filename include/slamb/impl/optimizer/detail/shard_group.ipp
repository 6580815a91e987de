#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "slamb/core/error.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"
#include "slamb/optimizer/detail/shard_group.hpp"

namespace slamb::detail {

SLAMB_DECL void sums_of_parts::plan(optimizer_core& core, among group, int size, std::size_t tensors, int results) {
  group_ = group;
  size_ = size;
  tensors_ = tensors;
  const char* const purpose = group == among::shards ? "shard group" : "sums";
  const std::uint64_t each = std::max<std::uint64_t>(tensors, 1) * static_cast<std::uint64_t>(results);
  own_ = core.memory.plan<double>(purpose, each);
  all_ = core.memory.plan<double>(purpose, static_cast<std::uint64_t>(size) * each);
}

SLAMB_DECL double* sums_of_parts::own(const optimizer_core& core) const noexcept {
  return core.memory.view(own_).data();
}
SLAMB_DECL double* sums_of_parts::all(const optimizer_core& core) const noexcept {
  return core.memory.view(all_).data();
}

SLAMB_DECL void sums_of_parts::gather(optimizer_core& core, std::span<const double> mine, std::span<double> all) const {
  const std::span<const std::byte> sent = std::as_bytes(mine);
  const std::span<std::byte> received = std::as_writable_bytes(all);
  if (group_ == among::shards)
    core.ranks.all_gather_in_shards(sent, received, core.on().stream());
  else
    core.ranks.all_gather(sent, received, core.on().stream());
}

SLAMB_DECL void sums_of_parts::gather(optimizer_core& core, int results) const {
  const std::size_t values = tensors_ * static_cast<std::size_t>(results);
  if (values == 0) return;
  gather(core, core.memory.view(own_).first(values),
         core.memory.view(all_).first(static_cast<std::size_t>(size_) * values));
}

SLAMB_DECL void sums_of_parts::add(optimizer_core& core, double* value) const {
  gather(core, {value, 1}, core.memory.view(all_).first(static_cast<std::size_t>(size_)));
  core.on().invoke({add_shards{all(core), size_, value}});
}

SLAMB_DECL void sums_of_parts::add_on_host(optimizer_core& core, std::span<double> values) const {
  if (values.empty() || core.is_plan()) return;
  const std::span<double> mine = core.memory.view(own_).first(values.size());
  const std::span<double> of_all = core.memory.view(all_).first(static_cast<std::size_t>(size_) * values.size());
  core.on().upload(std::span<const double>(values), mine);
  gather(core, mine, of_all);
  std::vector<double> received(of_all.size());
  core.on().download(std::as_bytes(of_all), std::as_writable_bytes(std::span(received)), core.ranks);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.0;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(size_); ++rank)
      values[i] += received[rank * values.size() + i];
  }
}

// What the ranks of a shard group have of each tensor.
class shard_table {
 public:
  shard_table(const layout& tensors, const summing_ranks& group)
      : ranks_(static_cast<std::size_t>(group.size)), tensors_(tensors.segments().size()) {
    std::vector<std::uint64_t> own;
    for (const segment& s : tensors.segments()) {
      own.push_back(s.size);
      own.push_back(static_cast<std::uint64_t>(std::int64_t{s.shard} + 1));
      own.push_back(2 * static_cast<std::uint64_t>(s.data_type) + (s.has_given_master ? 1 : 0));
    }
    const rank_table of_ranks(group, own);
    for (std::size_t rank = 0; rank < ranks_; ++rank)
      for (std::size_t i = 0; i < tensors_; ++i) {
        sizes_.push_back(of_ranks.sent_word(rank, 3 * i));
        numbers_.push_back(of_ranks.sent_word(rank, 3 * i + 1));
        types_.push_back(of_ranks.sent_word(rank, 3 * i + 2));
      }
  }

  // The types of a tensor: those of the first rank that has elements, or of the first if none has some.
  struct types {
    element_type data;
    bool has_given_master;
  };
  types types_of(std::size_t tensor) const {
    std::size_t rank = 0;
    while (rank < ranks_ && size(rank, tensor) == 0) ++rank;
    const std::uint64_t its = types_[(rank == ranks_ ? 0 : rank) * tensors_ + tensor];
    return {static_cast<element_type>(its / 2), its % 2 != 0};
  }

  // The first rank with the same elements.
  std::size_t holder(std::size_t rank, std::size_t tensor) const {
    std::size_t first = 0;
    while (first != rank && (number(first, tensor) == 0 || number(first, tensor) != number(rank, tensor))) ++first;
    return first;
  }
  whole_tensor whole(std::size_t rank, std::size_t tensor) const {
    whole_tensor all{.is_counted = holder(rank, tensor) == rank};
    for (std::size_t r = 0; r < ranks_; ++r) {
      const bool is_counted = holder(r, tensor) == r;
      if (is_counted) all.size += size(r, tensor);
      if (!is_counted) all.is_copied = true;
      if (size(r, tensor) == 0) all.is_everywhere = false;
    }
    return all;
  }
  // The parts of a tensor, in the order of their numbers; parts that no other rank has are in the order of ranks.
  std::vector<shard_group::piece> pieces(std::size_t tensor) const {
    std::vector<std::pair<std::uint64_t, shard_group::piece>> all;
    for (std::size_t r = 0; r < ranks_; ++r)
      if (holder(r, tensor) == r)
        all.push_back({number(r, tensor) == 0 ? r : number(r, tensor) - 1, {r, 0, size(r, tensor)}});
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<shard_group::piece> pieces;
    std::uint64_t first = 0;
    for (auto& [unused, next] : all) {
      next.first = std::exchange(first, first + next.size);
      pieces.push_back(next);
    }
    return pieces;
  }

  // What is wrong with this rank's part of a tensor; empty: nothing.
  // @param whole_size  elements of the whole tensor; 0: not given
  std::string wrong(std::size_t rank, std::size_t tensor, std::uint64_t whole_size) const {
    if (number(rank, tensor) > ranks_)
      return "has shard = " + std::to_string(number(rank, tensor) - 1) + ", but the shard group has " +
             std::to_string(ranks_) + " ranks; parameter::shard must be less, or negative";
    for (std::size_t other = 0; other < ranks_; ++other)
      if (size(rank, tensor) > 0 && size(other, tensor) == size(rank, tensor) && number(rank, tensor) == 0 &&
          number(other, tensor) > 0)
        return "has no parameter::shard, but shard rank " + std::to_string(other) +
               " has as many elements of it, and shard = " + std::to_string(number(other, tensor) - 1) +
               "; give a number on both ranks, or on neither";
    const std::size_t first = holder(rank, tensor);
    if (size(first, tensor) != size(rank, tensor))
      return "has " + std::to_string(size(rank, tensor)) + " elements and the number " +
             std::to_string(number(rank, tensor) - 1) + " of a shard that has " + std::to_string(size(first, tensor)) +
             " elements on shard rank " + std::to_string(first) +
             "; ranks with the same parameter::shard must have the same elements";
    if (const std::uint64_t all = whole(rank, tensor).size; whole_size != 0 && whole_size != all)
      return "has whole_size = " + std::to_string(whole_size) + ", but its shards have " + std::to_string(all) +
             " elements in all; give the optimizer the ranks that hold the whole tensor as shard group, and tell "
             "copies of the same elements by parameter::shard";
    return {};
  }

 private:
  std::uint64_t size(std::size_t rank, std::size_t tensor) const { return sizes_[rank * tensors_ + tensor]; }
  std::uint64_t number(std::size_t rank, std::size_t tensor) const { return numbers_[rank * tensors_ + tensor]; }

  std::size_t ranks_, tensors_;
  std::vector<std::uint64_t> sizes_;    // [ranks][tensors]
  std::vector<std::uint64_t> numbers_;  // [ranks][tensors] parameter::shard + 1; 0: no other rank has these elements
  std::vector<std::uint64_t> types_;    // [ranks][tensors] 2 · type of the parameters, + 1 with a master of the caller
};

// Throws on all ranks if one of them has a tensor that cannot be right.
SLAMB_DECL void require_right_shards(const shard_table& table, std::span<const segment> tensors, std::size_t rank,
                                     const summing_ranks& all) {
  std::uint64_t first = 0;
  std::string wrong;
  for (std::size_t i = 0; i < tensors.size() && wrong.empty(); ++i)
    if (wrong = table.wrong(rank, i, tensors[i].whole_size); !wrong.empty()) first = i + 1;
  const rank_table of_ranks(all, std::span(&first, 1), 2);
  for (std::size_t r = 0; r < static_cast<std::size_t>(all.size); ++r) {
    const std::uint64_t found = of_ranks.sent_word(r, 0);
    if (found == 0) continue;
    synchronize_before_throwing(all);
    throw rank_mismatch_error(
        "slamb: tensor " + std::to_string(wrong.empty() ? found - 1 : first - 1) + " " +
        (wrong.empty() ? "of " + all.name_of(r) + " does not fit those of its shard group; that rank says why"
                       : wrong));
  }
}

SLAMB_DECL void shard_group::find(optimizer_core& core) {
  size_ = core.ranks.shard_size();
  tensors_ = std::as_const(core.tensors).segments().size();
  const auto rank = static_cast<std::size_t>(core.ranks.shard_rank());
  if (size_ < 1 || core.ranks.shard_rank() < 0 || core.ranks.shard_rank() >= size_)
    throw std::invalid_argument("slamb: the communicator says it is shard " + std::to_string(core.ranks.shard_rank()) +
                                " of " + std::to_string(size_) + "; shards must be 0 … size − 1");
  const std::span<const segment> tensors = std::as_const(core.tensors).segments();
  std::vector<whole_tensor> whole;
  if (!exists()) {
    for (std::size_t i = 0; i < tensors_; ++i) {
      const segment& s = tensors[i];
      constexpr const char* remedy =
          ", but the Communicator has no shard group; give the optimizer a sharded_communicator";
      if (s.shard > 0) throw_sentence({"tensor ", i, " has shard = ", std::uint64_t(s.shard), remedy});
      if (s.whole_size != 0 && s.whole_size != s.size)
        throw_sentence({"tensor ", i, " has ", s.size, " elements and whole_size = ", s.whole_size, remedy});
      whole.push_back({.size = s.size});
    }
    return core.tensors.set_whole(whole);
  }
  if (core.is_plan()) {  // all shards are as large as this one
    for (const segment& s : tensors)
      whole.push_back({.size = s.whole_size != 0 ? s.whole_size
                               : s.shard < 0     ? s.size * static_cast<std::uint64_t>(size_)
                                                 : s.size,
                       .is_copied = s.shard >= 0});
    return core.tensors.set_whole(whole);
  }
  const host_ranks ranks(core.ranks.wrapped(), core.on());
  require_equal_shard_groups(ranks.in_shards(), ranks.inter_node());
  const summing_ranks all = ranks.all();
  consistency_check("", tensors_).require(all);
  const shard_table table(core.tensors, ranks.in_shards());
  require_right_shards(table, tensors, rank, all);
  for (std::size_t i = 0; i < tensors_; ++i) {
    whole.push_back(table.whole(rank, i));
    has_copies_ = has_copies_ || whole.back().is_copied;
    if (!whole.back().is_everywhere && whole.back().size > 0) partly_.push_back(i);
    pieces_.push_back(table.pieces(i));
    own_pieces_.push_back(*std::ranges::find(pieces_.back(), table.holder(rank, i), &piece::rank));
    const shard_table::types its = table.types_of(i);
    if (tensors[i].size == 0) core.tensors.set_types_of_empty(i, its.data, its.has_given_master);
  }
  core.tensors.set_whole(whole);
  if (!has_copies_) return;
  for (std::size_t r = 0; r < static_cast<std::size_t>(size_); ++r)
    for (std::size_t i = 0; i < tensors_; ++i) holders_.push_back(static_cast<std::uint32_t>(table.holder(r, i)));
}

SLAMB_DECL void shard_group::plan(optimizer_core& core, int results) {
  if (!exists()) return;
  sums_.plan(core, sums_of_parts::among::shards, size_, tensors_, results);
  const std::uint64_t message = read_shard_messages::words_of_message + 2 * words();
  own_message_ = core.memory.plan<std::uint64_t>("shard group", message);
  messages_ = core.memory.plan<std::uint64_t>("shard group", static_cast<std::uint64_t>(size_) * message);
  own_holders_ = core.memory.plan<std::uint32_t>("shard group", has_copies_ ? tensors_ : 0);
  own_partly_ = core.memory.plan<std::uint32_t>("shard group", partly_.size());
  if (!has_copies_) return;
  std::uint64_t elements = 0, tiles = 0;
  for (std::size_t i = 0; i < tensors_; ++i) {
    const segment& s = std::as_const(core.tensors).segments()[i];
    const tile_range its = core.tensors.tiles_of(i);
    if (!s.is_copied) continue;
    elements += s.whole_size;
    tiles += its.last - its.first;
    if (s.is_counted) counted_tiles_ += its.last - its.first;
  }
  copied_segments_ = core.memory.plan<segment>("shard group", tensors_);
  copied_tiles_ = core.memory.plan<tile>("shard group", tiles);
  copies_ = core.memory.plan<float>("shard group", elements);
}

// Those that this rank counts come first.
SLAMB_DECL std::vector<tile> shard_group::tiles_of_copies(const optimizer_core& core) {
  std::vector<tile> all;
  const std::vector<tile> tiles = core.tensors.tile_table();
  for (const bool is_counted : {true, false})
    for (const tile& t : tiles)
      if (const segment& s = core.tensors.segments()[t.segment]; s.is_copied && s.is_counted == is_counted)
        all.push_back(t);
  return all;
}

SLAMB_DECL void shard_group::point_at_tensors(const optimizer_core& core) const {
  if (copies_.count == 0) return;
  const std::span<const segment> tensors = std::as_const(core.tensors).segments();
  std::vector<segment> table(tensors.begin(), tensors.end());
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!table[i].is_copied) continue;
    table[i].first = place + own_pieces_[i].first;
    place += table[i].whole_size;
  }
  core.on().upload(std::span<const segment>(table), core.memory.view(copied_segments_));
}

SLAMB_DECL void shard_group::align_after_step(optimizer_core& core) {
  core.has_half_step = copies_.count > 0;
  align(core, &core.record()->was_skipped);
  core.has_half_step = false;
}

SLAMB_DECL void shard_group::align_copies(optimizer_core& core) {
  begin_update();
  align(core, nullptr);
}

SLAMB_DECL void shard_group::align(optimizer_core& core, const std::uint32_t* skip) {
  if (copies_.count > 0) {
    const std::span<float> copies = core.memory.view(copies_);
    any_view model = core.whole_view();
    model.skip = skip;
    model.segments = core.memory.view(copied_segments_).data();
    model.tiles = core.memory.view(copied_tiles_).data();
    model.exchanged = copies.data();
    core.on().clear(std::as_writable_bytes(copies));
    core.on().run(gather_parameters{}, model, {0, counted_tiles_});
    core.ranks.all_reduce_in_shards(copies, core.on().stream());
    core.on().run(scatter_parameters{}, model, {0, copied_tiles_.count});
  }
  end_update();
}

SLAMB_DECL void shard_group::start(const optimizer_core& core) const {
  tell_gradients(core);
  core.on().upload(std::span<const std::uint32_t>(std::vector<std::uint32_t>(partly_.begin(), partly_.end())),
                   core.memory.view(own_partly_));
  if (!has_copies_) return;
  const auto rank = static_cast<std::size_t>(core.ranks.shard_rank());
  core.on().upload(std::span(holders_).subspan(rank * tensors_, tensors_), core.memory.view(own_holders_));
  if (copies_.count == 0) return;
  point_at_tensors(core);
  core.on().upload(std::span<const tile>(tiles_of_copies(core)), core.memory.view(copied_tiles_));
}

SLAMB_DECL void shard_group::agree(optimizer_core& core, shard_call call) const {
  if (!exists()) return;
  const std::span<std::uint64_t> own = core.memory.view(own_message_), all = core.memory.view(messages_);
  core.on().invoke({write_shard_message{core.record(), reinterpret_cast<shard_message*>(own.data()),
                                        static_cast<std::uint64_t>(call)}});
  const std::span<const std::byte> mine = std::as_bytes(own);
  const std::span<std::byte> of_all = std::as_writable_bytes(all);
  if (call == shard_call::first_comparison)
    core.ranks.compare_in_shards(mine, of_all, core.on().stream());
  else
    core.ranks.all_gather_in_shards(mine, of_all, core.on().stream());
  core.on().invoke(
      {read_shard_messages{core.record(), all.data(), size_, static_cast<std::uint32_t>(words()), core.segments(),
                           core.memory.view(own_partly_).data(), static_cast<std::uint32_t>(partly_.size()),
                           static_cast<std::uint32_t>(core.ranks.rank()), call == shard_call::local_step}});
}

SLAMB_DECL void shard_group::tell_gradients(const optimizer_core& core) const {
  if (partly_.empty()) return;
  std::vector<std::uint64_t> bits(2 * words(), 0);
  for (std::size_t i = 0; i < partly_.size(); ++i) {
    const segment& s = std::as_const(core.tensors).segments()[partly_[i]];
    if (s.size > 0) bits[(s.has_gradient ? 0 : words()) + i / 64] |= std::uint64_t{1} << (i % 64);
  }
  core.on().upload(std::span<const std::uint64_t>(bits),
                   core.memory.view(own_message_).subspan(read_shard_messages::words_of_message));
}

SLAMB_DECL void shard_group::compare(optimizer_core& core, std::span<const double> sums) const {
  const std::span<double> own(sums_.own(core), tensors_);
  const std::span<double> all(sums_.all(core), static_cast<std::size_t>(size_) * tensors_);
  core.on().add_up_tensors(core.unskipped_view(), sums, own);
  core.ranks.compare_in_shards(std::as_bytes(own), std::as_writable_bytes(all), core.on().stream());
  core.on().invoke({compare_copies{core.record(), own.data(), all.data(), core.memory.view(own_holders_).data(),
                                   tensors_, static_cast<std::uint32_t>(core.ranks.rank())}});
}

SLAMB_DECL void shard_group::compare_gradients(optimizer_core& core) const {
  const std::span<double> own(sums_.own(core), 2 * tensors_);
  const std::span<double> all(sums_.all(core), static_cast<std::size_t>(size_) * own.size());
  for (const bool is_signed : {true, false}) {
    core.on().run(projection_of_gradient{{}, is_signed}, core.unskipped_view(), core.all_tiles(), core.sums());
    core.on().add_up_tensors(core.unskipped_view(), core.sum_of_each_tile(),
                             own.subspan(is_signed ? 0 : tensors_, tensors_));
  }
  core.has_half_step = true;
  core.ranks.compare_in_shards(std::as_bytes(own), std::as_writable_bytes(all), core.on().stream());
  core.has_half_step = false;
  core.on().invoke({compare_gradients_of_copies{core.record(), own.data(), all.data(),
                                                core.memory.view(own_holders_).data(), core.unskipped_view().segments,
                                                tensors_, static_cast<std::uint32_t>(core.ranks.rank())}});
}

}  // namespace slamb::detail
