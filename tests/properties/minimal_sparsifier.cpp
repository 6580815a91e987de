// A sparsifier with only the members that it must have: both backends send what it selects, and the plan's bytes.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"

namespace properties_minimal_sparsifier_tests {
namespace {

using ranks = slamb::thread_communicator;

/// Every tenth element.
struct tenth {
  struct selection {
    std::uint64_t step;

    SLAMB_HOST_DEVICE bool selects(slamb::coordinate c) const { return (c.index + step) % 10 == 0; }
  };
  selection at(std::uint64_t step) const { return {step}; }
};
static_assert(slamb::sparsifier<tenth>);

/// The same, which says that it sends at most a twentieth.
struct twentieth : tenth {
  static std::uint64_t largest_payload(std::uint64_t size) { return size / 20 + 1; }
};
static_assert(slamb::sparsifier<twentieth>);

template <class Compressor, class Backend>
using slamb_of = slamb::slamb<ranks, Compressor, slamb::rescaled_trust_ratio<>, Backend>;

template <class Backend>
Backend one_thread() {
  if constexpr (requires(Backend b) { b.threads; })
    return {.threads = 1};
  else
    return {};
}

struct outcome {
  std::vector<float> parameters;
  std::uint64_t elements = 0;  // sent in the step
  std::string error;

  friend bool operator==(const outcome&, const outcome&) = default;
};

/// The second of two steps of two ranks over 20,000 elements. The first also averages.
template <class Compressor, class Backend>
outcome second_step() {
  outcome of_rank_0;
  slamb::run_ranks(2, [&](ranks mine) {
    const int rank = mine.rank();
    outcome own;
    own.parameters.assign(20'000, 1.0F);
    const std::vector<float> gradient(own.parameters.size(), rank == 0 ? 0.25F : 0.75F);
    const std::vector<slamb::parameter> tensors{
        {.data = own.parameters.data(), .gradient = gradient.data(), .size = gradient.size()}};
    slamb_of<Compressor, Backend> optimizer(tensors, {}, std::move(mine), one_thread<Backend>());
    try {
      optimizer.step(0.01);
      const std::uint64_t before = optimizer.statistics().traffic.total().elements;
      optimizer.step(0.01);
      own.elements = optimizer.statistics().traffic.total().elements - before;
    } catch (const slamb::error& wrong) {
      own.error = wrong.what();
    }
    if (rank == 0) of_rank_0 = own;
  });
  return of_rank_0;
}

}  // namespace

TEST_CASE("minimal sparsifier: both backends send the selected elements, and no others, as planned") {
  const outcome on_host = second_step<tenth, slamb::host_backend>();
  CHECK(on_host.error == "");
  CHECK(on_host.elements == 2000);
  const outcome on_emulator = second_step<tenth, slamb::emulated_backend>();
  CHECK(on_emulator.error == "");
  CHECK(on_emulator.elements == 2000);
  CHECK(on_emulator.parameters == on_host.parameters);

  const std::vector<slamb::plan::tensor_shape> shapes{{.size = 20'000}};
  using options = slamb_of<tenth, slamb::host_backend>::options_type;
  CHECK(slamb::plan::plan_traffic<options>(shapes, {}, {.ranks = 2}).step(2).total().elements == 2000);
}

TEST_CASE("minimal sparsifier: selecting more than largest_payload is an error on both backends") {
  const std::string expected = "slamb: the compressor selected 2000 elements, but";
  CHECK(second_step<twentieth, slamb::host_backend>().error.find(expected) == 0);
  CHECK(second_step<twentieth, slamb::emulated_backend>().error.find(expected) == 0);
}

}  // namespace properties_minimal_sparsifier_tests
