// A model of the network between ranks. It predicts the time of collectives, and the bandwidth below which one plan beats
// another.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb::plan {

/// Nodes with one link each, and `ranks_per_node` ranks on each; the last node may have fewer.
///
/// *all_reduce*, *all_gather* and *broadcast* run along a ring in which the ranks of a node are neighbours. A node's link then
/// carries the bytes of one rank, `bytes_sent_by`, and the slower of link and node limits the ring. In an *all_to_all* every rank
/// has a message for every other rank. The R ranks of a node send R (N−R)/N of a rank's payload through the link, and each sends
/// (R−1)/N of it inside the node; the slower of both counts. `latency` is paid for every hop from node to node, one after
/// another: 2(n−1) in an all_reduce among n nodes, n − 1 in the others; on a single node, from rank to rank. Nothing overlaps
/// with computation, and nothing shares the link.
struct network {
  double latency = 20e-6;         ///< s, a hop
  double bandwidth = 3.125e9;     ///< bytes/s in each direction, of a node's link: 25 Gbit/s
  int ranks_per_node = 8;         ///< R ≥ 1
  double node_bandwidth = 300e9;  ///< bytes/s in each direction, of a rank to others on its node

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(latency >= 0.0 && latency < infinity, "network's latency", latency, "finite and >= 0");
    require_rate("network's bandwidth", bandwidth);
    require_rate("network's node_bandwidth", node_bandwidth);
    detail::require_in(ranks_per_node >= 1, "network's ranks_per_node", ranks_per_node, ">= 1");
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();

  static void require_rate(std::string_view name, double value) {
    detail::require_in(value > 0.0 && value < infinity, name, value, "finite and > 0");
  }
};

/// The load of `traffic` on a network. Loads of several steps add up.
struct network_load {
  double latencies = 0.0;      ///< hops
  double ring_bytes = 0.0;     ///< along the ring
  double link_bytes = 0.0;     ///< through a node's link, of all_to_all
  double inside_bytes = 0.0;   ///< from a rank to others on its node, of all_to_all
  bool crosses_nodes = false;  ///< there is more than one node

  /// @param counts  of one rank; @param ranks  N
  static network_load of(const traffic_counts& counts, const network& net, int ranks) {
    const int nodes = (ranks + net.ranks_per_node - 1) / net.ranks_per_node;
    const double hops = (nodes > 1 ? nodes : ranks) - 1;
    const double all = ranks, together = std::min(net.ranks_per_node, ranks);
    network_load load{.crosses_nodes = nodes > 1};
    for (const collective kind : {collective::all_reduce, collective::all_gather, collective::broadcast}) {
      load.latencies += static_cast<double>(counts[kind].rounds) * hops * (kind == collective::all_reduce ? 2.0 : 1.0);
      load.ring_bytes += static_cast<double>(counts[kind].sent_bytes);
    }
    const traffic& scattered = counts[collective::all_to_all];
    const auto payload = static_cast<double>(scattered.payload_bytes);
    load.latencies += static_cast<double>(scattered.rounds) * hops;
    load.link_bytes = payload * together * (all - together) / all;
    load.inside_bytes = payload * (together - 1.0) / all;
    return load;
  }

  /// The time of this load, with links of `bandwidth` instead of the network's.
  double seconds(const network& net, double bandwidth) const {
    const double ring = crosses_nodes ? std::min(bandwidth, net.node_bandwidth) : net.node_bandwidth;
    return latencies * net.latency + ring_bytes / ring +
           std::max(link_bytes / bandwidth, inside_bytes / net.node_bandwidth);
  }
  double seconds(const network& net) const { return seconds(net, net.bandwidth); }
};

/// The bandwidths of a node's link at which one plan takes less time than another.
struct break_even {
  enum answer { always, never, below, above };

  answer beats = never;
  double bandwidth = 0.0;  ///< bytes/s, of `below` and `above`
};

