// expect: slamb: a template argument of an optimizer has members of a Backend, but is none.*b\.validate
#include "slamb/slamb.hpp"

struct half_a_backend {
  using stream_type = slamb::host_stream;
  using launcher_type = slamb::host_backend::launcher_type;
};

slamb::lamb<half_a_backend> optimizer({}, {});
