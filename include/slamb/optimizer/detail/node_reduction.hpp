// The gradient of a node: the mean of its ranks' gradients, which passes then read in the place of the user's.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/element.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"

namespace slamb::detail {

/// This rank's gradient, scaled → the node's.
struct gather_share_of_gradient : pass_without_constants {
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

/// Of ranks that are no nodes, or nodes of one rank: nothing; gradients are read where the user has them. Of nodes of several
/// ranks: g = Σ g_l/n over the n ranks of the node, where gradients and 1/n are floats and so are the products (exact where n is
/// a power of two); the sum is made as the Communicator makes it.
class node_reduction {
 public:
  template <class Context>
  void plan(Context& context) {
    if (context.ranks.local_size() == 1) return;
    given_ = context.memory.template plan<segment>("tables", std::as_const(context.tensors).segments().size());
    gradient_ = plan_summable(context.memory, "local gradient", context.tensors.elements());
  }

  /// Makes the tables.
  /// @param table  [tensors] which passes read: has the user's gradients, and gets those of the node
  template <class Context>
  void start(const Context& context, std::span<segment> table) const {
    if (!is_active()) return;
    const std::span<const segment> of_user = context.tensors.segments();
    std::vector<segment> of_node(of_user.begin(), of_user.end());
    for (segment& s : of_node) s.gradient = payload_in(context.memory.view(gradient_)).data() + s.first;
    context.executor.upload(of_user, context.memory.view(given_));
    context.executor.upload(std::span<const segment>(of_node), table);
  }

  /// [tensors] the table with the user's gradients, of those that there are.
  std::span<segment> given(const arena& memory, std::span<segment> table) const noexcept {
    return is_active() ? memory.view(given_) : table;
  }

  /// Whether the gradient that passes read is there only when `reduce` has made it.
  bool is_active() const noexcept { return given_.count > 0; }

  /// Makes the gradient of the node, in a step that has begun and of which all gradients are ready. It is not finite, on
  /// all ranks of the node, if that of any is not: passes find the same on all. All know if any has seen before what is not, and
  /// if they have parted.
  template <class Context>
  void reduce(Context& context) const {
    if (gradient_.count == 0) return;
    model_view shares = context.view();
    shares.segments = context.memory.view(given_).data();
    const std::span<float> all = context.memory.view(gradient_);
    shares.exchanged = payload_in(all).data();
    context.executor.run(gather_share_of_gradient{{}, 1.0F / static_cast<float>(context.ranks.local_size())}, shares,
                         context.all_tiles());
    context.executor.invoke(write_sum_header{context.record(), all.data(), true, true});
    context.ranks.all_reduce_in_node(all, context.executor.stream());
    context.executor.invoke(read_local_sum_header{context.record(), all.data(), context.ranks.local_size(),
                                                  context.ranks.rank(), context.ranks.size() == 1});
  }

 private:
  region<segment> given_;
  region<float> gradient_;
};

}  // namespace slamb::detail
