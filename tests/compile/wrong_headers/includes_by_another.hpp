// Includes core/concepts.hpp through another header.
#pragma once

#include "includes_itself.hpp"

namespace wrong_headers {}
