// The partition of a state: its options, and trainings with it.
#include "slamb/parameter_sync/partition.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/quadratic.hpp"
#include "support/said.hpp"

namespace parameter_sync_partition_tests {
namespace {

using slamb::thread_communicator;
using slamb::sync::partition;
using test_support::replica;

// Policies that are not named are the defaults, and the order does not matter.
template <class A, class B>
constexpr bool are_one_recipe = std::is_same_v<typename A::recipe_type, typename B::recipe_type>;
static_assert(are_one_recipe<slamb::lamb<slamb::int8, partition<>>,
                             slamb::lamb<partition<slamb::no_compressor>, slamb::two_sided<>, slamb::int8>>);
static_assert(!are_one_recipe<slamb::lamb<partition<>>, slamb::lamb<>>);
static_assert(slamb::capability::partitions_state<partition<slamb::sign>> &&
              !slamb::capability::partitions_state<slamb::sync::whole_average>);

/// What the construction of an optimizer on two ranks says, with options for each.
template <class Optimizer>
std::string said_at_construction(const typename Optimizer::options_type& first,
                                 const typename Optimizer::options_type& second) {
  std::string said;
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const bool is_first = communicator.rank() == 0;
    replica mine({{100}}, std::vector<float>(100, 1.0F));
    std::string its = test_support::said_by<std::exception>(
        [&] { Optimizer optimizer(mine.parameters(), is_first ? first : second, std::move(communicator)); });
    if (is_first) said = std::move(its);
  });
  return said;
}

}  // namespace

TEST_CASE("partition: values out of range are rejected, and options of ranks are compared") {
  using in_bytes = slamb::lamb<partition<slamb::int8>>;
  using in_signs = slamb::lamb<slamb::sign, partition<slamb::sign>>;
  using test_support::contains;
  CHECK(contains(said_at_construction<in_bytes>({.parameter_sync = {.quantizer = {.block = 100}}},
                                                {.parameter_sync = {.quantizer = {.block = 100}}}),
                 "block"));
  CHECK(contains(said_at_construction<in_bytes>({.parameter_sync = {.quantizer = {.block = 64}}}, {}), "block"));
  CHECK(contains(said_at_construction<in_bytes>({.parameter_sync = {.quantizer = {.seed = 1}}}, {}), "seed"));
  const std::string zero_aware = said_at_construction<in_signs>(
      {.parameter_sync = {.quantizer = {.zero_aware = true}}}, {.parameter_sync = {.quantizer = {.zero_aware = true}}});
  CHECK(contains(zero_aware, "parameter_sync.quantizer has zero_aware = true"));
  CHECK(contains(
      said_at_construction<in_signs>({.compressor = {.zero_aware = true}}, {.compressor = {.zero_aware = true}}),
      "compressor has zero_aware = true"));
  CHECK(said_at_construction<in_bytes>({}, {}) == "nothing was thrown");
}

namespace {

/// Has no all_to_all.
class summing_ranks {
 public:
  explicit summing_ranks(thread_communicator base) : base_(std::move(base)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) { base_.all_reduce_sum(values, stream); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    base_.all_gather(mine, all, stream);
  }

 private:
  thread_communicator base_;
};

}  // namespace

TEST_CASE("partition: a Communicator of unknown type must have all_to_all and all_gather") {
  slamb::run_ranks(2, [](thread_communicator communicator) {
    replica mine({{100}}, std::vector<float>(100, 1.0F));
    const std::string said = test_support::said_by<std::invalid_argument>([&] {
      slamb::adamw<partition<>> optimizer(mine.parameters(), {},
                                          slamb::any_communicator<>(summing_ranks(std::move(communicator))));
    });
    CHECK(test_support::contains(said, "partition needs a Communicator with all_to_all"));
  });
}

namespace {

/// The mean loss after 300 steps by decaying rates, relative to the least one.
template <class Optimizer>
double left_by(const typename Optimizer::options_type& options) {
  const test_support::quadratic problem(test_support::odd_tensors(), 3);
  std::vector<float> best(problem.size());
  for (std::size_t j = 0; j < best.size(); ++j) {
    double sum = 0.0;
    for (const auto& centre : problem.centres) sum += centre[j];
    best[j] = static_cast<float>(sum / static_cast<double>(problem.centres.size()));
  }
  const double least = problem.loss(std::span<const float>(best));
  double reached = 0.0;
  slamb::run_ranks(problem.ranks(), [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    std::vector<float> p = problem.start(), g(p.size());
    std::vector<slamb::parameter> parameters;
    std::size_t begin = 0;
    for (const test_support::tensor_shape& s : problem.shapes) {
      parameters.push_back({p.data() + begin, g.data() + begin, s.size, s.dimensions, {}});
      begin += s.size;
    }
    Optimizer optimizer(parameters, options, std::move(communicator), test_support::one_thread());
    for (int t = 0; t < 300; ++t) {
      problem.gradient(rank, std::span<const float>(p), std::span<float>(g));
      optimizer.step(0.03 * (1.0 - t / 300.0));
    }
    if (rank == 0) reached = problem.loss(std::span<const float>(p));
  });
  return reached / least - 1.0;
}

}  // namespace

TEST_CASE("partition: trainings reach the common minimum, with any quantizers") {
  const double whole = left_by<slamb::adamw<>>({.weight_decay = 0.0});
  CHECK(whole < 1e-3);
  CHECK(left_by<slamb::adamw<partition<>>>({.weight_decay = 0.0}) <= whole + 1e-6);
  CHECK(left_by<slamb::adamw<partition<slamb::int8>>>({.weight_decay = 0.0}) < 1e-3);
  CHECK(left_by<slamb::adamw<slamb::int8, partition<slamb::int8>>>({.weight_decay = 0.0}) < 1e-3);
  CHECK(left_by<slamb::adamw<slamb::bf16, partition<slamb::bf16>>>({.weight_decay = 0.0}) < 1e-3);
  CHECK(left_by<slamb::adamw<slamb::int4, partition<slamb::int4>>>({.weight_decay = 0.0}) < 3e-3);
  CHECK(left_by<slamb::adamw<slamb::sign, partition<slamb::sign>>>({.weight_decay = 0.0}) < 3e-2);
}

}  // namespace parameter_sync_partition_tests
