// expect: slamb: the Backend of an optimizer must be a backend, as host_backend and cuda_backend are.*basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>
// first of 40 lines
#include "slamb/slamb.hpp"

slamb::lamb<slamb::self_communicator, slamb::int8> optimizer({});
