// The lowest layer includes a higher one: layers.py must report it.
#pragma once

#include "slamb/optimizer/optimizer.hpp"
