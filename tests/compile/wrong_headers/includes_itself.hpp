// Includes core/concepts.hpp directly and unconditionally.
#pragma once

#include "core/concepts.hpp"

namespace wrong_headers {}
