// The template arguments of optimizers: sorted by role, in any order, with defaults that fit the others; and Communicators that only
// the constructor is given.
#include <doctest/doctest.h>

#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/replica.hpp"

namespace optimizer_roles_tests {
namespace {

using slamb::host_backend;
using slamb::thread_communicator;
using test_support::replica;
namespace detail = slamb::detail;

// No type of the library fits two roles.
using every_role = detail::roles<detail::compressor_role, detail::error_feedback_role, detail::trust_ratio_role,
                                 detail::parameter_sync_role, detail::partition_role, detail::warm_up_role,
                                 detail::variance_schedule_role, detail::local_schedule_role,
                                 detail::dense_compressor_role, detail::communicator_role, detail::backend_role>;
template <class Role, class... Policies>
constexpr bool all_fit_only = ((Role::template fits<Policies> && every_role::fitting<Policies> == 1) && ...);

static_assert(all_fit_only<detail::compressor_role, slamb::no_compressor, slamb::sign, slamb::four_levels, slamb::int4,
                           slamb::int8, slamb::integer<2>, slamb::natural, slamb::bf16, slamb::fp16, slamb::random_k<>,
                           slamb::random_k<slamb::sampling::bernoulli>, slamb::top_k, slamb::explicit_mask,
                           slamb::chain<slamb::random_k<>, slamb::int8>>);
static_assert(all_fit_only<detail::error_feedback_role, slamb::no_error_feedback, slamb::residual<>,
                           slamb::two_sided<slamb::bfloat16>, slamb::local_momentum>);
static_assert(all_fit_only<detail::trust_ratio_role, slamb::unit_trust_ratio, slamb::layerwise_trust_ratio,
                           slamb::frozen_trust_ratio, slamb::rescaled_trust_ratio<>,
                           slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>>);
static_assert(all_fit_only<detail::parameter_sync_role, slamb::sync::whole_average,
                           slamb::sync::quantized_difference<slamb::sign, slamb::int4>>);
static_assert(all_fit_only<detail::partition_role, slamb::sync::partition<>, slamb::sync::partition<slamb::int8>>);
static_assert(all_fit_only<detail::warm_up_role, slamb::fixed_warm_up, slamb::automatic_warm_up>);
static_assert(all_fit_only<detail::variance_schedule_role, slamb::exponential_variance_interval>);
static_assert(all_fit_only<detail::local_schedule_role, slamb::doubling_local_interval>);
static_assert(all_fit_only<detail::dense_compressor_role, slamb::dense_in<slamb::bf16>>);
static_assert(all_fit_only<detail::communicator_role, slamb::self_communicator, thread_communicator,
                           slamb::any_communicator<>, slamb::counting_communicator<thread_communicator>,
                           slamb::hierarchical_communicator<thread_communicator, thread_communicator>>);
static_assert(all_fit_only<detail::backend_role, host_backend, slamb::precision::mixed<>>);
static_assert(every_role::fitting<float> == 0 && every_role::fitting<slamb::parameter> == 0);

struct two_at_once : slamb::int8 {
  static int rank() { return 0; }
  static int size() { return 1; }
};
static_assert(every_role::fitting<two_at_once> == 2);

// In every order an optimizer has the same recipe.
template <class A, class B>
constexpr bool are_one_recipe = std::is_same_v<typename A::recipe_type, typename B::recipe_type>;
template <class Optimizer, class Recipe>
constexpr bool has_recipe = std::is_same_v<typename Optimizer::recipe_type, Recipe>;

static_assert(are_one_recipe<slamb::lamb<slamb::sign, slamb::residual<>, thread_communicator, host_backend>,
                             slamb::lamb<host_backend, thread_communicator, slamb::residual<>, slamb::sign>>);
static_assert(are_one_recipe<slamb::slamb<slamb::top_k>, slamb::slamb<thread_communicator, slamb::top_k>>);
static_assert(!are_one_recipe<slamb::slamb<slamb::top_k>, slamb::slamb<>>);
static_assert(are_one_recipe<slamb::adamw<slamb::layerwise_trust_ratio>, slamb::lamb<>>);

// Defaults.
static_assert(has_recipe<slamb::lamb<>, detail::lamb_recipe<slamb::no_compressor, slamb::no_error_feedback,
                                                            slamb::layerwise_trust_ratio, host_backend>>);
static_assert(has_recipe<slamb::adamw<slamb::int4>,
                         detail::lamb_recipe<slamb::int4, slamb::two_sided<>, slamb::unit_trust_ratio, host_backend>>);
static_assert(
    has_recipe<slamb::lamb<slamb::top_k>,
               detail::lamb_recipe<slamb::top_k, slamb::residual<>, slamb::layerwise_trust_ratio, host_backend>>);
static_assert(has_recipe<slamb::lamb<slamb::chain<slamb::random_k<>, slamb::int8>>,
                         detail::lamb_recipe<slamb::chain<slamb::random_k<>, slamb::int8>, slamb::residual<>,
                                             slamb::layerwise_trust_ratio, host_backend>>);
static_assert(has_recipe<slamb::slamb<>, detail::slamb_recipe<slamb::random_k<>, slamb::local_momentum,
                                                              slamb::rescaled_trust_ratio<>, host_backend>>);
using of_mean_step = slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>;
static_assert(has_recipe<slamb::slamb<slamb::sync::quantized_difference<slamb::int4>>,
                         detail::slamb_recipe<slamb::random_k<>, slamb::local_momentum, of_mean_step, host_backend,
                                              slamb::sync::quantized_difference<slamb::int4>>>);
static_assert(has_recipe<slamb::slamb_by_differences<>,
                         detail::slamb_recipe<slamb::chain<slamb::random_k<>, slamb::int8>, slamb::local_momentum,
                                              of_mean_step, host_backend, slamb::sync::quantized_difference<>>>);
static_assert(
    has_recipe<slamb::one_bit_adam<>, detail::one_bit_recipe<slamb::sign, slamb::two_sided<>, slamb::unit_trust_ratio,
                                                             host_backend, slamb::fixed_warm_up>>);
static_assert(has_recipe<slamb::one_bit_lamb<slamb::dense_in<slamb::fp16>, slamb::automatic_warm_up, slamb::int8>,
                         detail::one_bit_recipe<slamb::int8, slamb::two_sided<>, slamb::frozen_trust_ratio,
                                                host_backend, slamb::automatic_warm_up, slamb::fp16>>);
static_assert(
    has_recipe<slamb::zero_one_adam<>,
               detail::zero_one_adam_recipe<slamb::sign, slamb::two_sided<>, host_backend,
                                            slamb::exponential_variance_interval, slamb::doubling_local_interval>>);

// The names in saved states.
static_assert(slamb::lamb<>::recipe_name == std::string_view("basic_lamb") &&
              slamb::adamw<>::recipe_name == std::string_view("basic_lamb") &&
              slamb::slamb<>::recipe_name == std::string_view("basic_slamb") &&
              slamb::one_bit_lamb<>::recipe_name == std::string_view("basic_one_bit") &&
              slamb::zero_one_adam<>::recipe_name == std::string_view("basic_zero_one_adam"));

const test_support::model tensors{{300}, {17, 1}};

/// The parameters of rank 0 of two, after steps with gradients that differ between ranks.
template <class Optimizer>
std::vector<float> trained() {
  std::vector<float> result;
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    replica mine(tensors, std::vector<float>(test_support::total_size(tensors), 1.0F));
    Optimizer its(mine.parameters(), {.weight_decay = 0.0}, std::move(communicator), {.threads = 1});
    for (int t = 0; t < 3; ++t) {
      std::vector<float> gradient = mine.values();
      for (float& g : gradient) g += static_cast<float>(rank);
      mine.set_gradient(gradient);
      its.step(0.1);
    }
    CHECK(its.communicator().size() == 2);
    CHECK(its.template communicator<thread_communicator>().rank() == rank);
    CHECK_THROWS_AS(its.template communicator<slamb::self_communicator>(), std::bad_cast);
    if (rank == 0) result = mine.values();
  });
  return result;
}

