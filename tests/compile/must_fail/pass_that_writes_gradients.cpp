// expect: a pass must not write gradients
#include <cstdint>

#include "slamb/slamb.hpp"

// Clears the user's gradient.
struct clear_gradient : slamb::detail::pass_without_constants {
  using reads = slamb::detail::arrays<slamb::detail::array::gradient>;
  using writes = reads;
  static constexpr int sums = 0;
  template <class Element, class Sums>
  void operator()(Element& e, no_constants, Sums&) const {
    e.gradient = e.gradient * typename Element::real(0.0F);
  }
};

void run(const slamb::detail::host::thread_launcher& launcher, const slamb::detail::view_in<>& view) {
  launcher.launch(slamb::detail::run_pass{clear_gradient{}, view, {0, 1}});
}
