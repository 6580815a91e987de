// The template arguments of an optimizer, which are policies in any order: each argument is sorted by its role, which is a concept.
// The optimizers take any types and check them here, because a compiler reports a failed constraint by the concept and not by the
// remedy.
#pragma once

#include <type_traits>

#include "slamb/compressor/dense_in.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/error_feedback/residual.hpp"
#include "slamb/error_feedback/two_sided.hpp"

namespace slamb::detail {

/// Has the bits of a quantizer, but not all its members.
template <class P>
inline constexpr bool is_almost_a_quantizer = compressor<P> && !selects<P> && !quantizer<P>;

// The roles. No type of the library fits two of them. A recipe adds those of its schedules.
struct compressor_role {
  template <class P>
  static constexpr bool fits = compressor<P> && !is_almost_a_quantizer<P>;
};
struct error_feedback_role {
  template <class P>
  static constexpr bool fits = error_feedback<P>;
};
struct trust_ratio_role {
  template <class P>
  static constexpr bool fits = trust_ratio<P>;
};
struct parameter_sync_role {
  template <class P>
  static constexpr bool fits = sync::parameter_sync<P>;
};
struct partition_role {
  template <class P>
  static constexpr bool fits = capability::partitions_state<P>;
};
template <class P>
inline constexpr bool is_dense_in = false;
template <class Compressor>
inline constexpr bool is_dense_in<dense_in<Compressor>> = true;
struct dense_compressor_role {
  template <class P>
  static constexpr bool fits = is_dense_in<P>;
};
struct communicator_role {
  template <class P>
  static constexpr bool fits = communicator<P>;
};
struct backend_role {
  template <class P>
  static constexpr bool fits = backend<P>;
};

/// False, unless P has a member that only one role has, but does not fit that role. Then it does not compile, and the compiler lists
/// what is missing.
template <class P>
constexpr bool is_almost_a_policy() {
  constexpr bool has_sums = requires { P::sums_per_segment; };
  constexpr bool has_errors = requires { P::worker_state; };
  constexpr bool has_rank = requires(P & p) { p.rank(); };
  constexpr bool has_launcher = requires { typename P::launcher_type; };
  if constexpr (!std::is_same_v<P, std::remove_cv_t<P>>)
    static_assert(std::is_same_v<P, std::remove_cv_t<P>>,
                  "slamb: a template argument of an optimizer is const; name the type without const");
  else if constexpr (is_almost_a_quantizer<P>)
    static_assert(
        quantizer<P>,
        "slamb: a template argument of an optimizer has bits_per_element, as a quantizer has, but is none. A "
        "quantizer has bits_per_element from 1 to 32, a scale, with a scale also a member scales or block, and "
        "const functions encode(x, scale, uniform) and decode(code, scale)");
  else if constexpr (has_sums && !trust_ratio<P>)
    static_assert(trust_ratio<P>,
                  "slamb: a template argument of an optimizer has sums_per_segment, as a TrustRatio has, but is none");
  else if constexpr (has_errors && !error_feedback<P>)
    static_assert(error_feedback<P>,
                  "slamb: a template argument of an optimizer has members of an ErrorFeedback, but is none");
  else if constexpr (has_rank && !communicator<P>)
    static_assert(communicator<P>,
                  "slamb: a template argument of an optimizer has members of a Communicator, but is none");
  else if constexpr (has_launcher && !backend<P>)
    static_assert(backend<P>, "slamb: a template argument of an optimizer has members of a Backend, but is none");
  else
    return false;
  return true;
}

/// The roles of an optimizer's policies.
template <class... Roles>
struct roles {
  template <class P>
  static constexpr int fitting = (0 + ... + (Roles::template fits<P> ? 1 : 0));
};

/// Compiles only if P fits one of the roles; `value` is then true.
template <class P, class Roles>
struct is_policy {
  static constexpr bool value = true;
  static constexpr int fitting = std::is_same_v<P, std::remove_cv_t<P>> ? Roles::template fitting<P> : 0;

  static_assert(
      fitting > 0 || is_almost_a_policy<P>(),
      "slamb: a template argument of an optimizer fits none of its roles. All have a Compressor (such as int8), "
      "an ErrorFeedback (residual<>), a Communicator (thread_communicator) and a Backend (host_backend); all "
      "but 0/1 Adam a TrustRatio (layerwise_trust_ratio); LAMB and AdamW a partition (sync::partition<>); SLAMB a "
      "ParameterSync (sync::quantized_difference<>); 1-bit Adam and 1-bit LAMB a WarmUp (automatic_warm_up) and a "
      "DenseCompressor (dense_in<bf16>); 0/1 Adam a VarianceSchedule, a LocalSchedule and a DenseCompressor");
  static_assert(fitting < 2,
                "slamb: a template argument of an optimizer has the members of two roles, such as a Compressor and a "
                "Communicator; make two types of it");
};

/// The policy of a role: the first argument that fits it. Does not compile if another one fits it too.
template <class Role, class Default, class... Arguments>
struct argument_of {
  using type = Default;
};
template <class Role, class Default, class First, class... Others>
requires(Role::template fits<First>) struct argument_of<Role, Default, First, Others...> {
  using type = First;
  static_assert(!(Role::template fits<Others> || ...),
                "slamb: two template arguments of an optimizer have the same role, such as two Compressors; leave one "
                "out. The Compressor of dense gradients is given as dense_in<bf16>");
};
template <class Role, class Default, class First, class... Others>
requires(!Role::template fits<First>) struct argument_of<Role, Default, First, Others...>
    : argument_of<Role, Default, Others...> {
};
template <class Role, class Default, class... Arguments>
using policy_of = typename argument_of<Role, Default, Arguments...>::type;

/// The ErrorFeedback that goes with a Compressor of gradients: both sides keep the compression error of a quantizer, and a rank
/// keeps what a sparsifier leaves out.
template <compressor Compressor>
struct feedback_of {
  using type = std::conditional_t<quantizer<Compressor>, two_sided<>, residual<>>;
};
template <compressor Compressor>
requires requires { requires Compressor::selects_all; }
struct feedback_of<Compressor> {
  using type = no_error_feedback;
};
template <compressor Compressor>
using feedback_for = typename feedback_of<Compressor>::type;

}  // namespace slamb::detail
