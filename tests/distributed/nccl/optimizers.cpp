// Optimizers over nccl_communicator whose peer died: every wait for the stream ends in an exception. Kernels are emulated; the
// stream of the collectives is the stand-in's.
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulated_stream.hpp"
#include "harness.hpp"
#include "slamb/slamb.hpp"

namespace nccl_optimizers_tests {
namespace {

using nccl_stand_in::library;
using nccl_tests::backend_beside_stream;
using slamb::nccl_communicator;

using lamb = slamb::lamb<nccl_communicator, backend_beside_stream>;
template <class Compressor>
using sparse = slamb::slamb<nccl_communicator, Compressor, slamb::rescaled_trust_ratio<>, backend_beside_stream>;
using in_bits = slamb::lamb<slamb::sign, slamb::residual<>, nccl_communicator, backend_beside_stream>;

/// One rank's tensor and the optimizer over it.
template <class Optimizer>
class rank_of_training {
 public:
  rank_of_training(nccl_communicator communicator, cudaStream_t stream,
                   const typename Optimizer::options_type& options = {})
      : optimizer_(std::array{slamb::parameter{.data = data_.data(), .gradient = gradient_.data(), .size = 60}},
                   options, std::move(communicator), {.stream = stream}) {}

  Optimizer& optimizer() noexcept { return optimizer_; }

 private:
  std::vector<float> data_ = std::vector<float>(60, 1.0F);
  std::vector<float> gradient_ = std::vector<float>(60, 0.5F);
  Optimizer optimizer_;
};

/// From now on rank 0 waits for peers that are gone; many polls later, NCCL reports it.
void lose_peers(library& nccl) {
  constexpr int more_than_a_step_makes = 50;
  const std::string look = "ncclCommGetAsyncError";
  nccl.fail(0, look, nccl.count(0, look) + more_than_a_step_makes, ncclRemoteError);
}

/// The exception of rank 0 of two, if the other rank constructs its optimizer and dies, and rank 0 then calls `ask` with its
/// own.
template <class Optimizer, class Ask>
std::exception_ptr thrown_without_peer(const Ask& ask) {
  library nccl;
  nccl.let_ranks_meet();
  nccl.enter(-1);
  const ncclUniqueId id = nccl_communicator::unique_id();
  std::exception_ptr thrown;
  const auto other = nccl_tests::run_ranks(nccl, 2, [&](int rank) {
    rank_of_training<Optimizer> its(nccl_communicator(id, rank, 2, nccl_tests::patient()), nccl.make_stream());
    if (rank != 0) return;
    lose_peers(nccl);
    thrown = nccl_tests::thrown_by([&] { ask(its.optimizer()); });
    CHECK(nccl_tests::text_of(nccl_tests::thrown_by([&] { its.optimizer().statistics(); })) ==
          nccl_tests::text_of(thrown));
  });
  for (const std::exception_ptr& one : other) CHECK(nccl_tests::text_of(one) == "");
  CHECK(nccl.count(0, "ncclCommAbort") == 1);
  nccl_tests::check_clean(nccl);
  return thrown;
}

template <class Optimizer, class Ask>
void check_ends_without_peer(const Ask& ask) {
  const slamb::nccl_error error = nccl_tests::nccl_error_of(thrown_without_peer<Optimizer>(ask));
  CHECK(error.result() == ncclRemoteError);
  CHECK(error.call() == std::string("ncclCommGetAsyncError"));
}

}  // namespace

TEST_CASE("optimizers over NCCL: a missing peer ends the construction") {
  library nccl;
  nccl.let_ranks_meet();
  nccl.enter(-1);
  const ncclUniqueId id = nccl_communicator::unique_id();
  const auto thrown = nccl_tests::run_ranks(nccl, 2, [&](int rank) {
    nccl_communicator communicator(id, rank, 2, nccl_tests::patient());
    if (rank != 0) return;
    lose_peers(nccl);
    rank_of_training<lamb>(std::move(communicator), nccl.make_stream());
  });
  CHECK(nccl_tests::nccl_error_of(thrown[0]).result() == ncclRemoteError);
  CHECK(nccl_tests::text_of(thrown[1]) == "");
  nccl_tests::check_clean(nccl);
}

TEST_CASE("optimizers over NCCL: a dead peer ends the calls that wait for it, and all later ones") {
  check_ends_without_peer<lamb>([](lamb& its) {
    its.step(1e-3);
    its.statistics();
  });
  check_ends_without_peer<lamb>([](lamb& its) {
    its.step(1e-3);
    its.save_state();
  });
  check_ends_without_peer<lamb>([](lamb& its) {
    const std::vector<std::byte> state = its.save_state();
    its.step(1e-3);
    its.load_state(state);
  });
}

TEST_CASE("optimizers over NCCL: a dead peer ends a step that waits for its number or the size of its payload") {
  const auto takes_two_steps = [](auto& its) {
    its.step(1e-3);
    its.step(1e-3);
  };
  check_ends_without_peer<sparse<slamb::top_k>>(takes_two_steps);
  check_ends_without_peer<sparse<slamb::random_k<slamb::sampling::bernoulli>>>(takes_two_steps);
}

TEST_CASE("optimizers over NCCL: a dead peer ends a measured step") {
  check_ends_without_peer<in_bits>([](in_bits& its) {
    its.measure_next_step();
    its.step(1e-3);
  });
}

}  // namespace nccl_optimizers_tests
