// How every recipe is stepped: at once, or in parts while gradients are still computed.
#pragma once

#include <cstddef>
#include <span>

#include "slamb/optimizer/learning_rates.hpp"

namespace slamb {

/// The steps of a recipe, which has
///
///     base_                  its foundation
///     begin()                begins a step with the rates that have been set
///     send_early(bucket)     exchanges the part of the step that needs no other gradients than those of a tensor_batch;
///                            false: it sends nothing early, now and in the rest of the step
///     finish()               takes the step, but for what has been sent
///
/// @tparam TakesRatesAt  whether rates may be found in the backend's memory
template <class Recipe, bool TakesRatesAt = true>
class stepping {
 public:
  /// One step with one learning rate.
  /// @throws std::invalid_argument for a rate that is negative or not finite; std::logic_error between begin_step and
  ///         finish_step; communicator_error: with all state as it was, or, if an averaging of parameters failed, with the
  ///         step taken and the parameters averaged in part or not at all
  void step(double learning_rate) { step(std::span<const double>(&learning_rate, 1)); }

  /// One step with a learning rate for each group. *Stream*: synchronous on the host.
  void step(std::span<const double> rates_by_group) { step_with(rates_by_group); }

  /// The same with rates that are found in the backend's memory when the step runs. *Stream*: see `learning_rates_at`.
  void step(const learning_rates_at& rates) requires(TakesRatesAt) { step_with(rates); }

  /// Begins a step that is taken in parts, while gradients are still computed:
  ///
  ///     optimizer.begin_step(learning_rate);
  ///     for (std::size_t tensor = tensors; tensor-- > 0;) {
  ///       compute_gradient_of(tensor);
  ///       optimizer.gradient_ready(tensor, 1);
  ///     }
  ///     optimizer.finish_step();
  ///
  /// The result is that of `step`, bit for bit, if the communicator's sums do not depend on where a payload is cut: all of
  /// this library's but NCCL's. Tensors are exchanged in buckets of `bucket_bytes` of gradients, from the last to the first, as
  /// soon as all gradients from there on are ready: whole gradients, and SLAMB's selected momentum on the host. What needs all
  /// gradients first (codes, whose scales do, and what is chosen by value) is exchanged by finish_step, and so is all between nodes
  /// of several ranks.
  ///
  /// On the host collectives then run on a thread of their own, with which the communicator must be content: for MPI that is
  /// MPI_THREAD_SERIALIZED, and nothing else may call it until finish_step, or MPI_THREAD_MULTIPLE. On CUDA they run on
  /// a second stream; cuda_mpi_communicator, which waits for what it sends, waits in gradient_ready then. The first call makes
  /// these. An optimizer that is moved or destroyed with a step open gives the step up, with all state as it was, and waits for
  /// the exchanges that it has begun: at most as long as the communicator waits for peers.
  ///
  /// @throws as `step`, before any work; std::system_error if there can be no thread
  void begin_step(double learning_rate) { begin_step(std::span<const double>(&learning_rate, 1)); }
  void begin_step(std::span<const double> rates_by_group) { begin_with(rates_by_group); }
  void begin_step(const learning_rates_at& rates) requires(TakesRatesAt) { begin_with(rates); }

  /// The gradients of tensors first … first + count − 1 are computed, or on CUDA enqueued on the optimizer's stream, and stay
  /// as they are until the step is finished. Ranks may say so in different orders.
  /// @throws std::logic_error without begin_step; std::invalid_argument for tensors that there are not, or that have been
  ///         ready before: nothing has changed then; communicator_error: the step is over, with all state as it was
  void gradient_ready(std::size_t first, std::size_t count) {
    auto& parts = recipe().base_.parts;
    parts.require_open("gradient_ready()");
    parts.set_ready(first, count);
    close_if_it_throws([this] { send_ready(); });
  }

  /// All gradients are ready, also those of which nothing was said; takes the step.
  /// @throws std::logic_error without begin_step; else as `step`: the step is over then
  void finish_step() {
    auto& parts = recipe().base_.parts;
    parts.require_open("finish_step()");
    parts.set_all_ready();  // ranks exchange the same buckets, whatever they have said before
    close_if_it_throws([this] {
      send_ready();
      finish();
    });
    parts.close();
  }

 private:
  Recipe& recipe() noexcept { return static_cast<Recipe&>(*this); }

  void finish() {
    recipe().base_.local.reduce(recipe().base_);
    recipe().finish();
  }

  void send_ready() {
    if (recipe().base_.local.is_active()) return;  // nodes sum their gradients when all are ready
    recipe().base_.parts.send_ready([this](const auto& bucket) { return recipe().send_early(bucket); });
  }

  template <class Body>
  void close_if_it_throws(const Body& body) {
    try {
      body();
    } catch (...) {
      recipe().base_.parts.close();
      throw;
    }
  }

  template <class Rates>
  void step_with(const Rates& rates) {
    recipe().base_.parts.require_closed("step()");
    recipe().base_.rates.set(rates);
    recipe().begin();
    finish();
  }

  template <class Rates>
  void begin_with(const Rates& rates) {
    auto& base = recipe().base_;
    base.parts.require_closed("begin_step()");
    base.rates.set(rates);
    base.parts.open(base.tensors, recipe().options_.bucket_bytes, base.executor.stream());
    close_if_it_throws([this] { recipe().begin(); });
  }
};

}  // namespace slamb
