// expect: slamb: the Backend of an optimizer must be a backend, such as host_backend or cuda_backend.*basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>
// first of 40 lines
#include "slamb/slamb.hpp"

slamb::lamb<slamb::self_communicator, slamb::int8> optimizer({});
