// SLAMB alone, with the library's sparsifiers and chains; compiles in less time than slamb.hpp.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/compressor/chain.hpp"
#include "slamb/compressor/explicit_mask.hpp"
#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/no_compressor.hpp"
#include "slamb/compressor/random_k.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/compressor/top_k.hpp"
#include "slamb/optimizer/slamb.hpp"
#include "slamb/optimizer/slamb_by_differences.hpp"
#include "slamb/parameter_sync/quantized_difference.hpp"
#include "slamb/parameter_sync/whole_average.hpp"
#include "slamb/schedule/learning_rate.hpp"
