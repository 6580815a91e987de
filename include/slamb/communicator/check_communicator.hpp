// A conformance suite for user-defined Communicators, to be called in their tests. It checks the guarantees that optimizers
// rely on, with sizes and values that a training may meet only after hours, and reports faults on every rank.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "slamb/communicator/detail/checked_collectives.hpp"
#include "slamb/communicator/detail/checked_values.hpp"
#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/communicator/detail/rank_findings.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Settings of `check_communicator`; the same on all ranks.
struct communicator_check {
  /// Elements that a rank sends to each rank in the largest collectives. The elements of all ranks must have fewer than 2^63
  /// bytes.
  std::size_t large = 100'003;
  /// In [0, 0.1]: the permitted error of a sum, relative to the sum of magnitudes, in addition to rounding to the element type.
  /// For wire formats of fewer bits.
  double wire_error = 0.0;
  /// Also calls from a thread that has not constructed the Communicator. True by default, because a Communicator must allow it:
  /// an optimizer calls from the thread that takes the step, and on the host from a thread of its own between begin_step and
  /// finish_step. Set false for a Communicator that is bound to a thread, such as MPI with MPI_THREAD_FUNNELED: its optimizers
  /// must be made and stepped by that thread alone, and never in parts.
  bool from_second_thread = true;
};

namespace detail {

/// One run of `check_communicator` on one rank.
template <communicator C>
class communicator_checker {
 public:
  communicator_checker(C& ranks, const communicator_check& how)
      : how_(how), me_(place_of(ranks)), collectives_(ranks, me_, how.wire_error) {
    if (me_.is_one()) return;
    const std::string wrong =
        "slamb: check_communicator: the Communicator says it is " + me_.text() + "; ranks must be 0 … size − 1";
    if constexpr (has_abort<C>) {  // the peers already wait
      try {
        ranks.abort(wrong);
      } catch (...) {
        // The peers time out.
      }
    }
    throw communicator_error(wrong);
  }

  template <class... More>
  void run() {
    require_alike();
    require_each_once();
    require_in(how_.wire_error >= 0.0 && how_.wire_error <= 0.1, "communicator_check::wire_error", how_.wire_error,
               "in [0, 0.1]");
    require_room<float, std::byte, More...>();
    for (const std::size_t n : sizes()) {
      check_sums_of(n);
      check_bytes_of(n);
      (check_all_of<More>(n), ...);
    }
    check_contents<float>();
    check_roots();
    check_in_a_row();
    if (how_.from_second_thread) {
      run_on_second_thread([this] {
        check_sums_of(1000);
        check_bytes_of(17);
        check_in_a_row();
      });
      check_in_a_row();  // on the first thread again
    }
    tell_and_throw();
  }

 private:
  using checked = checked_collectives<C>;
  using verification = typename checked::verification;

  static checked_place place_of(const C& ranks) {
    checked_place me{.rank = static_cast<int>(ranks.rank()), .size = static_cast<int>(ranks.size())};
    if constexpr (checked::has_nodes) {
      me.local_rank = static_cast<int>(ranks.local_rank());
      me.local_size = static_cast<int>(ranks.local_size());
      me.in_nodes = true;
    }
    return me;
  }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(me_.size); }

  // ------------------------------------------------------------------------- checks that all ranks will make the same calls

