#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/parameter_average.hpp"
#include "slamb/optimizer/detail/state_of_shards.hpp"

namespace slamb::detail {

SLAMB_DECL void state_of_shards::allocate() {
  constexpr std::uint64_t piece = std::uint64_t{1} << 20U;
  mine_ = memory_.plan<std::byte>("shards", piece);
  all_ = memory_.plan<std::byte>("shards", piece * static_cast<std::uint64_t>(core_.shards.size()));
  allocate_on_all_ranks(
      core_, "save_state()", [this] { memory_.allocate(core_.memory_source()); }, calling_ranks::of_shard_group);
}

SLAMB_DECL std::uint64_t state_of_shards::bytes_of(const of_elements& part) const {
  const std::span<const segment> tensors = std::as_const(core_.tensors).segments();
  if (part.tensor != of_elements::all_tensors) return tensors[part.tensor].whole_size * part.bytes;
  std::uint64_t elements = 0;
  for (const segment& s : tensors) elements += layout::padded(s.whole_size);
  return elements * part.bytes;
}

SLAMB_DECL void state_of_shards::visit_own(
    const of_elements& part, function_ref<void(std::uint64_t, std::uint64_t, std::uint64_t)> visit) const {
  const std::span<const segment> tensors = std::as_const(core_.tensors).segments();
  const auto visit_tensor = [&](std::size_t i, std::uint64_t whole, std::uint64_t own) {
    visit((whole + core_.shards.own_piece(i).first) * part.bytes, own * part.bytes, tensors[i].size * part.bytes);
  };
  if (part.tensor != of_elements::all_tensors) return visit_tensor(part.tensor, 0, 0);
  std::uint64_t whole = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    visit_tensor(i, whole, tensors[i].state);
    whole += layout::padded(tensors[i].whole_size);
  }
}

SLAMB_DECL void state_of_shards::gather(const of_elements& part, std::span<const std::byte> own,
                                        function_ref<void(std::span<const std::byte>)> take) const {
  if (part.tensor != of_elements::all_tensors) return gather_tensor(part.tensor, part.bytes, own, take);
  const std::span<const segment> tensors = std::as_const(core_.tensors).segments();
  const std::vector<std::byte> padding(layout::state_alignment * part.bytes);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const segment& s = tensors[i];
    gather_tensor(i, part.bytes, own.subspan(s.state * part.bytes, s.size * part.bytes), take);
    take(std::span(padding).first((layout::padded(s.whole_size) - s.whole_size) * part.bytes));
  }
}

SLAMB_DECL bool state_of_shards::is_first() const { return core_.ranks.shard_rank() == 0; }

// Its pieces in order. Each is gathered from the rank that has it, in parts that fit the memory; the others send what is there.
SLAMB_DECL void state_of_shards::gather_tensor(std::size_t tensor, std::size_t bytes, std::span<const std::byte> own,
                                               function_ref<void(std::span<const std::byte>)> take) const {
  const std::span<std::byte> mine = memory_.view(mine_), all = memory_.view(all_);
  const auto shards = static_cast<std::size_t>(core_.shards.size());
  std::vector<std::byte> some;
  for (const shard_group::piece& piece : core_.shards.pieces_of(tensor)) {
    const bool is_own = piece.rank == static_cast<std::size_t>(core_.ranks.shard_rank());
    const std::size_t size = piece.size * bytes;
    for (std::size_t done = 0; done < size; done += mine.size()) {
      some.resize(std::min(mine.size(), size - done));
      if (is_own) {
        core_.on().download(own.subspan(done, some.size()), some, core_.ranks);
        core_.on().upload_bytes(some, mine.first(some.size()));
      }
      core_.ranks.wrapped().all_gather_in_shards(mine.first(some.size()), all.first(shards * some.size()),
                                                 core_.on().stream());
      if (!is_first()) continue;
      core_.on().download(all.subspan(piece.rank * some.size(), some.size()), some, core_.ranks);
      take(some);
    }
  }
}

}  // namespace slamb::detail
