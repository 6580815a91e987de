// A conformance suite for user-defined Communicators, to be called in their tests. It checks the guarantees that optimizers
// rely on, with sizes and values that a training may meet only after hours, and reports faults on every rank.
#pragma once

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/detail/ranks/probe.hpp"

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

/// The collectives that a Communicator has for one type of elements.
struct checked_elements {
  char family = '?';
  std::size_t size = 0;       ///< bytes
  std::array<bool, 4> has{};  ///< [collective]
  std::function<void(const probe& p, std::span<std::byte> memory)> call;
};

/// A Communicator on trial, and the memory for its calls, in the order of their stream.
struct checked_communicator {
  using copy_function = std::function<void(std::span<const std::byte> from, std::span<std::byte> to)>;

  allocator memory = host_allocator();
  copy_function upload;    ///< from host memory, which may change once the call has returned
  copy_function copy;      ///< within the memory, without waiting
  copy_function download;  ///< to host memory; waits
  std::function<void(const std::function<void()>& body)> enter;  ///< runs `body`, which uses the memory, in this thread
  rank_id id{};
  int shards = 1;  ///< ranks of a shard group
  checked_elements floats{};
  std::vector<checked_elements> others{};                  ///< bytes, and other types to check
  std::function<void(const std::string& reason)> abort{};  ///< empty if it has none
};

/// One run of `check_communicator` on one rank.
class communicator_checker {
 public:
  communicator_checker(const checked_communicator& ranks, const communicator_check& options)
      : ranks_(ranks), rank_id_(ranks.id), options_(options), tried_(rank_id_, listed_findings) {}

  void run() {
    require_valid_place();
    ranks_.enter([this] { check_all(); });
  }

 private:
  static constexpr std::size_t listed_findings = 8;  // of each rank
  static constexpr std::size_t margin = 3;           // elements, so that spans are aligned to their elements only

  /// A call that has returned, and whose result has not been looked at.
  struct started_call {
    probe p;
    arena memory{};
    std::span<std::byte> there{};  ///< of the call, overwritten since
    std::span<std::byte> kept{};   ///< a copy, made in the order of the stream right behind the call
  };

  void check_all() {
    require_alike();
    require_each_once();
    require_in(options_.wire_error >= 0.0 && options_.wire_error <= 0.1, "communicator_check::wire_error",
               options_.wire_error, "in [0, 0.1]");
    require_room();
    for (const std::size_t n : sizes()) {
      check_each(ranks_.floats, n);
      for (const checked_elements& of : ranks_.others) check_each(of, n);
    }
    check_contents();
    for (int root = 0; root < rank_id_.size && bytes().has[static_cast<std::size_t>(collective::broadcast)]; ++root)
      verify(start(bytes(), on_trial(bytes(), collective::broadcast, 17, root)));
    check_in_a_row();
    if (options_.from_second_thread) {
      check_on_second_thread();
      check_in_a_row();  // on the first thread again
    }
    tell_and_throw();
  }

  // ------------------------------------------------------------------------- checks that all ranks will make the same calls

