// LAMB and AdamW whose state is partitioned over the ranks, with sync::partition and every quantizer of the library.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/compressed_lamb.hpp"
#include "slamb/optimizer/partitioned_lamb.hpp"
#include "slamb/parameter_sync/partition.hpp"
