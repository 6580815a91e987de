// The ranks of an MPI communicator in nodes: those that share memory, or so many at a time.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/mpi_handle.hpp"
#include "slamb/communicator/hierarchical_communicator.hpp"
#include "slamb/communicator/mpi_communicator.hpp"
#include "slamb/communicator/mpi_error.hpp"
#include "slamb/communicator/mpi_options.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Ranks in nodes, over MPI within a node and between nodes.
using mpi_hierarchy = hierarchical_communicator<mpi_communicator, mpi_communicator>;

/// Settings of `split_by_node` and `join_nodes`.
struct mpi_hierarchy_options {
  int ranks_per_node = 0;    ///< for split_by_node: of consecutive ranks; 0: a node is the ranks that share memory
  mpi_options inter_node{};  ///< of the exchange between nodes
  mpi_options local{.timeout = std::chrono::minutes(30)};  ///< within a node; the timeout is longer than `between`'s
};

namespace detail {

/// @throws std::invalid_argument
inline void require_usable(const mpi_hierarchy_options& options) {
  static_cast<void>(validated(options.inter_node));
  static_cast<void>(validated(options.local));
  require_in(options.local.timeout > options.inter_node.timeout, "mpi_hierarchy_options::local.timeout",
             static_cast<double>(options.local.timeout.count()),
             "> between.timeout, for ranks of a node wait while their leader exchanges");
}

/// A part of an MPI_Comm, of which mpi_communicators make copies.
class mpi_part {
 public:
  /// `split(&part)` makes it, on all ranks.
  template <class Split>
  mpi_part(const char* call, const Split& split) {
    const int code = split(&comm_);
    if (code != MPI_SUCCESS) throw mpi_error(code, call, "mpi_hierarchy");
  }
  mpi_part(const mpi_part&) = delete;
  mpi_part& operator=(const mpi_part&) = delete;
  ~mpi_part() {
    if (!mpi_handle::any_has_failed()) static_cast<void>(MPI_Comm_free(&comm_));
  }
  MPI_Comm get() const noexcept { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// [ranks] what every rank says. By a communicator that is gone when it is found wrong: one that an exception leaves has failed,
/// and would keep peers from finding the same.
inline std::vector<int> said_by_ranks(int mine, MPI_Comm comm, mpi_options options) {
  options.piece_bytes = 64;
  mpi_communicator ranks(comm, options);
  std::vector<int> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::span<const int>(&mine, 1), std::span<int>(all), host_stream{});
  return all;
}

inline void require_split(const std::string& fault) {
  if (!fault.empty()) throw std::invalid_argument("slamb: mpi_hierarchy: " + fault);
}

/// What is wrong with nodes of these sizes, for an error message; empty if nothing is.
/// @param sizes  [ranks] of each rank's node
inline std::string unequal_nodes_fault(std::span<const int> sizes) {
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    if (sizes[rank] != sizes[0])
      return "the node of rank 0 has " + std::to_string(sizes[0]) + " ranks, that of rank " + std::to_string(rank) +
             " has " + std::to_string(sizes[rank]) +
             "; all nodes must have equally many: start as many on each, or set ranks_per_node to a number that "
             "divides that of each";
  return {};
}

/// The same of what ranks ask for.
/// @param asked  [ranks] the ranks_per_node of each rank
inline std::string ranks_per_node_fault(std::span<const int> asked) {
  for (std::size_t rank = 0; rank < asked.size(); ++rank)
    if (asked[rank] != asked[0])
      return "ranks_per_node is " + std::to_string(asked[0]) + " on rank 0, " + std::to_string(asked[rank]) +
             " on rank " + std::to_string(rank) + "; it must be the same on all ranks";
  const int ranks = static_cast<int>(asked.size());
  if (asked[0] == 0 || (asked[0] > 0 && ranks % asked[0] == 0)) return {};
  return "ranks_per_node = " + std::to_string(asked[0]) + ", but it must divide the number of ranks, " +
         std::to_string(ranks) + ", or be 0: a node is the ranks that share memory";
}

}  // namespace detail

/// Nodes of the user's own making: `node` joins the ranks of `comm` that are one node, and is needed no longer afterwards. All
/// ranks of `comm` call it; nodes are numbered in the order of their leaders, the first ranks of each `node`.
///
/// @throws std::invalid_argument on every rank, if nodes have different numbers of ranks; on this one, if an option is out of
///   range, or a communicator is none
/// @throws communicator_error if the peers do not come within the timeouts of `between` and `local`; mpi_error, where errors
///   of `comm` return. MPI's own splits wait for ever for a rank that is lost.
///
/// *Memory*: as mpi_communicator says of each part; of the one between nodes, at the leaders alone.
inline mpi_hierarchy join_nodes(MPI_Comm comm, MPI_Comm node, const mpi_hierarchy_options& options = {}) {
  detail::require_usable(options);
  detail::require_mpi();
  detail::require_intracommunicator(node);
  int node_size = 0;
  MPI_Comm_size(node, &node_size);
  detail::require_split(detail::unequal_nodes_fault(detail::said_by_ranks(node_size, comm, options.inter_node)));

  // Ranks of a node may be any of `comm`: what orders nodes must be the same for every local rank.
  mpi_communicator local(node, options.local);
  int leader = 0;
  MPI_Comm_rank(comm, &leader);
  local.broadcast(std::span<int>(&leader, 1), 0, host_stream{});
  const detail::mpi_part alike("MPI_Comm_split",
                               [&](MPI_Comm* part) { return MPI_Comm_split(comm, local.rank(), leader, part); });
  mpi_options inter_node = options.inter_node;
  if (local.rank() != 0) inter_node.piece_bytes = 64;  // nothing is sent there
  mpi_communicator of_alike(alike.get(), inter_node);
  return {std::move(local), std::move(of_alike)};
}

/// Splits `comm` into nodes, by memory or by `options.ranks_per_node`. All its ranks call it.
///
/// @throws as `join_nodes`; std::invalid_argument on every rank too, if ranks_per_node differs, or does not divide their number
inline mpi_hierarchy split_by_node(MPI_Comm comm = MPI_COMM_WORLD, const mpi_hierarchy_options& options = {}) {
  detail::require_usable(options);
  detail::require_split(
      detail::ranks_per_node_fault(detail::said_by_ranks(options.ranks_per_node, comm, options.inter_node)));
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  const detail::mpi_part node("MPI_Comm_split", [&](MPI_Comm* part) {
    return options.ranks_per_node > 0 ? MPI_Comm_split(comm, rank / options.ranks_per_node, rank, part)
                                      : MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, part);
  });
  return join_nodes(comm, node.get(), options);
}

}  // namespace slamb
