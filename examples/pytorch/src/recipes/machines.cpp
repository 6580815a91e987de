// The machines of the backends: the passes that every optimizer runs.
#include "read.hpp"

template class slamb::detail::machine_on<binding::backend<>>;
template class slamb::detail::machine_on<binding::backend<slamb::precision::bfloat16_momentum>>;
template class slamb::detail::machine_on<binding::backend<slamb::precision::eight_bit_moments>>;
