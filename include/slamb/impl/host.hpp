// The machine of the host backend, for the instruction set of the source that includes this header: see source.hpp.
#pragma once

#if !defined(SLAMB_SEPARATE_COMPILATION)
#error "slamb: slamb/impl/host.hpp is for programs that define SLAMB_SEPARATE_COMPILATION in all their sources"
#endif

#include "slamb/backend/host/host_backend.hpp"
#include "slamb/detail/kernel/machine_on.hpp"

template class slamb::detail::machine_on<slamb::host_backend>;
