// What every recipe stands on: the layout, the memory, the ranks, the learning rates and the counters.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/communicator/counting_communicator.hpp"
#include "slamb/core/agreement.hpp"
#include "slamb/core/arena.hpp"
#include "slamb/core/layout.hpp"
#include "slamb/core/pass.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/optimizer/adam_passes.hpp"
#include "slamb/optimizer/common_passes.hpp"

namespace slamb {

/// The tensors, memory, ranks and counters of one optimizer.
template <communicator Communicator, class Backend>
class foundation {
 public:
  using executor_type = typename Backend::executor_type;

  static_assert(has_all_reduce_sum<Communicator, float, typename Backend::stream_type>,
                "slamb: the Communicator must have all_reduce_sum(std::span<float>, stream) for the Backend's stream");

  foundation(std::span<const parameter> parameters, double weight_decay, Communicator communicator, Backend backend)
      : tensors((backend.validate(), parameters), weight_decay),
        executor(backend.make_executor(tensors.elements())),
        ranks(std::move(communicator)),
        backend_(std::move(backend)) {
    if (ranks.size() < 1 || ranks.rank() < 0 || ranks.rank() >= ranks.size())
      throw std::invalid_argument("slamb: the communicator says it is rank " + std::to_string(ranks.rank()) + " of " +
                                  std::to_string(ranks.size()) + "; ranks must be 0 … size − 1");
    segments_ = memory.plan<segment>("tables", tensors.segments().size());
    tiles_ = memory.plan<tile>("tables", tensors.tiles().size());
    rates_ = memory.plan<float>("learning rates", tensors.segments().size());
    scalars_ = memory.plan<adam_scalars>("scalars", 1);
    momentum_ = memory.plan<float>("momentum", tensors.state_elements());
    variance_ = memory.plan<float>("variance", tensors.state_elements());
  }

  /// Room for `sums` double-precision sums a tile; norms need `norms_of_model::sums`.
  void plan_sums(int sums) {
    const auto most = static_cast<std::uint64_t>(std::max(sums, norms_of_model::sums));
    sums_ = memory.plan<double>("sums", tensors.tiles().size() * most);
  }

  /// Compares `facts` and the tensors with the other ranks, then allocates everything that has been planned.
  void allocate(agreement facts) {
    for (std::size_t i = 0; i < tensors.segments().size(); ++i) {
      const segment& s = tensors.segments()[i];
      const std::string name = " of tensor " + std::to_string(i);
      facts.add_word("the size" + name, s.size);
      facts.add("the weight decay" + name, s.weight_decay);
      facts.add("the learning-rate factor" + name, s.learning_rate_factor);
      facts.add_word(
          "the options (group, adapt, compress, dimensions)" + name,
          (std::uint64_t{s.group} << 3U) | (s.adapt ? 4U : 0U) | (s.dense ? 2U : 0U) | (s.one_dimensional ? 1U : 0U));
    }
    facts.require(ranks.base(), executor.stream());
    rates_by_tensor_.reserve(tensors.segments().size());
    memory.allocate(backend_.memory);
    executor.clear(memory.bytes());
    executor.upload(std::as_const(tensors).segments(), memory.view(segments_));
    executor.upload(tensors.tiles(), memory.view(tiles_));
  }

  /// Sets the learning rate of every tensor for the step that follows.
  ///
  /// @param by_group  [groups], or one for all
  /// @throws std::invalid_argument
  void set_rates(std::span<const double> by_group) {
    if (by_group.size() != 1 && by_group.size() != tensors.groups())
      throw std::invalid_argument("slamb: step() was given " + std::to_string(by_group.size()) +
                                  " learning rates, but there are " + std::to_string(tensors.groups()) + " groups");
    for (const double rate : by_group) detail::require_non_negative("the learning rate", rate);
    rates_by_tensor_.clear();
    for (const segment& s : tensors.segments()) {
      const double rate = by_group[by_group.size() == 1 ? 0 : s.group];
      detail::require_non_negative("the learning rate times learning_rate_factor",
                                   rate * static_cast<double>(s.learning_rate_factor));
      rates_by_tensor_.push_back(static_cast<float>(rate * static_cast<double>(s.learning_rate_factor)));
    }
    executor.upload(std::span<const float>(rates_by_tensor_), memory.view(rates_));
  }

