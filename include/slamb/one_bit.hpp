// 1-bit Adam, 1-bit LAMB and 0/1 Adam alone; compiles in less time than slamb.hpp.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/error_feedback/residual.hpp"
#include "slamb/error_feedback/two_sided.hpp"
#include "slamb/optimizer/one_bit.hpp"
#include "slamb/optimizer/zero_one_adam.hpp"
#include "slamb/schedule/learning_rate.hpp"