/// The time of a training without its exchanges, and the load of its exchanges.
struct training_cost {
  double seconds = 0.0;  ///< without the exchange
  network_load load;
};

}  // namespace slamb::plan

namespace slamb::detail {

/// The difference in time of two costs as a function of y, the seconds per byte of a link. It is piecewise linear: its slope
/// changes where the traffic inside nodes stops being the slower part.
class time_difference {
 public:
  time_difference(const plan::training_cost& a, const plan::training_cost& b, const plan::network& net)
      : a_(a), b_(b), net_(net), turn_{0.0, 1.0 / net.node_bandwidth, turn_of(a.load), turn_of(b.load)} {
    std::sort(turn_.begin(), turn_.end());
  }

  double operator()(double y) const { return seconds(a_, y) - seconds(b_, y); }

  /// The points at which the line may bend, in ascending order, from 0.
  const std::array<double, 4>& turns() const noexcept { return turn_; }

  /// The slope beyond the last bend.
  double last_slope() const {
    const auto slope = [](const plan::network_load& l) {
      return (l.crosses_nodes ? l.ring_bytes : 0.0) + l.link_bytes;
    };
    return slope(a_.load) - slope(b_.load);
  }

 private:
  double turn_of(const plan::network_load& l) const {
    return l.link_bytes > 0.0 ? l.inside_bytes / (net_.node_bandwidth * l.link_bytes) : 0.0;
  }

  double seconds(const plan::training_cost& c, double y) const {
    const double ring = c.load.crosses_nodes ? std::max(y, 1.0 / net_.node_bandwidth) : 1.0 / net_.node_bandwidth;
    return c.seconds + c.load.latencies * net_.latency + c.load.ring_bytes * ring +
           std::max(c.load.link_bytes * y, c.load.inside_bytes / net_.node_bandwidth);
  }

  const plan::training_cost& a_;
  const plan::training_cost& b_;
  const plan::network& net_;
  std::array<double, 4> turn_;
};

}  // namespace slamb::detail

namespace slamb::plan {

/// Finds the bandwidths of the nodes' links at which `plan` takes less time than `other`, with everything else as in `net`.
///
/// `below` b: at every bandwidth under b, and not at b. `never`: neither on slow nor on the fastest links. `above` b: on links
/// faster than b, where `plan` sends more but computes less. The times are straight lines between a few points as functions of
/// 1/bandwidth, so the answer is exact except for rounding.
inline break_even find_break_even(const training_cost& plan, const training_cost& other, const network& net) {
  const detail::time_difference difference(plan, other, net);
  const auto& turn = difference.turns();
  const double slope = difference.last_slope(), at_last = difference(turn.back());
  const bool wins_slow = slope != 0.0 ? slope < 0.0 : at_last < 0.0;
  const bool wins_fast = difference(0.0) < 0.0;
  if (!wins_slow && !wins_fast) return {break_even::never, 0.0};
  // The zero of the line between two bends.
  const auto crossing = [&](double from, double to) {
    const double f = difference(from), g = difference(to);
    return from + (to - from) * (f / (f - g));
  };
  const double beyond = turn.back() - at_last / slope;
  if (!wins_slow) {
    for (std::size_t i = 1; i < turn.size(); ++i)
      if (difference(turn[i]) >= 0.0) return {break_even::above, 1.0 / crossing(turn[i - 1], turn[i])};
    return {break_even::above, 1.0 / beyond};
  }
  if (at_last >= 0.0) return {break_even::below, 1.0 / beyond};
  for (std::size_t i = turn.size() - 1; i-- > 0;) {
    if (difference(turn[i]) < 0.0) continue;
    const double y = crossing(turn[i], turn[i + 1]);
    return y > 0.0 ? break_even{break_even::below, 1.0 / y} : break_even{break_even::always, 0.0};
  }
  return {break_even::always, 0.0};
}

}  // namespace slamb::plan
