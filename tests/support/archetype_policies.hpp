// Policies as a user might write them. They differ from the library's own as much as the concepts allow.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "slamb/core/concepts.hpp"
#include "slamb/core/real.hpp"

namespace test_support {

// ------------------------------------------------------------------------------------------------ compressors

/// Default facts of a sparsifier; the others override some.
struct sparsifier_facts {
  static constexpr bool payload_is_constant = false;
};

/// Can only tell if an element is sent. Its facts have odd types, and it has a setting.
struct every_nth {
  static constexpr int payload_is_constant = 0;

  std::uint64_t n = 3;

  struct chosen {
    std::uint64_t n, step;
    bool selects(const slamb::coordinate& c) const { return (c.offset + c.index + step) % n == 0; }
  };
  chosen at(std::uint64_t step) const { return {n, step}; }

  void validate() const {
    if (n == 0) throw std::invalid_argument("every_nth: n = 0");
  }
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add_word("every_nth's n", n);
  }
};

/// Sends a quarter of a tensor at each step, from the last to the first. It keeps ages, in a type of its own, and has no other
/// optional function.
struct marching_quarters : sparsifier_facts {
  struct chosen {
    std::uint64_t step;

    std::uint64_t since(const slamb::coordinate& c) const {
      const std::uint64_t quarter = 3 - c.index * 4 / c.tensor_size;
      return (step + 4 - quarter) % 4;
    }
    unsigned char age(const slamb::coordinate& c) const { return static_cast<unsigned char>(std::min(since(c), step)); }
    bool selects(const slamb::coordinate& c) const { return since(c) == 0; }
  };
  static chosen at(std::uint64_t step) { return {step}; }
};

/// Sends everything at some steps and nothing at the others.
struct now_and_then : sparsifier_facts {
  std::uint64_t interval = 3;

  struct chosen {
    bool sends;
    bool selects(slamb::coordinate) const { return sends; }
  };
  chosen at(std::uint64_t step) const { return {step % interval == 0}; }
};

/// Never sends anything: each rank trains by itself.
struct nothing_ever : sparsifier_facts {
  struct chosen {
    bool selects(slamb::coordinate) const { return false; }
  };
  static chosen at(std::uint64_t /*step*/) { return {}; }
  static std::uint64_t largest_payload(std::uint64_t /*size*/) { return 0; }
};

/// Sends whole tensors in turn. It can count and iterate over runs, but keeps no ages.
struct tensor_by_tensor : sparsifier_facts {
  std::uint32_t period = 3;

  struct chosen {
    std::uint64_t turn;
    std::uint32_t period;

    bool selects(slamb::coordinate c) const { return c.tensor % period == turn; }
    std::uint64_t selected_before(slamb::coordinate c) const { return selects(c) ? c.index : 0; }
    template <class Visit>
    void runs(slamb::coordinate c, std::uint64_t count, Visit&& visit) const {
      if (count > 0) visit(c.index, count, selects(c) ? 0U : 1U);
    }
  };
  chosen at(std::uint64_t step) const { return {step % period, period}; }
};

/// Sends the even elements of each tensor, then the odd ones. It reports ages in runs of one element, and fills buffers itself
/// only where these begin at an even element.
struct alternating : sparsifier_facts {
  struct chosen {
    std::uint64_t step;

    std::uint32_t age(slamb::coordinate c) const { return static_cast<std::uint32_t>((c.index + step) % 2); }
    bool selects(slamb::coordinate c) const { return age(c) == 0; }
    std::uint64_t selected_before(slamb::coordinate c) const { return (c.index + 1 - step % 2) / 2; }
    template <class Visit>
    void runs(slamb::coordinate c, std::uint64_t count, Visit&& visit) const {
      for (const std::uint64_t end = c.index + count; c.index < end; ++c.index) visit(c.index, 1, age(c));
    }
    bool fill(slamb::coordinate c, std::uint32_t count, slamb::capability::staleness_discounts table,
              std::uint16_t* bits, float* discount) const {
      if (c.index % 2 != 0) return false;
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t its_age = (i + static_cast<std::uint32_t>(step % 2)) % 2;
        if (its_age == 0) slamb::set_bit(bits, i);
        if (discount != nullptr) discount[i] = table[its_age];
      }
      return true;
    }
  };
  static chosen at(std::uint64_t step) { return {step}; }
  static std::uint64_t largest_payload(std::uint64_t size) { return (size + 1) / 2; }
};

/// Sends dense gradients, as `no_compressor` does, but is another type and not an aggregate.
class plain_copy : public sparsifier_facts {
 public:
  static constexpr bool selects_all = true;

  plain_copy() {}  // NOLINT(modernize-use-equals-default): no aggregate, on purpose

  struct chosen {
    bool selects(slamb::coordinate) const { return true; }
  };
  chosen at(std::uint64_t) const { return {}; }
};

