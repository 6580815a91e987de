// expect: slamb: the first template argument of quantized_exchange must be a quantizer
#include "slamb/kit.hpp"
#include "slamb/slamb.hpp"

namespace kit = slamb::kit;

kit::quantized_exchange<slamb::random_k<>, slamb::no_error_feedback, kit::optimizer_context<slamb::host_backend>>
    of_a_sparsifier({}, false);
