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
class local_reduction {
 public:
  template <class Base>
  void plan(Base& base) {
    if (base.ranks.local_size() == 1) return;
    given_ = base.memory.template plan<segment>("tables", std::as_const(base.tensors).segments().size());
    gradient_ = plan_summable(base.memory, "local gradient", base.tensors.elements());
  }

  /// Makes the tables.
  /// @param table  [tensors] which passes read: has the user's gradients, and gets those of the node
  template <class Base>
  void start(const Base& base, std::span<segment> table) const {
    if (!is_active()) return;
    const std::span<const segment> of_user = base.tensors.segments();
    std::vector<segment> of_node(of_user.begin(), of_user.end());
    for (segment& s : of_node) s.gradient = payload_in(base.memory.view(gradient_)).data() + s.first;
    base.executor.upload(of_user, base.memory.view(given_));
    base.executor.upload(std::span<const segment>(of_node), table);
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
  template <class Base>
  void reduce(Base& base) const {
    if (gradient_.count == 0) return;
    model_view shares = base.view();
    shares.segments = base.memory.view(given_).data();
    const std::span<float> all = base.memory.view(gradient_);
    shares.exchanged = payload_in(all).data();
    base.executor.run(gather_share_of_gradient{{}, 1.0F / static_cast<float>(base.ranks.local_size())}, shares,
                      base.all_tiles());
    base.executor.invoke(write_sum_header{base.record(), all.data(), true, true});
    base.ranks.reduce_locally(all, base.executor.stream());
    base.executor.invoke(read_local_sum_header{base.record(), all.data(), base.ranks.local_size(), base.ranks.rank(),
                                               base.ranks.size() == 1});
  }

 private:
  region<segment> given_;
  region<float> gradient_;
};

}  // namespace slamb::detail
