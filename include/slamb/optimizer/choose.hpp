// Chooses a dense or a compressed optimizer, the faster one on the given ranks and network, by timing a few steps of each on
// synthetic tensors before the training.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/core/error.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/real.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/learning_rates.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"
#include "slamb/optimizer/detail/trial.hpp"

namespace slamb {

/// Options of `choose`, equal on all ranks except `saved`.
struct choose_options {
  /// The optimizer to keep.
  enum class keep_rule {
    measure,    ///< the compressed one if it is measured to be faster, else the dense one
    dense,      ///< without a trial
    compressed  ///< without a trial
  };

  keep_rule keep = keep_rule::measure;
  double margin = 0.05;      ///< in [0, 1): part of the dense step's time that a compressed step must save
  std::uint64_t steps = 4;   ///< ≥ 1: timed steps of each optimizer in a round
  std::uint64_t rounds = 2;  ///< ≥ 1: the optimizers take turns, so that a slow moment affects both
  std::uint64_t most_elements =
      16'777'216;  ///< ≥ 1: about the elements of the synthetic tensors; larger models are scaled down
  std::uint64_t training_steps = 100'000;  ///< ≥ 1: length of the training over which 0/1 Adam's schedules are averaged
  std::span<const std::byte>
      saved{};                ///< a state to continue from, whose optimizer is kept without a trial; empty: none
  restore_options restore{};  ///< options of restoring `saved`

  /// @throws std::invalid_argument
  void validate() const {
    const auto require_one = [](const char* name, std::uint64_t value) {
      detail::require_in(value >= 1, std::string("choose_options's ") + name, static_cast<double>(value), ">= 1");
    };
    detail::require_in(keep >= keep_rule::measure && keep <= keep_rule::compressed, "choose_options's keep",
                       static_cast<double>(keep), "measure, dense or compressed");
    detail::require_in(margin >= 0.0 && margin < 1.0, "choose_options's margin", margin, "in [0, 1)");
    require_one("steps", steps);
    require_one("rounds", rounds);
    require_one("most_elements", most_elements);
    require_one("training_steps", training_steps);
  }
};

/// The optimizer that `choose` has chosen from two. It computes the same bits as the chosen optimizer alone.
template <class Dense, class Compressed>
class chosen_optimizer : public optimizer {
 public:
  using communicator_type = typename Dense::communicator_type;
  using backend_type = typename Dense::backend_type;

  static_assert(
      std::same_as<communicator_type, typename Compressed::communicator_type> &&
          std::same_as<backend_type, typename Compressed::backend_type>,
      "slamb: both optimizers of choose must have the same Communicator, named in both or in neither, and the same "
      "Backend");

  /// Constructs the optimizer that `made` names; see `choose`.
  /// @param saved  a state to continue from; empty: none
  chosen_optimizer(const statistics::choice_type& made, std::span<const parameter> parameters,
                   const typename Dense::options_type& dense_options,
                   const typename Compressed::options_type& compressed_options, communicator_type communicator,
                   backend_type backend, std::span<const std::byte> saved = {}, const restore_options& restore = {})
      : optimizer(
            made.is_compressed
                ? optimizer(Compressed(parameters, compressed_options, std::move(communicator), std::move(backend)))
                : optimizer(Dense(parameters, dense_options, std::move(communicator), std::move(backend)))),
        made_(made) {
    if (!saved.empty()) load_state(saved, restore);
  }

  bool is_compressed() const noexcept { return made_.is_compressed; }

  /// Measures the compression error of the next step, if the chosen optimizer compresses.
  void measure_next_step() { lock_call("measure_next_step()")->measure_next_step(); }

  /// Statistics of the chosen optimizer since the choice; `chosen` describes the choice.
  ::slamb::statistics statistics(bool with_norms = false) const {
    ::slamb::statistics all = optimizer::statistics(with_norms);
    all.chosen = made_;
    return all;
  }

  /// The communicator that was moved into it.
  communicator_type& communicator() {
    return is_compressed() ? communicator_of<Compressed>() : communicator_of<Dense>();
  }

  /// Continues from a saved state, with the parameters that belong to it.
  /// @throws std::invalid_argument that names the mismatch, such as a state of the other optimizer; nothing has changed then
  void load_state(std::span<const std::byte> saved, const restore_options& options = {}) {
    load_state(detail::source_in(saved), options);
  }
  /// Restores in pieces: see `optimizer`.
  void load_state(const byte_source& from, const restore_options& options = {}) {
    const detail::state_kind other = is_compressed() ? detail::kind_of<Dense>() : detail::kind_of<Compressed>();
    const detail::state_kind own = is_compressed() ? detail::kind_of<Compressed>() : detail::kind_of<Dense>();
    if (own.hash() != other.hash() && detail::is_state_of(other, from))
      throw std::invalid_argument(
          "slamb: " + from.given_as + " the state of the " + std::string(is_compressed() ? "dense" : "compressed") +
          " optimizer, " + std::string(other.recipe) + ", but the " + (is_compressed() ? "compressed" : "dense") +
          " one was chosen; give it to choose as choose_options{.saved = …}, which keeps the "
          "optimizer that it belongs to");
    optimizer::load_state(from, options);
  }

