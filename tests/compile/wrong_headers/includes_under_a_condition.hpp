// Includes core/concepts.hpp under a condition that is never true.
#pragma once

#ifdef SLAMB_NEVER_DEFINED
#include "core/concepts.hpp"
#endif

namespace wrong_headers {}
