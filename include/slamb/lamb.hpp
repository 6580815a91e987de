// LAMB and AdamW alone, with dense gradients; compiles in less time than slamb.hpp. For a Compressor: compressed_lamb.hpp.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/optimizer/lamb.hpp"
#include "slamb/schedule/learning_rate.hpp"
