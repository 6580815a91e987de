// Includes it for nobody.
#pragma once

#ifdef SLAMB_NEVER_DEFINED
#include "core/concepts.hpp"
#endif

namespace wrong_headers {}
