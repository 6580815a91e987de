// LAMB and AdamW alone, with whole gradients: what compiles in less time than slamb.hpp. Compressed: compressed_lamb.hpp.
#pragma once

#include "slamb/optimizer/lamb.hpp"
#include "slamb/schedule/learning_rate.hpp"