  /// What the trust ratio makes of the sums of tensors first … last − 1.
  template <trust_ratio TrustRatio, class Factors>
  void find_factors(const TrustRatio& trust, std::span<Factors> factors, std::size_t first, std::size_t last) {
    executor.template finish_segments<TrustRatio::sums_per_segment>(
        tensors, first, last, sums(), [&](std::size_t i, std::span<const double> of_tensor) {
          const segment& s = std::as_const(tensors).segments()[i];
          factors[i] = trust.factors(of_tensor.data(), {s.adapt, s.one_dimensional, s.weight_decay, ranks.size()});
        });
  }

  /// Sets the scalars of the step that follows.
  void set_scalars(const adam_scalars& scalars) {
    executor.upload(std::span<const adam_scalars>(&scalars, 1), memory.view(scalars_));
  }

  /// What the passes of an update read: the scalars, the tensors, their rates and their trust ratios.
  template <class Factors>
  update_tables<Factors> tables(region<Factors> factors) const noexcept {
    return {memory.view(scalars_).data(), view().segments, rates(), memory.view(factors).data()};
  }

  /// Points a tensor at another gradient, for frameworks that allocate gradients anew.
  void set_gradient(std::size_t tensor, const float* gradient) {
    if (tensor >= tensors.segments().size())
      throw std::invalid_argument("slamb: set_gradient() was given tensor " + std::to_string(tensor) +
                                  ", but there are " + std::to_string(tensors.segments().size()));
    tensors.require_gradient(tensor, gradient);
    segment& s = tensors.segments()[tensor];
    s.gradient = gradient;
    executor.upload(std::span<const segment>(&s, 1), memory.view(segments_).subspan(tensor, 1));
  }

  model_view view() const noexcept {
    return {.segments = memory.view(segments_).data(),
            .tiles = memory.view(tiles_).data(),
            .momentum = memory.view(momentum_).data(),
            .variance = memory.view(variance_).data()};
  }
  tile_range all_tiles() const noexcept { return {0, tensors.tiles().size()}; }
  const float* rates() const noexcept { return memory.view(rates_).data(); }
  double* sums() const noexcept { return memory.view(sums_).data(); }
  std::size_t cache_bytes() const noexcept { return backend_.cache_bytes; }

  /// The mean of the parameters over ranks, piece by piece through `buffer`, in a number of collectives that depends on
  /// sizes alone.
  void average_parameters(std::span<float> buffer) {
    if (ranks.size() == 1) return;
    model_view pieces = view();
    pieces.exchanged = buffer.data();
    for (tile_range piece{0, 0}; piece.first < tensors.tiles().size(); piece.first = piece.last) {
      pieces.exchanged_first = tensors.first_element(tensors.tiles()[piece.first]);
      std::uint64_t elements = 0;
      for (piece.last = piece.first; piece.last < tensors.tiles().size(); ++piece.last) {
        const std::uint32_t count = tensors.tiles()[piece.last].count;
        if (piece.last > piece.first && elements + count > buffer.size()) break;
        elements += count;
      }
      executor.run(gather_parameters{}, pieces, piece);
      ranks.all_reduce_sum(buffer.first(elements), executor.stream());
      executor.run(scatter_parameters{{}, 1.0F / static_cast<float>(ranks.size())}, pieces, piece);
    }
  }

  /// What a buffer for `average_parameters` must hold at least.
  std::uint64_t least_averaging_buffer() const noexcept {
    return std::min<std::uint64_t>(layout::tile_size, tensors.elements());
  }

  statistics report(std::string phase, bool with_norms) const {
    statistics all{step, skipped_steps, std::move(phase), ranks.counts(), {}};
    if (with_norms) {
      executor.run(norms_of_model{}, view(), all_tiles(), sums());
      executor.template finish_segments<norms_of_model::sums>(tensors, 0, tensors.segments().size(), sums(),
                                                              [&all](std::size_t, std::span<const double> squares) {
                                                                all.norm.parameters += squares[0];
                                                                all.norm.momentum += squares[1];
                                                                all.norm.variance += squares[2];
                                                              });
      all.norm = {std::sqrt(all.norm.parameters), std::sqrt(all.norm.momentum), std::sqrt(all.norm.variance)};
    }
    return all;
  }

  layout tensors;
  executor_type executor;
  counting_communicator<Communicator> ranks;
  arena memory;
  std::uint64_t step = 0;
  std::uint64_t skipped_steps = 0;

 private:
  Backend backend_;
  region<segment> segments_;
  region<tile> tiles_;
  region<float> rates_;
  region<adam_scalars> scalars_;
  region<float> momentum_;
  region<float> variance_;
  region<double> sums_;
  std::vector<float> rates_by_tensor_;
};

}  // namespace slamb