  void require_valid_place() const {
    if (rank_id_.is_valid()) return;
    const std::string wrong =
        "slamb: check_communicator: the Communicator says it is " + rank_id_.text() + "; ranks must be 0 … size − 1";
    try {
      if (ranks_.abort) ranks_.abort(wrong);  // the peers already wait
    } catch (...) {
      // The peers time out.
    }
    throw communicator_error(wrong);
  }
  /// Ranks with different sizes would make calls that do not match. So the first call does not depend on the sizes.
  void require_alike() {
    const auto number = [](auto x) { return static_cast<std::uint64_t>(x); };
    counted_numbers all({number(rank_id_.size), number(rank_id_.local_size), number(options_.large),
                         number(options_.from_second_thread), std::bit_cast<std::uint64_t>(options_.wire_error),
                         number(ranks_.shards)});
    const std::array<std::array<std::string, 2>, 6> names{
        {{"size()", std::to_string(rank_id_.size)},
         {"local_size()", std::to_string(rank_id_.local_size)},
         {"communicator_check::large", std::to_string(options_.large)},
         {"communicator_check::from_second_thread", options_.from_second_thread ? "true" : "false"},
         {"communicator_check::wire_error", to_text(options_.wire_error)},
         {"shard_size()", std::to_string(ranks_.shards)}}};
    all_ranks("of size() and of the communicator_check").all_reduce_sum(all.table());
    const std::size_t other = all.first_other();
    if (other == names.size()) return;
    const std::string differs = "slamb: check_communicator: " + rank_id_.text() + ": " + names[other][0] + " is " +
                                names[other][1] + " here, but another rank has another value; ";
    if (other == 0) throw communicator_error(differs + "it must be the number of ranks on all ranks");
    if (other == 1) throw communicator_error(differs + "all nodes must have equal numbers of ranks");
    if (other == 5) throw communicator_error(differs + "all shard groups must have equal numbers of ranks");
    throw rank_mismatch_error(differs + "all ranks must be given the same communicator_check");
  }
  void require_each_once() {
    std::vector<float> counted(static_cast<std::size_t>(rank_id_.everyone()), 0.0F);
    counted[static_cast<std::size_t>(rank_id_.myself())] = 1.0F;
    all_ranks("that counts ranks").all_reduce_sum(counted);
    const auto twice = std::ranges::find_if(counted, [](float x) { return x >= 2.0F; });
    const auto none = std::ranges::find(counted, 0.0F);
    if (twice == counted.end() || none == counted.end()) return;
    const auto name = [&](const auto& id) { return rank_id_.text(static_cast<int>(id - counted.begin())); };
    throw communicator_error("slamb: check_communicator: " + rank_id_.text() + ": " + to_text(*twice) +
                             " ranks report that they are " + name(twice) + ", and no rank reports that it is " +
                             name(none) + "; rank() must be different on every rank");
  }
  /// The elements of all ranks, and their margins, must have a size in bytes that std::ptrdiff_t can hold.
  void require_room() const {
    std::size_t size = ranks_.floats.size;
    for (const checked_elements& of : ranks_.others) size = std::max(size, of.size);
    constexpr auto most_bytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
    const std::size_t most = (most_bytes / size - 2 * margin) / static_cast<std::size_t>(rank_id_.size);
    if (options_.large > most)
      throw std::invalid_argument("slamb: communicator_check::large = " + std::to_string(options_.large) +
                                  ", but it must be in [0, " + std::to_string(most) + "]: the elements of " +
                                  std::to_string(rank_id_.size) + " ranks must fit in memory");
  }

  // --------------------------------------------------------------------------------------------------------------- checks