TEST_CASE("roles: an optimizer that does not name its Communicator has the bits of one that does") {
  const std::vector<float> named = trained<slamb::lamb<slamb::random_k<>, thread_communicator>>();
  CHECK(named == trained<slamb::lamb<slamb::random_k<>>>());
  CHECK(named == trained<slamb::lamb<slamb::any_communicator<>, slamb::random_k<>>>());
  CHECK(named != std::vector<float>(named.size(), 1.0F));
}

TEST_CASE("roles: without a Communicator there is one rank") {
  replica mine(tensors, std::vector<float>(test_support::total_size(tensors), 1.0F));
  slamb::lamb<> its(mine.parameters());
  CHECK(its.communicator().size() == 1);
  CHECK_NOTHROW(its.communicator<slamb::self_communicator>());
  static_assert(std::is_same_v<decltype(its.communicator()), slamb::any_communicator<>&>);
  slamb::lamb<> with_backend(mine.parameters(), {}, {}, {.threads = 1});
  CHECK(with_backend.communicator().rank() == 0);
}

/// Has no collectives but the sum of floats.
struct summing_communicator {
  static int rank() { return 0; }
  static int size() { return 1; }
  void all_reduce_sum(std::span<float> /*values*/, slamb::host_stream /*stream*/) {}
};

TEST_CASE("roles: an any_communicator that lacks a collective is refused by the constructor") {
  replica mine(tensors, std::vector<float>(test_support::total_size(tensors), 1.0F));
  CHECK_NOTHROW(slamb::lamb<>(mine.parameters(), {}, slamb::any_communicator<>(summing_communicator{})));
  CHECK_THROWS_WITH_AS(
      slamb::lamb<slamb::sign>(mine.parameters(), {}, slamb::any_communicator<>(summing_communicator{})),
      doctest::Contains("needs a Communicator with all_to_all of bytes"), std::invalid_argument);
}

TEST_CASE("roles: choose takes ranks of any type for optimizers that do not name theirs") {
  slamb::run_ranks(2, [](thread_communicator communicator) {
    replica mine(tensors, std::vector<float>(test_support::total_size(tensors), 1.0F));
    auto its = slamb::choose<slamb::lamb<>, slamb::lamb<slamb::random_k<>>>(mine.parameters(), {}, {},
                                                                            std::move(communicator));
    mine.set_gradient(mine.values());
    its.step(0.1);
    CHECK(its.communicator().size() == 2);
  });
}

/// An optimizer of a user, derived from one of the library.
using base = slamb::slamb<>;
struct derived : base {
  using base::base;
};

TEST_CASE("roles: choose knows the kinds of step of an optimizer by its recipe, also of a derived one") {
  static_assert(slamb::kit::trial_of<derived>::kinds == 2 && slamb::kit::trial_of<slamb::lamb<>>::kinds == 1);
  slamb::run_ranks(2, [](thread_communicator communicator) {
    replica mine(tensors, std::vector<float>(test_support::total_size(tensors), 1.0F));
    auto its = slamb::choose<slamb::lamb<>, derived>(mine.parameters(), {}, {}, std::move(communicator));
    CHECK(its.statistics().chosen.trial_steps > 0);
  });
}

}  // namespace
}  // namespace optimizer_roles_tests
