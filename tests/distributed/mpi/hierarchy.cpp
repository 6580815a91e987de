// split_by_node: the ranks of each node, invalid arguments, and equality with nodes of threads bit for bit.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/cluster.hpp"
#include "support/thread_nodes.hpp"
#include "world.hpp"

namespace mpi_hierarchy_tests {
namespace {

using namespace test_support;
using slamb::host_stream;
using slamb::split_by_node;

int world() { return mpi_tests::processes::all(); }

/// The ranks of all processes that give the same number.
class part_of_world {
 public:
  explicit part_of_world(int number) { MPI_Comm_split(MPI_COMM_WORLD, number, 0, &comm_); }
  part_of_world(const part_of_world&) = delete;
  part_of_world& operator=(const part_of_world&) = delete;
  ~part_of_world() { MPI_Comm_free(&comm_); }
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

std::string refusal_of(auto&& call) {
  try {
    call();
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return "nothing was refused";
}
std::string refusal_of_split(const slamb::mpi_hierarchy_options& options) {
  return refusal_of([&] { split_by_node(MPI_COMM_WORLD, options); });
}

/// In nodes of two ranks: compares this rank's parameters with those of the corresponding thread.
template <template <class...> class Optimizer>
void check_same_bits(const experiment& e, const typename Optimizer<>::options_type& options) {
  slamb::mpi_hierarchy communicator = split_by_node(MPI_COMM_WORLD, {.ranks_per_node = 2});
  const std::size_t rank =
      2 * static_cast<std::size_t>(communicator.rank()) + static_cast<std::size_t>(communicator.local_rank());
  trajectory reached = place_of(e);
  CHECK(train_rank<Optimizer<slamb::mpi_hierarchy>>(e, rank, options, std::move(communicator), one_thread(), reached));
  const trajectory expected = train_in_nodes<Optimizer<nodes_of_threads>>(e, e.world / 2, options, one_thread());
  for (std::size_t t = 0; t < e.steps(); ++t)
    CHECK(same_bits(std::span(reached[t][rank]), std::span(expected[t][rank])));
}

}  // namespace

TEST_CASE("split_by_node: ranks of one machine are one node, or ranks_per_node consecutive ranks") {
  const int rank = slamb::mpi_communicator().rank();
  const slamb::mpi_hierarchy by_memory = split_by_node();
  CHECK(by_memory.size() == 1);
  CHECK(by_memory.local_size() == world());
  CHECK(by_memory.local_rank() == rank);
  for (int per_node = 1; per_node <= world(); ++per_node) {
    if (world() % per_node != 0) continue;
    slamb::mpi_hierarchy all = split_by_node(MPI_COMM_WORLD, {.ranks_per_node = per_node});
    CHECK(all.rank() == rank / per_node);
    CHECK(all.size() == world() / per_node);
    CHECK(all.local_rank() == rank % per_node);
    CHECK(all.local_size() == per_node);
    std::vector<int> gathered(static_cast<std::size_t>(all.size()));
    const int mine = 10 * all.rank();
    all.all_gather(std::span<const int>(&mine, 1), std::span<int>(gathered), host_stream{});
    for (std::size_t node = 0; node < gathered.size(); ++node) CHECK(gathered[node] == 10 * static_cast<int>(node));
    all.check();
  }
}

TEST_CASE("join_nodes: all ranks of a node have one number, in any order of the ranks") {
  if (world() != 4) return;
  const int rank = slamb::mpi_communicator().rank();
  const bool is_first = rank == 0 || rank == 3;  // so that ranks of the second node come before those of the first
  const part_of_world node(is_first ? 0 : 1);
  const slamb::mpi_hierarchy all = slamb::join_nodes(MPI_COMM_WORLD, node.get());
  CHECK(all.rank() == (is_first ? 0 : 1));
  CHECK(all.local_rank() == (rank < 2 ? 0 : 1));
  CHECK(all.inter_node().size() == 2);
}

TEST_CASE("join_nodes: nodes of different sizes are rejected on every rank") {
  if (world() < 3) return;
  const int rank = slamb::mpi_communicator().rank();
  const part_of_world node(rank == 0 ? 0 : 1);
  CHECK(refusal_of([&] { slamb::join_nodes(MPI_COMM_WORLD, node.get()); }) ==
        "slamb: mpi_hierarchy: the node of rank 0 has 1 ranks, and the node of rank 1 has " +
            std::to_string(world() - 1) +
            "; all nodes must have the same number of ranks: start the same number on each, or set ranks_per_node to a "
            "number that divides the ranks of every node");
  CHECK(refusal_of([] { slamb::join_nodes(MPI_COMM_WORLD, MPI_COMM_NULL); }).find("is MPI_COMM_NULL") !=
        std::string::npos);
}

TEST_CASE("split_by_node: ranks_per_node that does not divide, differs or is out of range is rejected on every rank") {
  const std::string ranks = std::to_string(world());
  const std::string more = std::to_string(world() + 1);
  CHECK(refusal_of_split({.ranks_per_node = world() + 1}) ==
        "slamb: mpi_hierarchy: ranks_per_node = " + more + ", but it must divide the number of ranks, " + ranks +
            ", or be 0, which makes a node of the ranks that share memory");
  CHECK(refusal_of_split({.ranks_per_node = -1}).find("ranks_per_node = -1, but it must") != std::string::npos);
  CHECK(refusal_of_split({.inter_node = {.piece_bytes = 63}}).find("mpi_options::piece_bytes = 63") !=
        std::string::npos);
  const slamb::mpi_options brief{.timeout = std::chrono::milliseconds(100)};
  CHECK(refusal_of_split({.inter_node = brief, .local = brief}) ==
        "slamb: mpi_hierarchy_options::local.timeout = 100, but it must be > inter_node.timeout (milliseconds), "
        "because ranks of a node wait while their leader exchanges");
  if (world() == 1) return;
  const int rank = slamb::mpi_communicator().rank();
  CHECK(refusal_of_split({.ranks_per_node = rank == 0 ? 0 : 1}) ==
        "slamb: mpi_hierarchy: ranks_per_node is 0 on rank 0, 1 on rank 1; it must be the same on all ranks");
}

TEST_CASE("split_by_node: optimizers have the bits of nodes of threads") {
  if (world() % 2 != 0) return;
  const experiment e = make_experiment(random_model(31, 2), 31, world(), 8);
  check_same_bits<slamb::lamb>(e, {});
  check_same_bits<slamb::one_bit_lamb>(e, {.warm_up = {4}});
}

}  // namespace mpi_hierarchy_tests
