// Which elements take part in a compressed exchange: all, or those that neither a row mask nor a variance of zero leaves
// out. What is left out has no part in scales, results and errors: docs/algorithms/one_bit_exchange.md, "Masks".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/core/arena.hpp"
#include "slamb/core/coded_pass.hpp"
#include "slamb/core/layout.hpp"
#include "slamb/exchange/wire_layout.hpp"

namespace slamb {

/// One bit for each code of all messages, if any element is left out; and how many take part in each tile.
class counted_elements {
 public:
  template <class Base>
  void plan(Base& base, const wire_layout& wire, bool zero_aware) {
    exists_ = zero_aware;
    std::size_t rows = 0;
    for (const segment& s : std::as_const(base.tensors).segments()) rows += s.rows.size();
    exists_ = exists_ || rows > 0;
    zero_aware_ = zero_aware;
    counts_ = base.memory.template plan<std::uint64_t>("tables", base.tensors.tiles().size());
    if (!exists_) return;
    bits_ = base.memory.template plan<std::uint16_t>("mask", wire.ranks() * wire.codes() / wire_layout::code_unit);
    rows_ = base.memory.template plan<std::uint8_t>("mask", rows);
    masks_ = base.memory.template plan<row_mask>("mask", base.tensors.segments().size());
  }

  /// Copies the row masks to the backend's memory.
  template <class Base>
  void upload(Base& base) const {
    if (!exists_) return;
    std::vector<row_mask> masks;
    std::size_t first = 0;
    for (const segment& s : std::as_const(base.tensors).segments()) {
      const std::span<std::uint8_t> to = base.memory.view(rows_).subspan(first, s.rows.size());
      base.executor.upload(s.rows, to);
      masks.push_back({to.data(), to.size()});
      first += to.size();
    }
    base.executor.upload(std::span<const row_mask>(masks), base.memory.view(masks_));
  }

  /// Finds them anew; where that depends on it, by the variance as it now is.
  template <class Base>
  void find(Base& base, const wire_view& wire) const {
    base.executor.mark_counted(base.view(), wire, base.all_tiles(), base.memory.view(masks_).data(), zero_aware_,
                               exists_ ? base.memory.view(bits_).data() : nullptr, base.memory.view(counts_).data());
  }

  /// For wire_view::counted.
  template <class Base>
  const std::uint16_t* bits(const Base& base) const noexcept {
    return exists_ ? base.memory.view(bits_).data() : nullptr;
  }
  /// [tiles] how many elements take part, in the backend's memory.
  template <class Base>
  const std::uint64_t* counts(const Base& base) const noexcept {
    return base.memory.view(counts_).data();
  }

 private:
  bool exists_ = false;
  bool zero_aware_ = false;
  region<std::uint16_t> bits_;
  region<std::uint8_t> rows_;
  region<row_mask> masks_;
  region<std::uint64_t> counts_;
};

}  // namespace slamb
