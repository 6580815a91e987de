#pragma once

#include "slamb/core/named.hpp"
