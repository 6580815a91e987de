// The launcher of plans: it counts kernels and their bytes, and runs none of them. Functions on the state of a step do run, so that
// schedules and the number of the step go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "slamb/backend/plan/detail/kernel_bytes.hpp"
#include "slamb/backend/plan/detail/reserved_memory.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/kernel/launcher.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

/// The number of elements that `s` selects of the tensor with element 0 `first`.
template <selection S>
std::uint64_t selected_of(const S& s, coordinate first) {
  if constexpr (capability::has_selected_before<S>) {
    first.index = first.tensor_size;
    return s.selected_before(first);
  } else if constexpr (capability::has_runs<S>) {
    std::uint64_t count = 0;
    s.runs(first, first.tensor_size,
           [&](std::uint64_t, std::uint64_t length, std::uint32_t age) { count += age == 0 ? length : 0; });
    return count;
  } else {
    std::uint64_t count = 0;
    for (; first.index != first.tensor_size; ++first.index) count += s.selects(first) ? 1 : 0;
    return count;
  }
}

/// True for functions that read or write the messages of ranks, which a plan does not send.
template <class Function>
inline constexpr bool works_on_messages =
    std::is_same_v<Function, start_messages> || std::is_same_v<Function, write_overflow_flags> ||
    std::is_same_v<Function, read_overflow_flags> || std::is_same_v<Function, compare_fingerprints> ||
    std::is_same_v<Function, note_received>;

/// True for kernels that a device launches even if no team has tiles: the average of signals reads the overflow flags.
template <class Kernel>
inline constexpr bool works_without_tiles = false;
template <encode_mode Work, class Storage, class Quantizers>
inline constexpr bool works_without_tiles<average_signals<Work, Storage, Quantizers>> = true;

/// The work that has been counted so far.
struct counted_work {
  counted_model model;
  double bytes = 0.0;          ///< of memory traffic
  std::uint64_t launches = 0;  ///< kernels, each invocation of functions among them
  std::uint64_t selected = 0;  ///< elements of the last payload of selected elements
  std::uint64_t chosen = 0;    ///< elements that a data-dependent sparsifier has chosen last
  std::unordered_map<std::uint64_t, std::uint64_t> sizes{};  ///< of payloads, by `size_key` of their selections
};

/// Counts kernels. Memory is the host's.
class planner : public launches_at_once {  // so the state of a step and the sizes of payloads are known
 public:
  explicit planner(counted_work& to) noexcept : to_(&to) {}

  /// Counts for these tensors from now on, or for parts of them, if there have been tensors before. They must outlive the planner.
  /// @param tiles  where the table of tiles would be
  void plan_for(const layout& tensors, const tile* tiles) const {
    if (to_->model.tensors != nullptr) {
      to_->model.parts = &tensors;
      to_->model.tiles_of_parts = tiles;
      return;
    }
    to_->model.tensors = &tensors;
    to_->model.selectable = 0.0;
    for (const segment& s : tensors.segments())
      if (!s.dense) to_->model.selectable += static_cast<double>(s.size);
  }

  template <class Kernel>
  void launch(const Kernel& kernel) const {
    if constexpr (requires { look_at(kernel); }) look_at(kernel);
    if (kernel.work() == 0 && !works_without_tiles<Kernel>) return;
    ++to_->launches;
    to_->bytes += bytes_of(kernel, to_->model);
  }

  /// A device reads the overflow flags of signals in the kernel that averages them.
  template <class... Functions>
  void invoke(const Functions&... functions) const {
    constexpr bool has_no_kernel =
        ((std::is_same_v<Functions, nothing_to_do> || std::is_same_v<Functions, read_overflow_flags>)&&...);
    if constexpr (!has_no_kernel) ++to_->launches;
    (run(functions), ...);
  }

  /// Memory that has not been written is 0 already, and nothing writes large arrays.
  void clear(std::span<std::byte> memory) const noexcept { to_->bytes += static_cast<double>(memory.size()); }

 private:
  // The elements that the leader of this step chooses within each tile. All leaders choose as many.
  template <class Pass, class Compressor, class Precision>
  void look_at(const choose_elements<Pass, Compressor, Precision>& k) const {
    const layout& tensors = *to_->model.tensors;
    const auto chosen_of = [&k](std::uint64_t count) -> std::uint64_t {
      if constexpr (requires { k.compressor.chosen_of(std::uint32_t{}); })
        return count == 0 ? 0 : k.compressor.chosen_of(static_cast<std::uint32_t>(count));
      else
        return largest_payload_of(k.compressor, count);
    };
    to_->chosen = 0;
    for (const tile_cut& cut : tensors.cuts())
      if (!tensors.segments()[cut.segment].dense)
        to_->chosen +=
            cut.count / layout::tile_size * chosen_of(layout::tile_size) + chosen_of(cut.count % layout::tile_size);
  }

  // Of the offsets in a payload, a step reads its size alone. A device finds them by one kernel, not by two, if the selection
  // counts elements itself.
  template <class Selection>
  void look_at(const count_selected_elements<Selection>& k) const {
    to_->selected = size_of_payload(resolved(k.selection));
    to_->model.payload = static_cast<double>(to_->selected);
    k.tile_offsets[k.tiles] = to_->selected;
    if (capability::has_selected_before<resolved_t<Selection>>) --to_->launches;
  }

  template <class Selection>
  std::uint64_t size_of_payload(const Selection& selection) const {
    if constexpr (requires { selection.size_key(); }) {
      const auto [known, is_other] = to_->sizes.try_emplace(selection.size_key(), 0);
      if (is_other) known->second = count_selected(selection);
      return known->second;
    } else {
      return count_selected(selection);
    }
  }

  template <class Selection>
  std::uint64_t count_selected(const Selection& selection) const {
    const std::span<const segment> tensors = to_->model.tensors->segments();
    std::uint64_t all = is_bitmap<Selection> ? to_->chosen : 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].dense)
        all += tensors[i].size;
      else if constexpr (!is_bitmap<Selection>)
        all += selected_of(selection, coordinate_of(tensors[i], static_cast<std::uint32_t>(i), 0));
    }
    return all;
  }

  template <class Function>
  static void run(const Function& function) {
    if constexpr (!works_on_messages<Function>) function();
  }
  template <class First, class Second, class... Rest>
  static void run(const in_order<First, Second, Rest...>& all) {
    run(all.first);
    run(all.rest);
  }
  template <class Last>
  static void run(const in_order<Last>& all) {
    run(all.last);
  }

  counted_work* to_;
};

/// The Backend of plans.
template <class Precision = single_precision>
struct planning_backend {
  using stream_type = host_stream;
  using launcher_type = planner;
  using precision = Precision;

  counted_work* to = nullptr;
  std::size_t cache_bytes = std::numeric_limits<std::size_t>::max();  ///< one batch of tensors, as on a device

  // Of Precisions that round by chance: equal draws cost the same.
  struct {
    std::uint64_t seed = 0;
  } rounding{};

  void validate() const {}
  launcher_type make_launcher(std::uint64_t /*elements*/) const { return planner(*to); }
  allocator make_allocator() const { return reserving_allocator(); }
};

static_assert(backend<planning_backend<>> && backend_launcher<planner>);

}  // namespace slamb::detail
