// Passes for tests of the compressed exchange: passes of the library, and passes whose sums are exact. Each has functions that
// build its constants from the tables of a test.
#pragma once

#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/optimizer/detail/one_bit_passes.hpp"
#include "slamb/optimizer/detail/zero_one_passes.hpp"
#include "slamb/trust_ratio/frozen_trust_ratio.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"

namespace test_support {

/// The signal is gradient + momentum. Receiving adds the exchanged mean to the parameter.
struct sum_the_mean {
  struct type : slamb::detail::pass_without_constants {
    using signal_reads = slamb::detail::arrays<slamb::detail::array::gradient, slamb::detail::array::momentum>;
    using reads = slamb::detail::arrays<slamb::detail::array::parameter>;
    using writes = slamb::detail::arrays<slamb::detail::array::parameter, slamb::detail::array::accumulated_update>;
    static constexpr int sums = 1;
    static constexpr int maxima = 2;

    template <class Element, class Sums>
    SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& sums) const {
      sums.check_finite(e.gradient);
      return e.gradient + e.momentum;
    }
    template <class Element, class Sums>
    SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& sums) const {
      using slamb::absolute;
      e.parameter = e.parameter + e.exchanged;
      e.accumulated_update = e.exchanged;
      sums.add_square(0, e.exchanged);
      sums.take_maximum(0, absolute(e.parameter));
      sums.take_maximum(1, e.exchanged);
    }
  };
  template <class Rank>
  static type of(const Rank& /*rank*/) {
    return {};
  }
};

/// The same signal. Receiving writes the exchanged mean and the compression error.
struct use_the_loss {
  struct type : sum_the_mean::type {
    static constexpr bool uses_compression_error = true;
    using writes = slamb::detail::arrays<slamb::detail::array::parameter, slamb::detail::array::accumulated_update>;
    static constexpr int sums = 0;
    static constexpr int maxima = 0;

    template <class Element, class Sums>
    SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
      e.parameter = e.exchanged;
      e.accumulated_update = e.compression_error;
    }
  };
  template <class Rank>
  static type of(const Rank& /*rank*/) {
    return {};
  }
};

template <class TrustRatio, class Rank>
slamb::detail::exchanged_momentum<TrustRatio> momentum_of(const Rank& r, const slamb::factors_of<TrustRatio>* factors) {
  return {{{&r.tables.scalars, r.view.segments, r.tables.rates.data(), factors}, {}}, r.tables.signal_scales.data()};
}

/// The receive pass of 1-bit LAMB.
struct refresh {
  using type = slamb::detail::receive_and_refresh<slamb::frozen_trust_ratio>;

  template <class Rank>
  static type of(const Rank& r) {
    static const std::vector<slamb::frozen_trust_ratio::segment_factors> factors(20000, {0.5F});
    return {momentum_of<slamb::frozen_trust_ratio>(r, factors.data()), 10.0F};
  }
};

/// The exchange of 0/1 Adam's updates.
struct exchange_updates {
  using type = slamb::detail::exchange_update;

  template <class Rank>
  static type of(const Rank& r) {
    static const std::vector<slamb::factors_of<slamb::unit_trust_ratio>> factors(20000);
    type made;
    made.tensors = {&r.tables.scalars, r.view.segments, r.tables.rates.data(), factors.data()};
    made.inverse_rate_sums = r.tables.signal_scales.data();
    return made;
  }
};

}  // namespace test_support
