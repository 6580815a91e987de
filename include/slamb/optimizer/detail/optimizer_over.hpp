// An optimizer of known types: a recipe with its policies, over a type of Communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/optimizer/optimizer.hpp"

namespace slamb::detail {

/// The Compressor by which a recipe demands collectives of its Communicator.
template <class Recipe>
struct sent_by {
  using type = decltype(Recipe::options_type::compressor);
};
template <class Recipe>
requires requires { typename Recipe::sent_type; }
struct sent_by<Recipe> {
  using type = typename Recipe::sent_type;
};

/// Checks the arguments and makes a recipe. A program compiles the recipe in one source only if it declares `extern template
/// struct slamb::detail::recipe_maker<…>` in the others.
template <class Recipe>
struct recipe_maker {
  static std::unique_ptr<recipe> make(std::span<const parameter> parameters,
                                      const typename Recipe::options_type& options, typename Recipe::ranks_type ranks,
                                      typename Recipe::backend_type backend);
};
// Not inline: then `extern template` keeps the recipe out of a program's other sources.
template <class Recipe>
std::unique_ptr<recipe> recipe_maker<Recipe>::make(std::span<const parameter> parameters,
                                                   const typename Recipe::options_type& options,
                                                   typename Recipe::ranks_type ranks,
                                                   typename Recipe::backend_type backend) {
  Recipe::validate(options);
  return std::make_unique<Recipe>(parameters, options, suitable<typename sent_by<Recipe>::type>(std::move(ranks)),
                                  std::move(backend));
}

/// The ranks of an optimizer whose Communicator is only given to the constructor.
template <class Recipe, class Communicator>
typename Recipe::ranks_type ranks_for(Communicator ranks) {
  static_assert(
      communicator<Communicator>,
      "slamb: the third argument of an optimizer's constructor is its Communicator, which must have rank() and "
      "size(), as thread_communicator has; the order is parameters, options, communicator, backend");
  if constexpr (std::is_same_v<Communicator, typename Recipe::ranks_type>)
    return ranks;
  else if constexpr (communicator<Communicator> &&
                     suitable_communicator<Communicator, typename Recipe::backend_type::stream_type,
                                           typename sent_by<Recipe>::type>::value)
    return typename Recipe::ranks_type(std::move(ranks));
}

/// The base of all typed optimizers: an `optimizer` with a constructor and the types of its parts.
///
/// @tparam Communicator  owned by the optimizer. The default is an any_communicator: then the constructor takes a Communicator of
///                       any type, and checks at compile time that it has the collectives that the recipe calls
template <class Recipe, class Communicator = typename Recipe::ranks_type>
class optimizer_over : public optimizer {
 public:
  using recipe_type = Recipe;
  using options_type = typename Recipe::options_type;
  using compressor_type = decltype(options_type::compressor);
  using communicator_type = Communicator;
  using backend_type = typename Recipe::backend_type;

  static constexpr const char* recipe_name = Recipe::recipe_name;  ///< its name in saved states
  /// True if the constructor takes a Communicator of any type.
  static constexpr bool takes_any_communicator = std::is_same_v<Communicator, typename Recipe::ranks_type>;

  static_assert(std::is_object_v<Communicator> && !std::is_const_v<Communicator>,
                "slamb: an optimizer owns its Communicator, so its type must be neither a reference nor const; to "
                "share a communicator, pass a type that refers to it");
  static_assert(suitable_communicator<Communicator, typename backend_type::stream_type,
                                      typename detail::sent_by<Recipe>::type>::value);

  /// @param parameters  the tensors, listed in the same order on all ranks. Their data and gradients must outlive the optimizer;
  ///                    the list and `tensor_options::rows` are copied
  /// @throws std::invalid_argument that names the wrong argument; rank_mismatch_error, on every rank, if ranks are given
  ///         different tensors or options; communicator_error, on every rank, if a collective gives other values than it
  ///         should, or fails; out_of_memory, which names the bytes and their purposes
  explicit optimizer_over(std::span<const parameter> parameters, const options_type& options = {},
                          Communicator communicator = {}, backend_type backend = {}) requires(!takes_any_communicator)
      : optimizer(recipe_maker<Recipe>::make(parameters, options, typename Recipe::ranks_type(std::move(communicator)),
                                             std::move(backend))) {}
  /// With a Communicator of any type; without one, a single rank.
  template <class Ranks = self_communicator>
  requires(takes_any_communicator) explicit optimizer_over(std::span<const parameter> parameters,
                                                           const options_type& options = {}, Ranks communicator = {},
                                                           backend_type backend = {})
      : optimizer(recipe_maker<Recipe>::make(parameters, options, ranks_for<Recipe>(std::move(communicator)),
                                             std::move(backend))) {}

  /// @throws std::invalid_argument that names the value out of range
  static void validate(const options_type& options) { Recipe::validate(options); }

  const options_type& options() const { return as_recipe("options()").options(); }

  /// The communicator that was moved into it. Calls on it are not counted in the statistics. If the type of the optimizer does not
  /// name its Communicator, this is an any_communicator.
  Communicator& communicator() { return this->template communicator<Communicator>(); }
  /// It, as a C.
  /// @throws std::bad_cast if it is no C
  template <class C>
  C& communicator() {
    return as_recipe("communicator()").ranks().template get<C>();
  }

  /// The compressor, for one that needs data at each step, such as explicit_mask.
  compressor_type& compressor() requires(requires(compressor_type& c) {
    sparsifier_of(c).require_ready(std::uint64_t{});
  }) {
    Recipe& own = as_recipe("compressor()");
    if constexpr (requires { own.compressor(); })
      return own.compressor();
    else
      return own.exchange().compressor();
  }

  /// Measures the compression error of the next step that sends codes of all elements: `statistics().compression`. Costs one pass
  /// then.
  void measure_next_step() requires quantizer<compressor_type> {
    const recipe_call call = lock_call("measure_next_step()");
    as_recipe("measure_next_step()").measure_next_step();
  }

 protected:
  /// @throws std::logic_error if it was moved from, or holds another recipe, which was assigned to it as an optimizer
  Recipe& as_recipe(const char* call) const {
    if (auto* const own = dynamic_cast<Recipe*>(&recipe_or_throw(call))) return *own;
    throw std::logic_error(
        "slamb: " + std::string(call) + " was called on an optimizer of the recipe " + recipe_name +
        ", to which an optimizer of another type has been assigned; hold optimizers of several types "
        "in a slamb::optimizer");
  }
};

/// The optimizer of sorted policies.
template <class Policies>
using optimizer_of = optimizer_over<typename Policies::recipe_type, typename Policies::communicator_type>;

}  // namespace slamb::detail
