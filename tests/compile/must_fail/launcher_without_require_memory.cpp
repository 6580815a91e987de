// expect: the launcher of a Backend must have the members of detail::backend_launcher
#include "slamb/slamb.hpp"

struct half_a_launcher : slamb::host_backend::launcher_type {
  using slamb::host_backend::launcher_type::thread_launcher;
  void require_memory() const;
};
struct its_backend : slamb::host_backend {
  using launcher_type = half_a_launcher;
  launcher_type make_launcher(std::uint64_t elements) const { return {1, elements}; }
};

slamb::lamb<its_backend> optimizer({}, {});
