// expect: the launcher of a Backend must have the members of detail::backend_launcher
#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/slamb.hpp"

struct half_a_launcher : slamb::emulated_backend::launcher_type {
  using stream_launcher::stream_launcher;
  void read_later() const;
};
struct its_backend : slamb::emulated_backend {
  using launcher_type = half_a_launcher;
  launcher_type make_launcher(std::uint64_t /*elements*/) const {
    return launcher_type(slamb::detail::cuda::emulator(most_blocks, order));
  }
};

slamb::lamb<its_backend> optimizer({}, {});
