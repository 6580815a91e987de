// expect: t\.scale\(t\.factors
#include "slamb/slamb.hpp"

// Has sums and factors, but no scale.
struct unscaled_trust_ratio {
  static constexpr int sums_per_segment = 1;
  template <class Real, class Sums>
  void accumulate(const slamb::update_terms<Real>& x, bool, Sums& sums) const {
    sums.add_square(0, x.update);
  }
  float factors(const double* sums, slamb::tensor_properties) const { return static_cast<float>(sums[0]); }
};

slamb::slamb<slamb::self_communicator, slamb::random_k<>, unscaled_trust_ratio> optimizer({}, {});
