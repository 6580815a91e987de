// One collective at a time, for `check_communicator`: makes the call on values that every rank can compute, and returns a
// verification of its result, to be run at once or later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/checked_values.hpp"
#include "slamb/communicator/detail/rank_findings.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb::detail {

/// The collectives of one rank, and the faults found in them. All ranks must make the same calls in the same order.
template <communicator C>
class checked_collectives {
 public:
  static constexpr bool has_nodes = capability::has_all_reduce_in_node<C>;
  static constexpr bool gathers = capability::has_all_gather<C, std::byte>;
  static constexpr bool exchanges = capability::has_all_to_all<C, std::byte>;
  static constexpr bool broadcasts = capability::has_broadcast<C, std::byte>;

  using verification = std::function<void()>;  ///< checks the result of a collective that has returned

  checked_collectives(C& ranks, const checked_place& me, double wire_error)
      : ranks_(ranks), me_(me), wire_error_(wire_error), found_(me) {}

  const rank_findings& findings() const noexcept { return found_; }

  template <class T>
  verification start_sum(std::size_t n, sum_content content) {
    return start_sum_over<T>("all_reduce_sum of " + count_of<T>(n), n, content, me_.rank, me_.size,
                             [this](std::span<T> values) { ranks_.all_reduce_sum(values, host_stream{}); });
  }
  verification start_local_sum(std::size_t n) {
    return start_sum_over<float>("all_reduce_in_node of " + count_of<float>(n), n, sum_content::plain, me_.local_rank,
                                 me_.local_size, [this](std::span<float> values) {
                                   if constexpr (has_nodes) ranks_.all_reduce_in_node(values, host_stream{});
                                 });
  }
  template <class T>
  verification start_gather(std::size_t n) {
    if (!has(collective::all_gather)) return [] {};
    const std::string label = "all_gather of " + count_of<T>(n);
    const std::uint64_t call = next_call();
    const auto mine = std::make_shared<checked_span<T>>(n);
    const auto all = std::make_shared<checked_span<T>>(n * ranks());
    for (std::size_t i = 0; i < n; ++i) mine->span()[i] = checked_value<T>(call, me_.rank, i);
    make(label, [&] { ranks_.all_gather(mine->values(), all->span(), host_stream{}); });
    std::vector<T> source(mine->values().begin(), mine->values().end());
    std::vector<T> result(all->values().begin(), all->values().end());
    mine->spoil();
    all->spoil();
    return [=, this, source = std::move(source), result = std::move(result)] {
      require_margins(label, *mine, "mine");
      require_margins(label, *all, "all");
      require_source(label, std::span<const T>(source), call, "mine");
      for (int from = 0; from < me_.size; ++from)
        if (!holds(label, "the place of rank " + std::to_string(from),
                   std::span<const T>(result).subspan(static_cast<std::size_t>(from) * n, n), call, from, 0, 1))
          return;
    };
  }

  template <class T>
  verification start_exchange(std::size_t n) {
    if (!has(collective::all_to_all)) return [] {};
    const std::string label = "all_to_all of " + std::to_string(me_.size) + " times " + count_of<T>(n);
    const std::uint64_t call = next_call();
    const auto send = std::make_shared<checked_span<T>>(n * ranks());
    const auto receive = std::make_shared<checked_span<T>>(n * ranks());
    for (std::size_t i = 0; i < n * ranks(); ++i) send->span()[i] = checked_value<T>(call, me_.rank, i);
    make(label, [&] { ranks_.all_to_all(send->values(), receive->span(), host_stream{}); });
    std::vector<T> source(send->values().begin(), send->values().end());
    std::vector<T> result(receive->values().begin(), receive->values().end());
    send->spoil();
    receive->spoil();
    return [=, this, source = std::move(source), result = std::move(result)] {
      require_margins(label, *send, "send");
      require_margins(label, *receive, "receive");
      require_source(label, std::span<const T>(source), call, "send");
      for (int from = 0; from < me_.size; ++from)
        if (!holds(label, "the place of rank " + std::to_string(from),
                   std::span<const T>(result).subspan(static_cast<std::size_t>(from) * n, n), call, from, me_.rank,
                   me_.size))
          return;
    };
  }

  template <class T>
  verification start_broadcast(std::size_t n, int root) {
    if (!has(collective::broadcast)) return [] {};
    const std::string label = "broadcast of " + count_of<T>(n) + " from root " + std::to_string(root);
    const std::uint64_t call = next_call();
    const auto values = std::make_shared<checked_span<T>>(n);
    for (std::size_t i = 0; i < n; ++i) values->span()[i] = checked_value<T>(call, me_.rank, i);
    make(label, [&] { ranks_.broadcast(values->span(), root, host_stream{}); });
    std::vector<T> result(values->values().begin(), values->values().end());
    values->spoil();
    return [=, this, result = std::move(result)] {
      require_margins(label, *values, "values");
      holds(label, "`values`", std::span<const T>(result), call, root, 0, 1);
    };
  }

