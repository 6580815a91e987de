// Includes core/concepts.hpp below code that might need it.
#pragma once

namespace wrong_headers {}

#include "core/concepts.hpp"
