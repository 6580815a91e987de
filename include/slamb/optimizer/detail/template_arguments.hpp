// Checks an optimizer's template arguments, with a sentence for an argument in the wrong place. Class templates accept any types
// and check them here, because a compiler reports a failed constraint by the concept and not by the remedy.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb::detail {

/// Compiles only if each argument is of the right kind; `value` is then true.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
struct arguments_fit {
  static constexpr bool value = true;

  static_assert(communicator<Communicator>,
                "slamb: the Communicator of an optimizer must have rank() and size(), as self_communicator and "
                "thread_communicator do. It is the first template argument of lamb, adamw, slamb, one_bit_adam, "
                "one_bit_lamb and zero_one_adam. lamb and adamw take no Compressor; to compress, use "
                "basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>");
  static_assert(backend<Backend>,
                "slamb: the Backend of an optimizer must be a backend, such as host_backend or cuda_backend. It is the "
                "last template argument: lamb<Communicator, Backend>, adamw<Communicator, Backend>, "
                "slamb<Communicator, Compressor, TrustRatio, Backend>, one_bit_adam, one_bit_lamb and zero_one_adam "
                "<Communicator, Compressor, Backend>. lamb and adamw take no Compressor; to compress, use "
                "basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>");
  static_assert(compressor<Compressor>,
                "slamb: the Compressor of an optimizer must be a compressor, such as random_k<>, top_k, sign or int8. "
                "It is the second template argument of slamb<Communicator, Compressor, TrustRatio, Backend> and of "
                "one_bit_adam, one_bit_lamb and zero_one_adam <Communicator, Compressor, Backend>, and the first of "
                "basic_lamb, basic_slamb, basic_one_bit and basic_zero_one_adam");
  static_assert(error_feedback<ErrorFeedback>,
                "slamb: the ErrorFeedback of an optimizer must be an error feedback, such as no_error_feedback, "
                "residual<>, two_sided<> or local_momentum. It is the second template argument of basic_lamb, "
                "basic_slamb, basic_one_bit and basic_zero_one_adam, after the Compressor");
  static_assert(
      trust_ratio<TrustRatio>,
      "slamb: the TrustRatio of an optimizer must be a trust ratio, such as unit_trust_ratio or layerwise_trust_ratio. "
      "It is the third template argument of slamb<Communicator, Compressor, TrustRatio, Backend> and of basic_lamb, "
      "basic_slamb and basic_one_bit <Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>");
};

/// Stands for a recipe whose template arguments do not fit.
struct no_recipe {};

}  // namespace slamb::detail