 private:
  template <class Optimizer>
  communicator_type& communicator_of() {
    if (auto* const own = dynamic_cast<typename Optimizer::recipe_type*>(&recipe_or_throw("communicator()")))
      return own->ranks().template get<communicator_type>();
    throw std::logic_error(
        "slamb: communicator() was called on a chosen_optimizer to which another optimizer has been assigned; keep one "
        "whose type changes in a slamb::optimizer");
  }

  statistics::choice_type made_;
};

namespace detail {

/// Seconds of a monotonic clock.
struct steady_seconds {
  double operator()() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

/// The optimizer to keep: of the saved state, if there is one, else by `keep`.
template <class Dense, class Compressed>
choose_options::keep_rule rule_of(const choose_options& options) {
  if (options.saved.empty()) return options.keep;
  const bool is_dense = is_state_of(kind_of<Dense>(), options.saved);
  if (is_dense && is_state_of(kind_of<Compressed>(), options.saved))
    throw std::invalid_argument(
        "slamb: choose cannot find the optimizer of the saved state, because both have the same recipe and policies; "
        "set choose_options's keep, and load the state afterwards");
  if (is_dense) return choose_options::keep_rule::dense;
  if (is_state_of(kind_of<Compressed>(), options.saved)) return choose_options::keep_rule::compressed;
  throw std::invalid_argument("slamb: choose was given a saved state of neither optimizer; it must be a state of " +
                              std::string(Dense::recipe_name) + " or " + Compressed::recipe_name +
                              " with the same policies");
}

/// Names both optimizers for a comparison of ranks. Not by their types, whose names contain the instruction set: ranks may be compiled
/// for different ones.
template <class Dense, class Compressed>
std::string name_of_choice() {
  const state_kind dense = kind_of<Dense>(), compressed = kind_of<Compressed>();
  std::string both = "choose";
  for (const std::string_view name : {dense.recipe, dense.policies, compressed.recipe, compressed.policies}) {
    both += ' ';
    both += name;
  }
  return both;
}

template <class Dense, class Compressed>
consistency_check fields_of_choice(const choose_options& options, choose_options::keep_rule rule, std::size_t tensors,
                                   std::uint64_t elements) {
  consistency_check all(name_of_choice<Dense, Compressed>(), tensors);
  all.add_word("the optimizer that is kept (choose_options's keep, or the optimizer of its saved state)",
               static_cast<std::uint64_t>(rule));
  all.add("choose_options's margin", options.margin);
  all.add_word("choose_options's steps", options.steps);
  all.add_word("choose_options's rounds", options.rounds);
  all.add_word("choose_options's most_elements", options.most_elements);
  all.add_word("choose_options's training_steps", options.training_steps);
  all.add_word("the number of elements", elements, consistency_check::alike, consistency_check::among::same_shard);
  return all;
}

/// Times both optimizers, in turn.
/// @param elements  elements of the parameters, > 0 unless they are shards
template <class Dense, class Compressed, class Ranks, class Backend, class Clock>
statistics::choice_type choice_by_trial(std::span<const parameter> parameters, std::uint64_t elements,
                                        const typename Dense::options_type& dense_options,
                                        const typename Compressed::options_type& compressed_options, Ranks& ranks,
                                        const Backend& backend, const machine& on, const choose_options& options,
                                        Clock& clock) {
  const double part = elements <= options.most_elements
                          ? 1.0
                          : static_cast<double>(options.most_elements) / static_cast<double>(elements);
  trial<Dense> dense(dense_options, part, options.training_steps);
  trial<Compressed> compressed(compressed_options, part, options.training_steps);
  const synthetic_model model(parameters, part, on);
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    dense.run(ranks, model, backend, options.steps, clock);
    compressed.run(ranks, model, backend, options.steps, clock);
  }
  const host_ranks timed(*ranks.share(), on);
  const summing_ranks all = ranks.shard_size() > 1 ? timed.all() : timed.inter_node();
  const typical_time of_dense = dense.time(all);
  const typical_time of_compressed = compressed.time(all);
  const double scale =
      model.elements() == 0 ? 1.0 : static_cast<double>(elements) / static_cast<double>(model.elements());
  return {.is_compressed = of_compressed.seconds + of_compressed.deviation <
                           rounded_product(1.0 - options.margin, of_dense.seconds) - of_dense.deviation,
          .dense_seconds = scale * of_dense.seconds,
          .compressed_seconds = scale * of_compressed.seconds,
          .trial_steps = options.rounds * options.steps,
          .trial_elements = model.elements()};
}

/// True if an Optimizer takes ranks of any type, and `Ranks` is not the one that it holds them in.
template <class Optimizer, class Ranks>
concept differs_from_held =
    Optimizer::takes_any_communicator && !std::same_as<Ranks, typename Optimizer::communicator_type>;

/// `choose` with any clock: clock() returns seconds, as a double.
template <class Dense, class Compressed, class Clock>
chosen_optimizer<Dense, Compressed> choose_by(Clock&& clock, std::span<const parameter> parameters,
                                              const typename Dense::options_type& dense_options,
                                              const typename Compressed::options_type& compressed_options,
                                              typename Dense::communicator_type communicator,
                                              const choose_options& options, typename Dense::backend_type backend) {
  options.validate();
  Dense::validate(dense_options);
  Compressed::validate(compressed_options);
  backend.validate();
  using precision = typename precision_of<typename Dense::backend_type>::type;
  const auto require_room = [&backend](const layout& all) {
    require_room_for_state(all, allocator_of(backend), Dense::recipe_type::state_type::template stored<precision>);
  };
  const std::uint64_t elements =
      layout(parameters, dense_options.weight_decay, precision::takes_types, require_room).elements();
  const choose_options::keep_rule rule = rule_of<Dense, Compressed>(options);
  const machine_on<typename Dense::backend_type> on(backend, 0);  // for copies alone
  using communicator_type = typename Dense::communicator_type;
  any_communicator<typename Dense::backend_type::stream_type> ranks(std::move(communicator));
  require_rank(ranks.rank(), ranks.size());
  require_consistent_ranks(fields_of_choice<Dense, Compressed>(options, rule, parameters.size(), elements),
                           *ranks.share(), on);
  statistics::choice_type made{.is_compressed = rule == choose_options::keep_rule::compressed};
  // A rank without elements times its steps too, if the other ranks of its shard group have some.
  if (rule == choose_options::keep_rule::measure && ranks.size() > 1 && (elements > 0 || ranks.shard_size() > 1))
    made = choice_by_trial<Dense, Compressed>(parameters, elements, dense_options, compressed_options, ranks, backend,
                                              on, options, clock);
  return chosen_optimizer<Dense, Compressed>(made, parameters, dense_options, compressed_options,
                                             std::move(ranks.template get<communicator_type>()), std::move(backend),
                                             options.saved, options.restore);
}

}  // namespace detail

/// Times a few steps of both optimizers. Constructs the compressed one if it is faster by more than `margin` and by more than the
/// spread of its times, else the dense one.
///
/// The trial uses synthetic tensors of the same shapes; above `most_elements` they are scaled down, and times are scaled up in
/// proportion. Rare work counts by its frequency: SLAMB's averaging once in `local_steps`, 0/1 Adam's exchanges by its schedule
/// in `training_steps`. The 1-bit optimizers are timed in their compressed phase. The caller's parameters and gradients are not
/// touched, and the constructed optimizer has taken no step. A single rank, or a model without elements, keeps the dense
/// optimizer without a trial.
///
/// @param parameters    the tensors, in the backend's memory; the spans must outlive the optimizer
/// @param communicator  moved into one optimizer after another, so a handle that was moved from must not leave its ranks
/// @throws std::invalid_argument that names the wrong argument; rank_mismatch_error, on every rank, if ranks are given different
///         tensors or settings; communicator_error, as from a step
/// *Memory*: during the trial 8 bytes per element of the synthetic tensors, and the memory of one optimizer for them; freed
/// before the optimizer is constructed.
/// *Cost*: `rounds` · (`steps` + 2) steps of each optimizer, and in each round one of SLAMB's means of the parameters, or
/// `steps` steps of 0/1 Adam more.
/// *Determinism*: all ranks make the same choice. The choice depends on time; the bits of the chosen optimizer do not.
template <class Dense, class Compressed>
chosen_optimizer<Dense, Compressed> choose(std::span<const parameter> parameters,
                                           const typename Dense::options_type& dense_options,
                                           const typename Compressed::options_type& compressed_options,
                                           typename Dense::communicator_type communicator,
                                           const choose_options& options = {},
                                           typename Dense::backend_type backend = {}) {
  return detail::choose_by<Dense, Compressed>(detail::steady_seconds{}, parameters, dense_options, compressed_options,
                                              std::move(communicator), options, std::move(backend));
}
/// The same for optimizers whose types do not name their Communicator, which may have any type.
template <class Dense, class Compressed, class Ranks = self_communicator>
requires detail::differs_from_held<Dense, Ranks> chosen_optimizer<Dense, Compressed> choose(
    std::span<const parameter> parameters, const typename Dense::options_type& dense_options,
    const typename Compressed::options_type& compressed_options, Ranks communicator = {},
    const choose_options& options = {}, typename Dense::backend_type backend = {}) {
  return choose<Dense, Compressed>(parameters, dense_options, compressed_options,
                                   detail::ranks_for<typename Compressed::recipe_type>(std::move(communicator)),
                                   options, std::move(backend));
}

}  // namespace slamb
