// The time of one step() of the optimizers that exchange codes, after their variance is frozen, or in steps that do not refresh
// it.
#include <cstdint>
#include <string>

#include "slamb/slamb.hpp"
#include "step.hpp"
#include "step_time.hpp"

namespace bench {
namespace {

// The first step refreshes the variance, and the steps after it exchange codes of the gradient.
struct refreshed_once {
  struct state_type {};
  bool refreshes(const state_type& /*state*/, std::uint64_t tau) const { return tau == 2; }
  void advance(state_type& /*state*/, std::uint64_t /*tau*/) const {}
  bool ends_after(std::uint64_t /*tau*/) const { return false; }
};

// The variance is frozen after the first step.
struct frozen_at_once : refreshed_once {
  bool ends_after(std::uint64_t /*tau*/) const { return true; }
};

template <bool Answer>
struct always {
  struct state_type {};
  bool exchanges(const state_type& /*state*/, std::uint64_t /*tau*/) const { return Answer; }
  void advance(state_type& /*state*/) const {}
};

template <class Communicator, class VarianceSchedule, class LocalSchedule>
using zero_one_adam = slamb::zero_one_adam<VarianceSchedule, LocalSchedule, Communicator>;

template <class Communicator>
using one_bit_lamb_in_bfloat16 = slamb::one_bit_lamb<slamb::two_sided<slamb::bfloat16>, Communicator>;

// Calls visit.template operator()<Optimizer>(name, options) for each optimizer.
template <class Communicator, class Visit>
void for_each_optimizer(const Visit& visit) {
  using in_variance = zero_one_adam<Communicator, refreshed_once, always<false>>;
  using in_local_step = zero_one_adam<Communicator, frozen_at_once, always<false>>;
  using in_exchange = zero_one_adam<Communicator, frozen_at_once, always<true>>;
  const slamb::fixed_warm_up shortest{.steps = 1};
  visit.template operator()<slamb::one_bit_adam<Communicator>>("one_bit_adam",
                                                               {.compress_single_rank = true, .warm_up = shortest});
  visit.template operator()<slamb::one_bit_lamb<Communicator>>("one_bit_lamb",
                                                               {.compress_single_rank = true, .warm_up = shortest});
  visit.template operator()<one_bit_lamb_in_bfloat16<Communicator>>(
      "one_bit_lamb/errors:bfloat16", {.compress_single_rank = true, .warm_up = shortest});
  visit.template operator()<in_variance>("zero_one_adam/compressed", {.compress_single_rank = true});
  visit.template operator()<in_local_step>("zero_one_adam/local", {.compress_single_rank = true});
  visit.template operator()<in_exchange>("zero_one_adam/exchange", {.compress_single_rank = true});
}

}  // namespace

void register_one_bit_steps(const shape_set& shapes, unsigned threads) {
  for_each_optimizer<slamb::self_communicator>(
      [&]<class Optimizer>(const std::string& name, const typename Optimizer::options_type& options) {
        register_single_rank<Optimizer>(name + "/single_rank", shapes, threads, options);
      });
}

void register_one_bit_steps_of_two_ranks(const shape_set& shapes) {
  for_each_optimizer<slamb::thread_communicator>(
      [&]<class Optimizer>(const std::string& name, const typename Optimizer::options_type& options) {
        register_two_ranks<Optimizer>(name, shapes, options);
      });
}

}  // namespace bench
