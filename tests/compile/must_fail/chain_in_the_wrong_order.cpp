// expect: a chain is of a sparsifier and a quantizer, in this order
#include "slamb/slamb.hpp"

slamb::slamb<slamb::chain<slamb::int8, slamb::random_k<>>> optimizer({}, {});
