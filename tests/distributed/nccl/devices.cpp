// The device that is current while an optimizer works, whatever the caller made current since, on a stand-in for the CUDA
// runtime.
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "emulated_stream.hpp"
#include "harness.hpp"
#include "slamb/slamb.hpp"

namespace nccl_devices_tests {
namespace {

using nccl_stand_in::current_device;
using nccl_stand_in::library;
using nccl_tests::backend_beside_stream;
using nccl_tests::device_log;
using nccl_tests::text_of;
using nccl_tests::thrown_by;
using lamb = slamb::lamb<slamb::nccl_communicator, backend_beside_stream>;

/// Two devices; the first is current again at the end.
struct two_devices {
  two_devices() { current_device = 0; }
  ~two_devices() { current_device = 0; }

  library nccl;
  device_log log;
  std::vector<float> data = std::vector<float>(50, 1.0F);
  std::vector<float> gradient = std::vector<float>(50, 0.5F);

  lamb make(cudaStream_t stream) {
    const slamb::parameter tensor{.data = data.data(), .gradient = gradient.data(), .size = data.size()};
    return lamb({&tensor, 1}, {},
                slamb::nccl_communicator(slamb::nccl_communicator::unique_id(), 0, 1, nccl_tests::patient()),
                {.stream = stream, .log = &log});
  }
};

}  // namespace

TEST_CASE("devices: every call uses the device of the construction, and restores the caller's") {
  two_devices on;
  std::optional<lamb> its(on.make(on.nccl.make_stream()));
  std::optional<lamb> other(on.make(on.nccl.make_stream()));
  const std::vector<std::byte> state = its->save_state();
  const double rate = 1e-3;
  const std::vector<std::function<void()>> calls{
      [&] { its->step(rate); },
      [&] { its->step(std::span<const double>(&rate, 1)); },
      [&] { its->step(slamb::device_learning_rates{&rate}); },
      [&] { its->begin_step(rate); },
      [&] { its->gradient_ready(0, 1); },
      [&] { its->finish_step(); },
      [&] { its->statistics(true); },
      [&] { its->save_state(); },
      [&] { its->load_state(state); },
      [&] { its->set_gradient(0, on.gradient.data()); },
      [&] { its->set_gradients(std::vector<const float*>{on.gradient.data()}); },
      [&] { *its = std::move(*other); },
      [&] { its.reset(); },
  };
  const std::size_t before = on.log.calls, asked_before = on.nccl.calls(0).size();
  current_device = 1;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    calls[i]();
    CHECK(on.log.strays == 0);
    CHECK(current_device == 1);
  }
  CHECK(on.log.calls > before + calls.size());
  const std::vector<nccl_stand_in::call> asked = on.nccl.calls(0);
  CHECK(asked.size() > asked_before + calls.size());
  for (std::size_t i = asked_before; i < asked.size(); ++i) CHECK(asked[i].device == 0);
}

TEST_CASE("devices: a call that throws restores the caller's device") {
  two_devices on;
  lamb its = on.make(on.nccl.make_stream());
  current_device = 1;
  CHECK_THROWS_AS(its.step(-1.0), std::invalid_argument);
  CHECK(current_device == 1);
  its.communicator().abort("enough");
  CHECK_THROWS_AS(its.statistics(), slamb::communicator_error);
  CHECK(current_device == 1);
  CHECK(on.log.strays == 0);
}

#if CUDART_VERSION >= 12080
TEST_CASE("devices: a stream of a device that is not current is rejected at construction") {
  two_devices on;
  const cudaStream_t stream = on.nccl.make_stream();
  current_device = 1;
  const auto refusal = thrown_by([&] { on.make(stream); });
  CHECK(text_of(refusal) ==
        "slamb: the stream belongs to device 0, but device 1 is current; call cudaSetDevice(0) first, or pass a stream "
        "of device 1");
  CHECK_THROWS_AS(std::rethrow_exception(refusal), std::invalid_argument);
  CHECK(on.log.calls == 0);
  CHECK(slamb::detail::cuda::device_of(nullptr) == 1);
  CHECK_NOTHROW(on.make(on.nccl.make_stream()));
}
#endif

}  // namespace nccl_devices_tests
