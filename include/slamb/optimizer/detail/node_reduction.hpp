// The gradient of a node: the mean of its ranks' gradients, which passes read instead of the user's.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"

namespace slamb::detail {

/// This rank's gradient, scaled → the node's.
struct gather_share_of_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using reads = arrays<array::gradient>;
  using writes = arrays<array::exchanged>;
  static constexpr int sums = 0;

  float scale = 1.0F;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.exchanged = e.gradient * Real(scale);
  }
};

/// Averages gradients within a node. Without nodes, or with one rank in each, it does nothing, and passes read the user's
/// gradients. With n ranks, g = Σ g_l/n. Each g_l/n is a product of floats, exact if n is a power of two; the Communicator adds
/// them.
class node_reduction {
 public:
  template <class Context>
  void plan(Context& context) {
    if (context.ranks.local_size() == 1) return;
    given_ = context.memory.template plan<segment>("tables", std::as_const(context.tensors).segments().size());
    gradient_ = plan_summable(context.memory, "local gradient", context.tensors.elements());
  }

  /// Makes the tables.
  /// @param table  [tensors] the table that passes read: holds the user's gradients and receives the node's
  template <class Context>
  void start(const Context& context, std::span<segment> table) const {
    if (!is_active()) return;
    const std::span<const segment> of_user = context.tensors.segments();
    std::vector<segment> of_node(of_user.begin(), of_user.end());
    for (segment& s : of_node) {
      s.gradient = payload_in(context.memory.view(gradient_)).data() + s.first;
      s.gradient_type = element_type::float32;
    }
    context.executor.upload(of_user, context.memory.view(given_));
    context.executor.upload(std::span<const segment>(of_node), table);
  }

  /// [tensors] the table that holds the user's gradients.
  std::span<segment> given(const arena& memory, std::span<segment> table) const noexcept {
    return is_active() ? memory.view(given_) : table;
  }

  /// True if `reduce` makes the gradient that passes read.
  bool is_active() const noexcept { return given_.count > 0; }

  /// Makes the gradient of the node once all gradients of the step are ready. If any rank's gradient is not finite, the node's is
  /// not finite on all its ranks, so that passes find the same on all. The sum also carries the overflow flag and the
  /// fingerprints of the node's ranks.
  template <class Context>
  void reduce(Context& context) const {
    if (gradient_.count == 0) return;
    auto shares = context.view();
    shares.segments = context.memory.view(given_).data();
    shares.gradient_scale = context.input_scale();
    const std::span<float> all = context.memory.view(gradient_);
    shares.exchanged = payload_in(all).data();
    context.executor.run(gather_share_of_gradient{{}, 1.0F / static_cast<float>(context.ranks.local_size())}, shares,
                         context.all_tiles());
    context.executor.invoke(write_sum_header{context.record(), all.data(), true});
    context.ranks.all_reduce_in_node(all, context.executor.stream());
    context.executor.invoke(read_local_sum_header{context.record(), all.data(), context.ranks.local_size(),
                                                  context.ranks.rank(), context.ranks.size() == 1});
  }

 private:
  region<segment> given_;
  region<float> gradient_;
};

}  // namespace slamb::detail
