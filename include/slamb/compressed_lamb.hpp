// LAMB and AdamW with every Compressor of the library.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/compressor/chain.hpp"
#include "slamb/compressor/explicit_mask.hpp"
#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/compressor/top_k.hpp"
#include "slamb/error_feedback/residual.hpp"
#include "slamb/error_feedback/two_sided.hpp"
#include "slamb/lamb.hpp"
#include "slamb/optimizer/detail/quantized_gradient.hpp"
#include "slamb/optimizer/detail/sparse_gradient.hpp"