  /// `table` has this rank's entries, and 0 elsewhere. It becomes the sum over all ranks of all nodes.
  void sum_over_all(std::vector<float>& table, const std::string& what) {
    const std::span<float> values(table);
    if constexpr (has_nodes)
      make("all_reduce_in_node " + what, [&] { ranks_.all_reduce_in_node(values, host_stream{}); });
    if constexpr (capability::has_all_reduce_sum<C, float>)
      make("all_reduce_sum " + what, [&] { ranks_.all_reduce_sum(values, host_stream{}); });
  }

 private:
  template <class T, class Sum>
  verification start_sum_over(const std::string& label, std::size_t n, sum_content content, int rank, int ranks,
                              const Sum& sum) {
    const std::uint64_t call = next_call();
    const auto values = std::make_shared<checked_span<T>>(n);
    for (std::size_t i = 0; i < n; ++i) values->span()[i] = checked_term<T>(content, call, rank, ranks, i);
    make(label, [&] { sum(values->span()); });
    std::vector<T> result(values->values().begin(), values->values().end());
    values->spoil();
    found_.keep_bits(label, result);
    return [=, this, result = std::move(result)] {
      require_margins(label, *values, "values");
      require_sums(label, std::span<const T>(result), content, call, ranks);
    };
  }

  /// @throws communicator_error, with the findings so far, if the collective throws
  template <class Call>
  void make(const std::string& label, const Call& call) {
    try {
      call();
    } catch (const std::exception& failure) {
      throw communicator_error("slamb: check_communicator: " + me_.text() + ": " + label + " threw: " + failure.what() +
                               found_.text());
    }
  }

  std::uint64_t next_call() noexcept { return ++calls_; }

  template <class T>
  void require_sums(const std::string& label, std::span<const T> sums, sum_content content, std::uint64_t call,
                    int ranks) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::string wrong = wrong_sum(sums[i], content, call, ranks, i, wire_error_);
      if (!wrong.empty())
        return found_.add(label, "element " + std::to_string(i) + " is " + checked_text(sums[i]) + ", " + wrong);
    }
  }

  /// True if `found` is what `from` has sent: its chunk `chunk` of `chunks`. If not, records a description.
  template <class T>
  bool holds(const std::string& label, const std::string& place, std::span<const T> found, std::uint64_t call, int from,
             int chunk, int chunks) {
    const std::size_t other = first_altered(found, call, from, chunk);
    if (other == found.size()) return true;
    if (found.size_bytes() >= 8) {  // fewer bytes may match by chance
      for (int rank = 0; rank < me_.size; ++rank)
        for (int c = 0; c < chunks; ++c)
          if (first_altered(found, call, rank, c) == found.size()) {
            std::string said = place;
            said.append(" has rank ").append(std::to_string(rank)).append("'s ");
            said.append(chunks > 1 ? "chunk " + std::to_string(c) : "values");
            found_.add(label, said);
            return false;
          }
      for (std::uint64_t before = call > 8 ? call - 8 : 1; before < call; ++before)
        if (first_altered(found, before, from, chunk) == found.size()) {
          found_.add(label, place + " has the values of an earlier call");
          return false;
        }
    }
    const std::size_t i = static_cast<std::size_t>(chunk) * found.size() + other;
    found_.add(label, "element " + std::to_string(other) + " of " + place + " is " + checked_text(found[other]) +
                          ", but " + checked_text(checked_value<T>(call, from, i)) + " was sent");
    return false;
  }

  template <class T>
  void require_source(const std::string& label, std::span<const T> source, std::uint64_t call, const char* name) {
    if (first_altered(source, call, me_.rank, 0) != source.size())
      found_.add(label, std::string("it has written to `") + name + "`, which it may only read");
  }
  template <class T>
  void require_margins(const std::string& label, const checked_span<T>& span, const char* name) {
    const std::string of = std::string(" of `") + name + "`";
    if (!span.is_intact_before()) found_.add(label, "it has written before the first element" + of);
    if (!span.is_intact_behind()) found_.add(label, "it has written behind the last element" + of);
    if (!span.is_spoilt()) found_.add(label, "it has written to `" + std::string(name) + "` after it had returned");
  }

  std::size_t ranks() const noexcept { return static_cast<std::size_t>(me_.size); }
  bool has(collective kind) const { return says_it_has(ranks_, kind); }

  C& ranks_;
  checked_place me_;
  double wire_error_;
  std::uint64_t calls_ = 0;
  rank_findings found_;
};

}  // namespace slamb::detail
