// Includes it where it is sure to be read.
#pragma once

#include "core/concepts.hpp"

namespace wrong_headers {}
