// expect: a pass must not write gradients
#include <cstdint>

#include "slamb/slamb.hpp"

// Clears the user's gradient.
struct clear_gradient : slamb::detail::pass_without_constants {
  static constexpr unsigned reads = slamb::detail::stream::gradient;
  static constexpr unsigned writes = slamb::detail::stream::gradient;
  static constexpr int sums = 0;
  template <class Real, class Sums>
  void operator()(slamb::detail::element<Real>& e, no_constants, Sums&) const {
    e.gradient = e.gradient * Real(0.0F);
  }
};

void run(const slamb::detail::host::executor& executor, const slamb::detail::model_view& view) {
  executor.run(clear_gradient{}, view, {0, 1});
}