static_assert(slamb::sparsifier<every_nth> && slamb::sparsifier<marching_quarters> && slamb::sparsifier<now_and_then>);
static_assert(slamb::sparsifier<nothing_ever> && slamb::sparsifier<tensor_by_tensor> && slamb::sparsifier<alternating>);
static_assert(slamb::sparsifier<plain_copy>);
static_assert(!slamb::capability::has_age<every_nth::chosen> && !slamb::capability::has_runs<every_nth::chosen>);
static_assert(slamb::capability::has_age<marching_quarters::chosen> &&
              !slamb::capability::has_runs<marching_quarters::chosen>);
static_assert(!slamb::capability::has_selected_before<marching_quarters::chosen>);
static_assert(slamb::capability::has_runs<tensor_by_tensor::chosen> &&
              !slamb::capability::has_age<tensor_by_tensor::chosen>);
static_assert(slamb::capability::has_selected_before<tensor_by_tensor::chosen> &&
              !slamb::capability::has_fill<tensor_by_tensor::chosen>);
static_assert(slamb::capability::has_fill<alternating::chosen> && slamb::capability::has_age<alternating::chosen>);

// ----------------------------------------------------------------------------------------------- trust ratios

/// One sum: damps large updates, scale = 1/√(1 + ‖u‖²/damping²).
struct damped_update {
  double damping = 2.0;

  static constexpr int sums_per_segment = 1;

  template <class Real, class Sums>
  void accumulate(const slamb::update_terms<Real>& x, bool /*received*/, Sums& sums) const {
    sums.add_square(0, x.update);
  }
  float factors(const double* sums, slamb::tensor_properties /*facts*/) const {
    return static_cast<float>(1.0 / std::sqrt(1.0 + sums[0] / (damping * damping)));
  }
  template <class Real>
  Real scale(float factors, const Real& /*staleness discount*/) const {
    return Real(factors);
  }
  void validate() const {
    if (!(damping > 0.0)) throw std::invalid_argument("damped_update: damping must be positive");
  }
};

/// Six sums: of p, w and u, over exchanged and over other elements; ε is uncorrected. scale = s r_sent + (1 − s) r_unsent, at
/// most 2, with r = ‖p‖/(‖w‖ + ‖u‖ + 1) over the elements of that part.
struct six_norms {
  static constexpr int sums_per_segment = 6;
  static constexpr bool epsilon_is_uncorrected = true;

  struct both {
    float sent, unsent;
  };

  template <class Real, class Sums>
  void accumulate(const slamb::update_terms<Real>& x, bool received, Sums& sums) const {
    const int part = received ? 3 : 0;
    sums.add_square(part, x.parameter);
    sums.add_square(part + 1, x.direction);
    sums.add_square(part + 2, x.update);
  }
  both factors(const double* sums, slamb::tensor_properties /*facts*/) const {
    const auto of = [&](std::size_t part) {
      return static_cast<float>(std::sqrt(sums[part]) / (std::sqrt(sums[part + 1]) + std::sqrt(sums[part + 2]) + 1.0));
    };
    return {of(3), of(0)};
  }
  template <class Real>
  Real scale(const both& f, const Real& discount) const {
    using slamb::minimum;
    return minimum(discount * Real(f.sent) + (Real(1.0F) - discount) * Real(f.unsent), Real(2.0F));
  }
};

/// No sums: the scale depends only on the staleness discount and the tensor's facts.
struct as_fresh_as_it_is {
  static constexpr int sums_per_segment = 0;

  template <class Real, class Sums>
  void accumulate(const slamb::update_terms<Real>& /*x*/, bool /*received*/, Sums& /*sums*/) const {}
  float factors(const double* /*sums*/, slamb::tensor_properties properties) const {
    return properties.one_dimensional ? 0.5F : 1.0F / static_cast<float>(properties.world);
  }
  template <class Real>
  Real scale(float factors, const Real& discount) const {
    using slamb::maximum;
    using slamb::square_root;
    return maximum(square_root(discount), Real(0.25F)) * Real(factors);
  }
};

static_assert(slamb::trust_ratio<damped_update> && slamb::trust_ratio<six_norms>);
static_assert(slamb::trust_ratio<as_fresh_as_it_is>);
static_assert(slamb::capability::has_uncorrected_epsilon<six_norms> &&
              !slamb::capability::has_uncorrected_epsilon<damped_update>);

// -------------------------------------------------------------------------------------------- error feedbacks

/// Keeps the unsent part, as `local_momentum` does. It has facts of odd types, settings and a validation of these.
struct keeps_with_settings {
  static constexpr int keeps_unsent = 1;
  static constexpr int worker_state = 0;
  static constexpr int server_state = 0;

  double strength = 1.0;

  void validate() const {
    if (!(strength == 1.0)) throw std::invalid_argument("keeps_with_settings: strength must be 1");
  }
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("keeps_with_settings' strength", strength);
  }
};

/// As keeps_with_settings, but without validation: only `describe` can tell ranks with different settings apart.
struct keeps_and_describes {
  static constexpr bool keeps_unsent = true;
  static constexpr bool worker_state = false;
  static constexpr bool server_state = false;

  int setting = 0;

  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("keeps_and_describes' setting", static_cast<double>(setting));
  }
};

static_assert(slamb::error_feedback<keeps_with_settings> && slamb::error_feedback<keeps_and_describes>);

}  // namespace test_support
