// The lowest layer includes a high one: layers.py must say so.
#pragma once

#include "slamb/optimizer/optimizer.hpp"
