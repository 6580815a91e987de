// Compiles the recipes of recorded.def.
#include "support/recorded_backend.hpp"

namespace slamb::detail {

#define SLAMB_RECIPE(...) template struct recipe_maker<__VA_ARGS__>;
#include "support/recorded.def"

}  // namespace slamb::detail
