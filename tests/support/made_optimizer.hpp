// Type-erased optimizers, so that a test is compiled once and not once for each recipe.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "slamb/slamb.hpp"

namespace test_support {

using mask_setter = std::function<void(std::span<const std::uint8_t>)>;

/// One rank's optimizer of any recipe.
class made_optimizer : public slamb::optimizer {
 public:
  template <std::derived_from<slamb::optimizer> Optimizer>
  requires(!std::same_as<Optimizer, made_optimizer>) explicit made_optimizer(Optimizer made)
      : made_optimizer(setter_of(made), measurer_of(made), std::move(made)) {}

  /// Sets the mask of an explicit_mask; does nothing for other compressors.
  void set_mask(std::span<const std::uint8_t> mask) const {
    if (set_mask_) set_mask_(mask);
  }

  /// Calls the optimizer's function; does nothing if the optimizer has none.
  void measure_next_step() const {
    if (measure_next_) measure_next_();
  }

 private:
  made_optimizer(mask_setter set, std::function<void()> measure, slamb::optimizer&& made)
      : slamb::optimizer(std::move(made)), set_mask_(std::move(set)), measure_next_(std::move(measure)) {}

  template <class Optimizer>
  struct opened : Optimizer {
    /// The recipe in an optimizer. Its address stays the same when the optimizer moves.
    static auto& recipe_in(const Optimizer& made) { return (made.*&opened::as_recipe)("made_optimizer"); }
  };

  template <class Optimizer>
  static mask_setter setter_of([[maybe_unused]] Optimizer& made) {
    if constexpr (requires(std::span<const std::uint8_t> mask) { made.compressor().set(mask); })
      return [&its = made.compressor()](std::span<const std::uint8_t> mask) { its.set(mask); };  // in the recipe
    else
      return {};
  }

  template <class Optimizer>
  static std::function<void()> measurer_of([[maybe_unused]] Optimizer& made) {
    if constexpr (requires { made.measure_next_step(); })
      return [&its = opened<Optimizer>::recipe_in(made)] {
        if constexpr (requires { its.measure_next_step(); })
          its.measure_next_step();
        else
          its.exchange().measure_next();
      };
    else
      return {};
  }

  mask_setter set_mask_;
  std::function<void()> measure_next_;
};

/// Makes one rank's optimizer of a recipe with its settings.
template <class Backend>
using maker_on = std::function<made_optimizer(std::span<const slamb::parameter>,
                                              slamb::any_communicator<typename Backend::stream_type>, const Backend&)>;
using optimizer_maker = maker_on<slamb::host_backend>;

/// A maker of an Optimizer, on ranks of its Communicator. An Optimizer over any_communicator takes ranks of all types.
template <class Optimizer>
maker_on<typename Optimizer::backend_type> maker_of(const typename Optimizer::options_type& options) {
  using backend = typename Optimizer::backend_type;
  using ranks = slamb::any_communicator<typename backend::stream_type>;
  return [options](std::span<const slamb::parameter> parameters, ranks communicator, const backend& where) {
    using its_ranks = typename Optimizer::communicator_type;
    return made_optimizer(Optimizer(parameters, options, std::move(communicator.template get<its_ranks>()), where));
  };
}

}  // namespace test_support