  /// Ranks with different sizes would make calls that do not match. So the first call does not depend on the sizes.
  void require_alike() {
    const auto number = [](auto x) { return static_cast<std::uint64_t>(x); };
    summed_numbers all({number(me_.size), number(me_.local_size), number(how_.large), number(how_.from_second_thread),
                        std::bit_cast<std::uint64_t>(how_.wire_error)});
    collectives_.sum_over_all(all.table(), "of size() and of the communicator_check");
    const auto differs = [this](const char* what, const std::string& here, const char* right) {
      return "slamb: check_communicator: " + me_.text() + ": " + what + " is " + here +
             " here, but another rank has another value; " + right;
    };
    const char* const alike = "all ranks must be given the same communicator_check";
    const auto reject = [&](const char* what, const std::string& here) {
      throw rank_mismatch_error(differs(what, here, alike));
    };
    switch (all.first_other()) {
      case 0:
        throw communicator_error(
            differs("size()", std::to_string(me_.size), "it must be the number of ranks on all ranks"));
      case 1:
        throw communicator_error(
            differs("local_size()", std::to_string(me_.local_size), "all nodes must have equal numbers of ranks"));
      case 2:
        return reject("communicator_check::large", std::to_string(how_.large));
      case 3:
        return reject("communicator_check::from_second_thread", how_.from_second_thread ? "true" : "false");
      case 4:
        return reject("communicator_check::wire_error", to_text(how_.wire_error));
      default:
        break;
    }
  }
  void require_each_once() {
    std::vector<float> counted(me_.everyone(), 0.0F);
    counted[me_.myself()] = 1.0F;
    collectives_.sum_over_all(counted, "that counts ranks");
    const auto twice = std::ranges::find_if(counted, [](float x) { return x >= 2.0F; });
    const auto none = std::ranges::find(counted, 0.0F);
    if (twice == counted.end() || none == counted.end()) return;
    const auto name = [&](const auto& place) { return me_.text(static_cast<std::size_t>(place - counted.begin())); };
    throw communicator_error("slamb: check_communicator: " + me_.text() + ": " + float_to_text(*twice) +
                             " ranks report that they are " + name(twice) + ", and no rank reports that it is " +
                             name(none) + "; rank() must be different on every rank");
  }

  /// The elements of all ranks, and their margins, must have a size in bytes that std::ptrdiff_t can hold.
  template <class... T>
  void require_room() const {
    constexpr auto most_bytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
    constexpr std::size_t margins = 2 * checked_span<float>::margin;
    const std::size_t most = (most_bytes / std::max({sizeof(T)...}) - margins) / ranks();
    if (how_.large > most)
      throw std::invalid_argument("slamb: communicator_check::large = " + std::to_string(how_.large) +
                                  ", but it must be in [0, " + std::to_string(most) + "]: the elements of " +
                                  std::to_string(me_.size) + " ranks must fit in memory");
  }

