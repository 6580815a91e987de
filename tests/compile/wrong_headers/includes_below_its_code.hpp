// Includes it below what might need it.
#pragma once

namespace wrong_headers {}

#include "core/concepts.hpp"
