// The machine of a Backend: its launcher, behind the interface that the core calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "slamb/core/allocator.hpp"
#include "slamb/core/detail/any_stream.hpp"
#include "slamb/core/detail/call_scope.hpp"
#include "slamb/core/detail/collectives.hpp"
#include "slamb/detail/kernel/launcher.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/machine.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/detail/runtime/late_read.hpp"
#include "slamb/detail/runtime/side_stream.hpp"

namespace slamb::detail {

/// The allocator of a backend: the user's, or the backend's own.
template <class Backend>
allocator allocator_of(const Backend& backend) {
  if constexpr (requires { backend.make_allocator(); })
    return backend.make_allocator();
  else
    return backend.memory;
}

template <class Launcher, class Stream>
class late_flag_on final : public late_flag {
 public:
  explicit late_flag_on(const Launcher& launcher) : launcher_(launcher), late_(launcher.stream()) {}

  void start(const std::uint32_t* from) override { launcher_.read_later(from, late_); }
  std::uint32_t finish(const stream_waiter& ranks) override {
    ranks.wait(late_.stream());
    return late_.finish();
  }

 private:
  const Launcher& launcher_;
  late_read<Stream, std::uint32_t> late_;
};

template <class Stream>
class side_sums_on final : public side_sums {
  struct sum_over_ranks {
    counted_collectives* ranks;
    std::span<float> values;

    void operator()(Stream stream) const { ranks->all_reduce_sum(values, stream); }
  };

 public:
  side_sums_on(Stream beside, counted_collectives& ranks, std::size_t most) : ranks_(&ranks), side_(beside, most) {}

  void start(std::span<float> values) override { side_.start({ranks_, values}); }
  void join() override { side_.join(); }

 private:
  counted_collectives* ranks_;
  side_stream<Stream, sum_over_ranks> side_;
};

/// The kernel, which the member of a machine hides. nvcc 13.0 does not take its qualified name there.
using kernel_of_add_up = add_up;

/// Owns the launcher, by which recipes run their own passes.
template <class Backend>
class machine_on final : public machine {
 public:
  using launcher_type = typename Backend::launcher_type;
  using stream_type = typename Backend::stream_type;
  using precision = typename precision_of<Backend>::type;
  /// True for the planner, whose kernels do not run.
  static constexpr bool is_plan = requires(const launcher_type& launcher, const layout& tensors) {
    launcher.plan_for(tensors, nullptr);
  };

  static_assert(backend_launcher<launcher_type>,
                "slamb: the launcher of a Backend must have the members of detail::backend_launcher "
                "(slamb/detail/kernel/launcher.hpp), as the launchers of host_backend and cuda_backend have");
#if defined(SLAMB_DEVICE_COMPILER)
  static_assert(!launcher_type::is_synchronous || is_plan,
                "slamb: compile optimizers on the host backend in a .cpp file, because nvcc rejects vectors in "
                "functions that are also for the device");
#endif

  /// @param elements  of the model
  machine_on(Backend backend, std::uint64_t elements)
      : machine(properties_of(backend)), launcher_(backend.make_launcher(elements)), memory_(allocator_of(backend)) {}

  const launcher_type& launcher() const noexcept { return launcher_; }

  any_stream stream() const noexcept override { return launcher_.stream(); }
  call_scope enter() const noexcept override {
    if constexpr (requires { launcher_.enter(); })
      return launcher_.enter();
    else
      return {};
  }
  bool is_capturing() const override {
    if constexpr (launcher_type::is_synchronous)
      return false;
    else
      return launcher_.is_capturing();
  }
  allocator memory_source() const override { return memory_; }
  void require_memory(const void* memory, const char* what) const override { launcher_.require_memory(memory, what); }

  void clear(std::span<std::byte> memory) const override { launcher_.clear(memory); }
  void upload_tiles(const layout& tensors, std::span<tile> to) const override {
    if constexpr (is_plan)
      launcher_.plan_for(tensors, to.data());
    else
      upload(std::span<const tile>(tensors.tile_table()), to);
  }
  void upload_bytes(std::span<const std::byte> from, std::span<std::byte> to) const override {
    launcher_.upload(from, to);
  }
  void download(std::span<const std::byte> from, std::span<std::byte> to, const stream_waiter& ranks) const override {
    launcher_.download(from, to, ranks);
  }
  void wait(const stream_waiter& ranks) const override { launcher_.wait(ranks); }

  void invoke(const step_calls& calls) const override { launcher_.invoke(calls); }
  void run(const model_pass& pass, const any_view& view, tile_range tiles, double* sums,
           std::uint32_t* not_finite) const override {
    pass.visit([&](const auto& its) { run_one(its, view, tiles, sums, not_finite); });
  }
  void hash_payload(const model_view& view, const payload_view& payload, tile_range tiles,
                    double* sums) const override {
    launcher_.launch(run_packed<fingerprint_of_payload>{{}, view, payload, tiles, sums});
  }
  void add_up(std::span<const double> values, double* to) const override {
    launcher_.launch(kernel_of_add_up{values.data(), values.size(), to});
  }
  void add_up_counted(const model_view& view, std::span<const double> of_tiles, double* to) const override {
    launcher_.launch(kernel_of_add_up{of_tiles.data(), of_tiles.size(), to, nullptr, view.tiles, view.segments});
  }
  void add_up_tensors(const model_view& view, std::span<const double> of_tiles, std::span<double> to) const override {
    launcher_.launch(finish_segments<1, 0, keep_results<1>>{
        {nullptr, to.data()}, of_tiles.data(), view.first_tile, 0, to.size(), nullptr});
  }

  std::unique_ptr<late_flag> make_late_flag() const override {
    if constexpr (!launcher_type::is_synchronous && requires { sizeof(late_read<stream_type, std::uint32_t>); })
      return std::make_unique<late_flag_on<launcher_type, stream_type>>(launcher_);
    else
      return nullptr;
  }
  std::unique_ptr<side_sums> make_side_sums(counted_collectives& ranks, std::size_t most) const override {
    return std::make_unique<side_sums_on<stream_type>>(launcher_.stream(), ranks, most);
  }

 private:
  static machine_properties properties_of(const Backend& backend) {
    machine_properties properties{.is_synchronous = launcher_type::is_synchronous,
                                  .takes_types = precision::takes_types,
                                  .rounds_by_chance = precision::rounds_by_chance,
                                  .has_draws = has_draws<precision>,
                                  .is_plan = is_plan,
                                  .cache_bytes = backend.cache_bytes};
    if constexpr (has_draws<precision>) properties.seed = backend.rounding.seed;
    return properties;
  }

  template <class Pass>
  void run_one(const Pass& pass, const any_view& all, tile_range tiles, double* sums, std::uint32_t* not_finite) const {
    if constexpr (precision::takes_types ||
                  !(std::is_same_v<Pass, reload_masters> || std::is_same_v<Pass, round_masters>))
      launcher_.launch(run_pass{pass, view_of_all(all), tiles, sums, not_finite});
  }
  static auto view_of_all(const any_view& all) noexcept {
    using moments = arrays<array::momentum, array::variance, array::compared>;
    state_view<view_in<precision>, moments> view{all, {}, {}, {all.compared}};
    if constexpr (has_draws<precision>) view.draws = all.draws;
    view.momentum = storage_of_t<array::momentum, precision>::at(all.momentum);
    view.variance = storage_of_t<array::variance, precision>::at(all.variance);
    return view;
  }

  launcher_type launcher_;
  allocator memory_;
};

}  // namespace slamb::detail