  /// 0, 1, ranks − 1, ranks, ranks + 1; odd sizes, powers of two, and the largest.
  std::vector<std::size_t> sizes() const {
    std::vector<std::size_t> all{0, 1, 2, 15, 17, 64, 1000, ranks() - 1, ranks(), ranks() + 1, how_.large};
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

  // --------------------------------------------------------------------------------------------------------------- checks

  void check_sums_of(std::size_t n) {
    if constexpr (capability::has_all_reduce_sum<C, float>)
      collectives_.template start_sum<float>(n, sum_content::plain)();
    if constexpr (checked::has_nodes) collectives_.start_local_sum(n)();
  }
  void check_bytes_of(std::size_t n) {
    if constexpr (checked::gathers) collectives_.template start_gather<std::byte>(n)();
    if constexpr (checked::exchanges) collectives_.template start_exchange<std::byte>(n)();
    if constexpr (checked::broadcasts) collectives_.template start_broadcast<std::byte>(n, me_.size - 1)();
  }
  template <class T>
  void check_all_of(std::size_t n) {
    if constexpr (capability::has_all_reduce_sum<C, T> && std::is_arithmetic_v<T>)
      collectives_.template start_sum<T>(n, sum_content::plain)();
    if constexpr (capability::has_all_gather<C, T>) collectives_.template start_gather<T>(n)();
    if constexpr (capability::has_all_to_all<C, T>) collectives_.template start_exchange<T>(n)();
    if constexpr (capability::has_broadcast<C, T>) collectives_.template start_broadcast<T>(n, me_.size - 1)();
  }
  template <class T>
  void check_contents() {
    if constexpr (capability::has_all_reduce_sum<C, T>)
      for (const sum_content content : {sum_content::integers, sum_content::bytes, sum_content::tiny, sum_content::huge,
                                        sum_content::nan, sum_content::infinite})
        for (const std::size_t n : {std::size_t{1}, 2 * ranks() + 1, std::size_t{1001}})
          collectives_.template start_sum<T>(n, content)();
  }
  void check_roots() {
    if constexpr (checked::broadcasts)
      for (int root = 0; root < me_.size; ++root) collectives_.template start_broadcast<std::byte>(17, root)();
  }
  /// Collectives of all kinds in a row, three times, with different values. Buffers are overwritten as soon as a call has
  /// returned. Results are verified only after all calls have returned.
  void check_in_a_row() {
    std::vector<verification> all;
    for (int again = 0; again < 3; ++again) {
      if constexpr (capability::has_all_reduce_sum<C, float>)
        all.push_back(collectives_.template start_sum<float>(100, sum_content::plain));
      if constexpr (checked::exchanges) all.push_back(collectives_.template start_exchange<std::byte>(384));
      if constexpr (checked::gathers) all.push_back(collectives_.template start_gather<std::byte>(384));
      if constexpr (checked::broadcasts)
        all.push_back(collectives_.template start_broadcast<std::byte>(384, again % me_.size));
      if constexpr (checked::has_nodes) all.push_back(collectives_.start_local_sum(100));
    }
    for (const verification& verify : all) verify();
  }

  template <class F>
  void run_on_second_thread(const F& body) {
    std::exception_ptr failure;
    std::thread second([&] {
      try {
        body();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    second.join();
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  void tell_and_throw() {
    const std::string found = collectives_.findings().text_of_all(
        [this](std::vector<float>& table) { collectives_.sum_over_all(table, "of the findings of all ranks"); });
    if (!found.empty())
      throw communicator_error("slamb: check_communicator has found mistakes in this Communicator:" + found);
  }

  communicator_check how_;
  checked_place me_;
  checked_collectives<C> collectives_;
};

}  // namespace detail

/// Checks that a Communicator of host memory does what optimizers rely on, as docs/extend/communicator.md specifies: sums of
/// floats; all_gather, all_to_all and broadcast of bytes, if it has them; all_reduce_in_node, if its ranks are nodes. Sizes are
/// 0, 1, fewer than ranks, odd and large. Spans are not aligned, and have margins that must not be written. Values have either
/// sign, and some are denormal, huge, infinite or NaN. Sums must have the same bits on all ranks. Every rank is root once.
/// Calls follow each other directly, repeat, and come from a second thread too.
///
/// Collective: every rank calls it, with the same `how`. It makes the same calls on all ranks, whatever it finds, and exchanges
/// the findings by all_reduce_sum: a rank whose own results are right throws too.
///
/// If size() or `how` differ between ranks, or two ranks have the same rank(), every rank reports it first, provided that
/// all_reduce_sum reaches all ranks. A rank whose rank() is not in 0 … size() − 1 makes no collective: it calls `abort(reason)`
/// if the Communicator has that, and throws. Without `abort` its peers wait until the Communicator's own timeout, as they do
/// for a rank that does not call check_communicator.
///
/// @tparam More  further element types to check in all collectives that the Communicator has for them:
///   check_communicator<double>(mine)
/// @throws communicator_error, on every rank, with a list: rank, collective, size, root, place, and the fault found there. If
///   all_reduce_sum is wrong, each rank lists only its own findings. If a collective throws, the check ends with the findings
///   so far.
/// @throws rank_mismatch_error, on every rank, if `how` differs between ranks; std::invalid_argument if it is out of range
/// *Cost*: some hundred collectives; in the largest, a rank sends `how.large` elements to each rank.
template <class... More, communicator C>
void check_communicator(C& ranks, const communicator_check& how = {}) {
  static_assert(capability::has_all_reduce_sum<C, float>,
                "slamb: the Communicator must have all_reduce_sum(std::span<float>, slamb::host_stream)");
  detail::communicator_checker<C>(ranks, how).template run<More...>();
}

}  // namespace slamb
