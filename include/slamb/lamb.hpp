// LAMB and AdamW alone, with whole gradients: what compiles in less time than slamb.hpp. Compressed: compressed_lamb.hpp.
#pragma once

#include "slamb/core/config.hpp"  // first: it says what the compiler must be told

#include "slamb/optimizer/lamb.hpp"
#include "slamb/schedule/learning_rate.hpp"
