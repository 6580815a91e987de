// Splits the ranks of an MPI communicator into nodes: by shared memory, or by a fixed number of ranks per node.
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
  int ranks_per_node = 0;    ///< for split_by_node: consecutive ranks; 0: a node is the ranks that share memory
  mpi_options inter_node{};  ///< between nodes
  mpi_options local{.timeout = std::chrono::minutes(30)};  ///< within a node; timeout longer than that of inter_node
};

namespace detail {

/// @throws std::invalid_argument
inline void require_usable(const mpi_hierarchy_options& options) {
  static_cast<void>(validated(options.inter_node));
  static_cast<void>(validated(options.local));
  require_in(options.local.timeout > options.inter_node.timeout, "mpi_hierarchy_options::local.timeout",
             static_cast<double>(options.local.timeout.count()),
             "> inter_node.timeout (milliseconds), because ranks of a node wait while their leader exchanges");
}

/// A communicator split from an MPI_Comm, freed at the end of its scope. mpi_communicators copy it.
class mpi_part {
 public:
  /// Calls split(&part) on all ranks, which makes it.
  /// @throws mpi_error
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

/// Gathers `mine` of every rank: [ranks]. Uses a temporary communicator, which is gone before the caller checks the values: a
/// communicator that is destroyed by an exception counts as failed, and would keep peers from finding the same fault.
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

/// A description of the fault if nodes have different sizes, for an error message; empty if there is none.
/// @param sizes  [ranks] the size of each rank's node
inline std::string unequal_nodes_fault(std::span<const int> sizes) {
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    if (sizes[rank] != sizes[0])
      return "the node of rank 0 has " + std::to_string(sizes[0]) + " ranks, and the node of rank " +
             std::to_string(rank) + " has " + std::to_string(sizes[rank]) +
             "; all nodes must have the same number of ranks: start the same number on each, or set ranks_per_node to "
             "a number that divides the ranks of every node";
  return {};
}

/// A description of the fault in ranks_per_node, for an error message; empty if there is none.
/// @param asked  [ranks] the ranks_per_node of each rank
inline std::string ranks_per_node_fault(std::span<const int> asked) {
  for (std::size_t rank = 0; rank < asked.size(); ++rank)
    if (asked[rank] != asked[0])
      return "ranks_per_node is " + std::to_string(asked[0]) + " on rank 0, " + std::to_string(asked[rank]) +
             " on rank " + std::to_string(rank) + "; it must be the same on all ranks";
  const int ranks = static_cast<int>(asked.size());
  if (asked[0] == 0 || (asked[0] > 0 && ranks % asked[0] == 0)) return {};
  return "ranks_per_node = " + std::to_string(asked[0]) + ", but it must divide the number of ranks, " +
         std::to_string(ranks) + ", or be 0, which makes a node of the ranks that share memory";
}

}  // namespace detail

/// Makes nodes of the user's choice: `node` joins the ranks of `comm` that form one node. The caller may free it afterwards.
/// All ranks of `comm` call this. Nodes are numbered in the order of their leaders, the first ranks of each `node`.
///
/// @throws std::invalid_argument on every rank, if nodes have different numbers of ranks; on this rank, if an option is out of
///   range, or a communicator is null or joins two groups
/// @throws communicator_error if the peers do not come within the timeouts of `inter_node` and `local`; mpi_error if `comm`
///   returns its errors. MPI's own splits wait forever for a lost rank.
///
/// *Memory*: as mpi_communicator, for each of the two communicators; for the communicator between nodes, on the leaders only.
inline mpi_hierarchy join_nodes(MPI_Comm comm, MPI_Comm node, const mpi_hierarchy_options& options = {}) {
  detail::require_usable(options);
  detail::require_mpi();
  detail::require_intracommunicator(node);
  int node_size = 0;
  MPI_Comm_size(node, &node_size);
  detail::require_split(detail::unequal_nodes_fault(detail::said_by_ranks(node_size, comm, options.inter_node)));

  // Ranks of a node may be any ranks of `comm`: the key that orders nodes must be the same for every local rank.
  mpi_communicator local(node, options.local);
  int leader = 0;
  MPI_Comm_rank(comm, &leader);
  local.broadcast(std::span<int>(&leader, 1), 0, host_stream{});
  const detail::mpi_part alike("MPI_Comm_split",
                               [&](MPI_Comm* part) { return MPI_Comm_split(comm, local.rank(), leader, part); });
  mpi_options inter_node = options.inter_node;
  if (local.rank() != 0) inter_node.piece_bytes = 64;  // only leaders send between nodes
  mpi_communicator of_alike(alike.get(), inter_node);
  return {std::move(local), std::move(of_alike)};
}

/// Splits `comm` into nodes, by shared memory or by `options.ranks_per_node`. All its ranks call it.
///
/// @throws as `join_nodes`; std::invalid_argument on every rank too, if ranks_per_node differs between ranks or does not divide
///   the number of ranks
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
