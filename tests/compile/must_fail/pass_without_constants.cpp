// expect: slamb: a pass must have constants.std::uint32_t tensor. const
#include <cstdint>

#include "slamb/slamb.hpp"

// A pass that is not derived from pass_without_constants.
struct clear_parameter {
  using reads = slamb::detail::arrays<>;
  using writes = slamb::detail::arrays<slamb::detail::array::parameter>;
  static constexpr int sums = 0;
  template <class Element, class Constants, class Sums>
  void operator()(Element& e, const Constants&, Sums&) const {
    e.parameter = typename Element::real(0.0F);
  }
};

void run(const slamb::detail::host::thread_launcher& launcher, const slamb::detail::view_in<>& view) {
  launcher.launch(slamb::detail::run_pass{clear_parameter{}, view, {0, 1}});
}