  /// 0, 1, ranks − 1, ranks, ranks + 1; odd sizes, powers of two, and the largest.
  std::vector<std::size_t> sizes() const {
    const auto ranks = static_cast<std::size_t>(rank_id_.size);
    std::vector<std::size_t> all{0, 1, 2, 15, 17, 64, 1000, ranks - 1, ranks, ranks + 1, options_.large};
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  const checked_elements& bytes() const { return ranks_.others.front(); }

  probe on_trial(const checked_elements& of, collective kind, std::size_t n, int root = 0) const {
    return {.call = {kind, of.family, of.size, n, root}, .margin = margin, .wire_error = options_.wire_error};
  }
  /// A call of every collective of `of`.
  std::vector<probe> each_of(const checked_elements& of, std::size_t n, int root) const {
    std::vector<probe> all;
    for (const collective kind :
         {collective::all_reduce, collective::all_gather, collective::all_to_all, collective::broadcast})
      if (of.has[static_cast<std::size_t>(kind)])
        all.push_back(on_trial(of, kind, n, kind == collective::broadcast ? root : 0));
    if (&of == &ranks_.floats && rank_id_.in_nodes) {
      all.push_back(all.front());
      all.back().in_node = true;
    }
    return all;
  }
  /// Broadcasts come from the last rank, and from the first.
  void check_each(const checked_elements& of, std::size_t n) {
    for (const probe& p : each_of(of, n, rank_id_.size - 1)) verify(start(of, p));
    if (rank_id_.size > 1 && of.has[static_cast<std::size_t>(collective::broadcast)])
      verify(start(of, on_trial(of, collective::broadcast, n, 0)));
  }
  void check_contents() {
    for (const sum_content content : {sum_content::integers, sum_content::bytes, sum_content::tiny, sum_content::huge,
                                      sum_content::nan, sum_content::infinite})
      for (const std::size_t n : {std::size_t{1}, 2 * static_cast<std::size_t>(rank_id_.size) + 1, std::size_t{1001}}) {
        probe sum = on_trial(ranks_.floats, collective::all_reduce, n);
        sum.content = content;
        verify(start(ranks_.floats, sum));
      }
  }
  /// Collectives of all kinds in a row, three times, with different values. Memory is overwritten as soon as a call has
  /// returned. Results are looked at only after all calls have returned.
  void check_in_a_row() {
    std::vector<started_call> all;
    for (int again = 0; again < 3; ++again) {
      for (const probe& p : each_of(ranks_.floats, 100, 0)) all.push_back(start(ranks_.floats, p));
      for (const probe& p : each_of(bytes(), 384, again % rank_id_.size)) all.push_back(start(bytes(), p));
    }
    for (const started_call& call : all) verify(call);
  }
  void check_on_second_thread() {
    std::exception_ptr failure;
    std::thread([&] {
      try {
        ranks_.enter([this] {
          check_each(ranks_.floats, 1000);
          check_each(bytes(), 17);
          check_in_a_row();
        });
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  void tell_and_throw() {
    std::string found;
    for (const auto& lines : tried_.of_all(all_ranks("of the findings of all ranks"))) found += in_lines(lines);
    if (!found.empty())
      throw communicator_error("slamb: check_communicator has found mistakes in this Communicator:" + found);
  }

  // ---------------------------------------------------------------------------------------------------------------- calls

  started_call start(const checked_elements& of, const probe& next) {
    started_call all{.p = tried_.add(next)};
    std::vector<std::byte> values(all.p.bytes());
    const region<std::byte> there = all.memory.plan<std::byte>("check_communicator", values.size());
    const region<std::byte> kept = all.memory.plan<std::byte>("check_communicator", values.size());
    all.memory.allocate(ranks_.memory);
    all.there = all.memory.view(there);
    all.kept = all.memory.view(kept);
    fill(all.p, values);
    ranks_.upload(values, all.there);
    make(to_text(all.p), [&] { of.call(all.p, all.there); });
    ranks_.copy(all.there, all.kept);
    spoil(all.p, values);
    ranks_.upload(values, all.there);
    return all;
  }
  void verify(const started_call& call) {
    std::vector<std::byte> found(call.p.bytes());
    make("waiting for " + to_text(call.p), [&] { ranks_.download(call.kept, found); });
    tried_.check(call.p, found);
    if (call.p.is(collective::all_reduce)) tried_.keep_bits(call.p, found);
    ranks_.download(call.there, found);
    tried_.check_spoilt(call.p, found);
  }
  /// @throws communicator_error, with the findings so far, if the call throws
  void make(const std::string& label, const std::function<void()>& call) const {
    try {
      call();
    } catch (const std::exception& failure) {
      throw communicator_error("slamb: check_communicator: " + rank_id_.text() + ": " + label +
                               " threw: " + failure.what() + in_lines(tried_.own()));
    }
  }
  static std::string in_lines(const std::vector<std::string>& lines) {
    std::string all;
    for (const std::string& line : lines) all += "\n  " + line;
    return all;
  }
  /// All ranks of all nodes. @param what  the end of the label of a sum
  summing_ranks all_ranks(const std::string& what) const {
    return {rank_id_.myself(), rank_id_.everyone(), [this, what](std::span<float> values) {
              probe sum{.call = call_of<float>(collective::all_reduce, values.size())};
              arena memory;
              const region<std::byte> planned = memory.plan<std::byte>("check_communicator", sum.bytes());
              memory.allocate(ranks_.memory);
              const std::span<std::byte> there = memory.view(planned);
              ranks_.upload(std::as_bytes(values), there);
              sum.in_node = true;
              if (rank_id_.in_nodes) make("all_reduce_in_node " + what, [&] { ranks_.floats.call(sum, there); });
              sum.in_node = false;
              make("all_reduce_sum " + what, [&] {
                ranks_.floats.call(sum, there);
                ranks_.download(there, std::as_writable_bytes(values));
              });
            }};
  }

  const checked_communicator& ranks_;
  rank_id rank_id_;
  communicator_check options_;
  probes tried_;
};

template <class T, class Stream, communicator C>
checked_elements checked_elements_of(C& ranks, Stream stream) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && !std::same_as<T, bool> && std::is_trivially_copyable_v<T>,
                "slamb: check_communicator checks std::byte, and numbers of at most 8 bytes");
  const auto says = [&](collective kind) { return says_it_has(ranks, kind); };
  return {.family = element_family<T>(),
          .size = sizeof(T),
          .has = {capability::has_all_reduce_sum<C, T, Stream> && std::is_arithmetic_v<T>,
                  capability::has_all_gather<C, T, Stream> && says(collective::all_gather),
                  capability::has_all_to_all<C, T, Stream> && says(collective::all_to_all),
                  capability::has_broadcast<C, T, Stream> && says(collective::broadcast)},
          .call = [&ranks, stream](const probe& p, std::span<std::byte> memory) {
            make_call<T>(p, memory, ranks, stream);
          }};
}

/// The shard group of a Communicator, as a Communicator of its own.
template <class C>
class shards_of {
 public:
  explicit shards_of(C& whole) noexcept : whole_(whole) {}

  int rank() const { return static_cast<int>(whole_.shard_rank()); }
  int size() const { return static_cast<int>(whole_.shard_size()); }
  template <class Stream>
  void all_reduce_sum(std::span<float> values, Stream stream) {
    whole_.all_reduce_in_shards(values, stream);
  }
  template <class Stream>
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Stream stream) {
    whole_.all_gather_in_shards(mine, all, stream);
  }
  void abort(const std::string& reason) requires has_abort<C> { whole_.abort(reason); }

 private:
  C& whole_;
};

/// @param on  its memory
template <class... More, class Stream, communicator C>
void check_communicator_on(checked_communicator on, C& ranks, Stream stream, const communicator_check& options) {
  static_assert(capability::has_all_reduce_sum<C, float, Stream>,
                "slamb: the Communicator must have all_reduce_sum(std::span<float>, stream) for slamb::host_stream, or "
                "for the stream of the Backend that check_communicator is given");
  on.id = {.rank = static_cast<int>(ranks.rank()), .size = static_cast<int>(ranks.size())};
  if constexpr (capability::has_all_reduce_in_node<C, Stream>)
    on.id = {on.id.rank, on.id.size, static_cast<int>(ranks.local_rank()), static_cast<int>(ranks.local_size()), true};
  on.floats = checked_elements_of<float>(ranks, stream);
  on.floats.has = {true};
  on.others = {checked_elements_of<std::byte>(ranks, stream), checked_elements_of<More>(ranks, stream)...};
  if constexpr (has_abort<C>) on.abort = [&ranks](const std::string& reason) { ranks.abort(reason); };
  if constexpr (capability::has_shards<C, Stream>) on.shards = static_cast<int>(ranks.shard_size());
  communicator_checker(on, options).run();
  if (on.shards == 1) return;
  if constexpr (capability::has_shards<C, Stream>) {
    shards_of<C> shards(ranks);
    on.id = {.rank = shards.rank(), .size = shards.size(), .are_shards = true};
    on.floats = checked_elements_of<float>(shards, stream);
    on.floats.has = {true};
    on.others = {checked_elements_of<std::byte>(shards, stream)};
    on.shards = 1;
    communicator_checker(on, options).run();
  }
}

}  // namespace detail

/// Checks that a Communicator does what optimizers rely on, as docs/extend/communicator.md specifies: sums of floats;
/// all_gather, all_to_all and broadcast of bytes, if it has them; all_reduce_in_node, if its ranks are nodes. Then, if it has
/// shards, the collectives of each shard group; only the ranks of a group report its findings. Sizes are 0, 1, fewer than ranks, odd and
/// large. Spans are not aligned, and have margins that must not be written. Values have either sign,
/// and some are denormal, huge, infinite or NaN. Sums must have the same bits on all ranks. Every rank is root. Calls
/// follow each other directly, repeat, and come from a second thread too.
///
/// Without a Backend, spans are host memory and the stream is a host_stream. With one, they are in its memory and calls are on
/// its stream: work that is put on the stream after a call must find the result. The check waits by the Communicator's `wait`,
/// if it has one. It does not wait between calls that follow each other.
///
/// Collective: every rank calls it, with the same `options`. It makes the same calls on all ranks, whatever it finds, and exchanges
/// the findings by all_reduce_sum: a rank whose own results are right throws too.
///
/// If size() or `options` differ between ranks, or two ranks have the same rank(), every rank reports it first, provided that
/// all_reduce_sum reaches all ranks. A rank whose rank() is not in 0 … size() − 1 makes no collective: it calls `abort(reason)`
/// if the Communicator has that, and throws. Without `abort` its peers wait until the Communicator's own timeout, as they do
/// for a rank that does not call check_communicator.
///
/// @tparam More  further element types to check in all collectives that the Communicator has for them:
///   check_communicator<double>(mine)
/// @throws communicator_error, on every rank, with a list: rank, collective, size, root, place, and the fault found there. If
///   all_reduce_sum is wrong, each rank lists only its own findings. If a collective, or a wait, throws, the check ends with the
///   findings so far.
/// @throws rank_mismatch_error, on every rank, if `options` differs between ranks; std::invalid_argument if it is out of range
/// *Cost*: some hundred collectives; in the largest, a rank sends `options.large` elements to each rank.
template <class... More, communicator C>
void check_communicator(C& ranks, const communicator_check& options = {}) {
  const auto copy = [](std::span<const std::byte> from, std::span<std::byte> to) {
    std::ranges::copy(from, to.begin());
  };
  detail::check_communicator_on<More...>(
      {.upload = copy, .copy = copy, .download = copy, .enter = [](const std::function<void()>& body) { body(); }},
      ranks, host_stream{}, options);
}

/// As above, in the memory of a Backend and on its stream.
/// @param backend  such as slamb::cuda_backend{.stream = stream}; its device must be current, as for the Communicator
/// @throws the exceptions of its memory and copies
template <class... More, communicator C, backend B>
void check_communicator(C& ranks, const B& backend, const communicator_check& options = {}) {
  using stream_type = typename B::stream_type;
  static_assert(
      requires { sizeof(detail::stream_copy<stream_type>); },
      "slamb: check_communicator copies in the order of the stream; specialise slamb::detail::stream_copy for the "
      "Backend's stream");
  using from_bytes = std::span<const std::byte>;
  using to_bytes = std::span<std::byte>;
  backend.validate();
  const auto launcher = backend.make_launcher(0);
  const stream_type stream = launcher.stream();
  const any_communicator<stream_type> alone(self_communicator{});  // the wait is the Communicator's own
  detail::checked_communicator on{
      .upload = [&](from_bytes from, to_bytes to) { launcher.upload(from, to); },
      .copy = [&](from_bytes from, to_bytes to) { detail::stream_copy<stream_type>::run(from, to, stream); },
      .download =
          [&](from_bytes from, to_bytes to) {
            if constexpr (detail::has_wait<C, stream_type>) ranks.wait(stream);
            launcher.download(from, to, alone);
          },
      .enter =
          [&](const std::function<void()>& body) {
            if constexpr (requires { launcher.enter(); }) {
              const auto entered = launcher.enter();
              body();
            } else {
              body();
            }
          }};
  if constexpr (requires { backend.make_allocator(); })
    on.memory = backend.make_allocator();
  else
    on.memory = backend.memory;
  detail::check_communicator_on<More...>(std::move(on), ranks, stream, options);
}

}  // namespace slamb
