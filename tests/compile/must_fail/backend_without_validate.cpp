// expect: slamb: a template argument of an optimizer has members of a Backend, but is none.*b\.validate
#include "slamb/slamb.hpp"

struct half_a_backend {
  using stream_type = slamb::host_stream;
  using executor_type = slamb::host_backend::executor_type;
};

slamb::lamb<half_a_backend> optimizer({}, {});
