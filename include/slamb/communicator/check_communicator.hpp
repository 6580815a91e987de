// A conformance suite for Communicators of your own, to be called in their tests: it tries what optimizers rely on, in sizes
// and with values that a training may meet only after hours, and says what is wrong on every rank.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/communicator/collective_call.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb {

/// How `check_communicator` checks; the same on all ranks.
struct communicator_check {
  /// Elements that a rank hands over for each rank, in the largest collectives.
  std::size_t large = 100'003;
  /// In [0, 0.1]: how far sums may be off, relative to the sum of magnitudes, beside rounding to the element type; for wire formats
  /// of fewer bits.
  double wire_error = 0.0;
  /// Also calls from a thread that has not constructed the Communicator, as steps in parts do on the host.
  bool from_second_thread = true;
};

namespace detail {

/// What a sum that is checked has in it.
enum class sum_content {
  plain,     ///< numbers of either sign over nine binades
  integers,  ///< a value of one rank, up to 65535, and zeros of the others
  tiny,      ///< a denormal of one rank, and zeros of the others
  huge,      ///< of either sign, up to 1e32
  nan,       ///< of one rank
  infinite   ///< of one rank, or of two and of either sign
};

constexpr std::uint64_t checked_bits(std::uint64_t call, int rank, std::size_t i) noexcept {
  std::uint64_t x = (call << 40U) + (static_cast<std::uint64_t>(rank) << 20U) * 0x9E3779B97F4A7C15U + i + 1;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// What `rank` hands to call number `call`, as element i: numbers over nine binades, or any bits of what is no float.
template <class T>
T checked_value(std::uint64_t call, int rank, std::size_t i) {
  const std::uint64_t bits = checked_bits(call, rank, i);
  if constexpr (std::is_floating_point_v<T>) {
    const double fraction = 1.0 + static_cast<double>(bits >> 40U) / 16'777'216.0;
    return static_cast<T>(std::ldexp((bits & 1U) != 0 ? fraction : -fraction, static_cast<int>(bits >> 1U & 7U)));
  } else {
    return static_cast<T>(bits);
  }
}

/// The same of a sum of floats among `ranks`.
template <class T>
T checked_term(sum_content content, std::uint64_t call, int rank, int ranks, std::size_t i) {
  const bool has_special = static_cast<std::size_t>(rank) == i % static_cast<std::size_t>(ranks);
  const bool is_next = ranks > 1 && static_cast<std::size_t>(rank) == (i + 1) % static_cast<std::size_t>(ranks);
  switch (content) {
    case sum_content::plain:
      break;
    case sum_content::integers:
      return has_special ? static_cast<T>(checked_bits(call, rank, i) % 65536U) : T(0);
    case sum_content::tiny:
      return has_special ? std::numeric_limits<T>::min() / T(8) : T(0);
    case sum_content::huge:
      return checked_value<T>(call, rank, i) * static_cast<T>(1e29);
    case sum_content::nan:
      if (has_special) return std::numeric_limits<T>::quiet_NaN();
      break;
    case sum_content::infinite:
      if (has_special) return std::numeric_limits<T>::infinity();
      if (is_next && i % 2 == 1) return -std::numeric_limits<T>::infinity();
      break;
  }
  return checked_value<T>(call, rank, i);
}

/// "1 byte", "17 floats".
template <class T>
std::string count_of(std::size_t n) {
  std::string type = std::to_string(8 * sizeof(T)) + "-bit element";
  if constexpr (std::is_same_v<T, std::byte>) type = "byte";
  if constexpr (std::is_same_v<T, float>) type = "float";
  if constexpr (std::is_same_v<T, double>) type = "double";
  return std::to_string(n) + " " + type + (n == 1 ? "" : "s");
}

template <class T>
std::string checked_text(T x) {
  if constexpr (std::is_same_v<T, std::byte>)
    return std::to_string(std::to_integer<int>(x));
  else if constexpr (std::is_same_v<T, float>)
    return float_to_text(x);
  else
    return to_text(static_cast<double>(x));
}

/// A span with margins that nobody may write to. It does not begin at a multiple of anything but its element.
template <class T>
class checked_span {
 public:
  explicit checked_span(std::size_t size) : all_(size + 2 * margin), size_(size) {
    std::memset(static_cast<void*>(all_.data()), mark, all_.size() * sizeof(T));
  }

  std::span<T> span() noexcept { return std::span<T>(all_).subspan(margin, size_); }
  std::span<const T> values() const noexcept { return std::span<const T>(all_).subspan(margin, size_); }
  bool is_intact_before() const { return is_marked(0); }
  bool is_intact_behind() const { return is_marked(margin + size_); }
  /// Sets all values, as whoever owns them may do once a collective has returned.
  void spoil() { std::memset(static_cast<void*>(span().data()), spoilt, size_ * sizeof(T)); }
  bool is_spoilt() const { return has_bytes(margin, size_, spoilt); }

 private:
  static constexpr std::size_t margin = 3;
  static constexpr unsigned char mark = 0xA5, spoilt = 0x5A;

  bool is_marked(std::size_t first) const { return has_bytes(first, margin, mark); }
  bool has_bytes(std::size_t first, std::size_t count, unsigned char value) const {
    const auto bytes = std::as_bytes(std::span<const T>(all_).subspan(first, count));
    return std::ranges::all_of(bytes, [value](std::byte b) { return b == std::byte{value}; });
  }

  std::vector<T> all_;
  std::size_t size_;
};

/// One run of `check_communicator` on one rank.
template <communicator C>
class communicator_checker {
 public:
  communicator_checker(C& ranks, const communicator_check& how)
      : ranks_(ranks), how_(how), rank_(static_cast<int>(ranks.rank())), size_(static_cast<int>(ranks.size())) {
    if constexpr (has_nodes) {
      local_rank_ = static_cast<int>(ranks.local_rank());
      local_size_ = static_cast<int>(ranks.local_size());
    }
    require_in(how.wire_error >= 0.0 && how.wire_error <= 0.1, "communicator_check::wire_error", how.wire_error,
               "in [0, 0.1]");
    if (size_ < 1 || rank_ < 0 || rank_ >= size_ || local_size_ < 1 || local_rank_ < 0 || local_rank_ >= local_size_)
      throw communicator_error("slamb: check_communicator: the Communicator says it is " + me() +
                               "; ranks must be 0 … size − 1");
  }

  template <class... More>
  void run() {
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
      check_in_a_row();  // back on this one
    }
    tell_and_throw();
  }

 private:
  using verification = std::function<void()>;  // of a collective that has returned
  static constexpr bool has_nodes = has_local_reduction<C>;
  static constexpr bool gathers = has_all_gather<C, std::byte>;
  static constexpr bool exchanges = has_all_to_all<C, std::byte>;
  static constexpr bool broadcasts = has_broadcast<C, std::byte>;

  bool has(collective kind) const { return says_it_has(ranks_, kind); }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size_); }

  /// 0, 1, fewer than ranks, as many, one more; odd ones, powers of two, and the largest.
  std::vector<std::size_t> sizes() const {
    std::vector<std::size_t> all{0, 1, 2, 15, 17, 64, 1000, ranks() - 1, ranks(), ranks() + 1, how_.large};
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

  // ------------------------------------------------------------------------------------------------------ what is checked

  void check_sums_of(std::size_t n) {
    if constexpr (has_all_reduce_sum<C, float>) start_sum<float>(n, sum_content::plain)();
    if constexpr (has_nodes) start_local_sum(n)();
  }
  void check_bytes_of(std::size_t n) {
    if constexpr (gathers) start_gather<std::byte>(n)();
    if constexpr (exchanges) start_exchange<std::byte>(n)();
    if constexpr (broadcasts) start_broadcast<std::byte>(n, size_ - 1)();
  }
  template <class T>
  void check_all_of(std::size_t n) {
    if constexpr (has_all_reduce_sum<C, T> && std::is_arithmetic_v<T>) start_sum<T>(n, sum_content::plain)();
    if constexpr (has_all_gather<C, T>) start_gather<T>(n)();
    if constexpr (has_all_to_all<C, T>) start_exchange<T>(n)();
    if constexpr (has_broadcast<C, T>) start_broadcast<T>(n, size_ - 1)();
  }
  template <class T>
  void check_contents() {
    if constexpr (has_all_reduce_sum<C, T>)
      for (const sum_content content :
           {sum_content::integers, sum_content::tiny, sum_content::huge, sum_content::nan, sum_content::infinite})
        for (const std::size_t n : {std::size_t{1}, 2 * ranks() + 1, std::size_t{1001}}) start_sum<T>(n, content)();
  }
  void check_roots() {
    if constexpr (broadcasts)
      for (int root = 0; root < size_; ++root) start_broadcast<std::byte>(17, root)();
  }
  /// Collectives of all kinds, one behind the other: the same again with other values, and buffers that are written to as soon
  /// as a call has returned. Nothing is looked at before all of them have.
  void check_in_a_row() {
    std::vector<verification> all;
    for (int again = 0; again < 3; ++again) {
      if constexpr (has_all_reduce_sum<C, float>) all.push_back(start_sum<float>(100, sum_content::plain));
      if constexpr (exchanges) all.push_back(start_exchange<std::byte>(384));
      if constexpr (gathers) all.push_back(start_gather<std::byte>(384));
      if constexpr (broadcasts) all.push_back(start_broadcast<std::byte>(384, again % size_));
      if constexpr (has_nodes) all.push_back(start_local_sum(100));
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

  // -------------------------------------------------------------------------- one collective: the call, and what verifies it

  template <class T>
  verification start_sum(std::size_t n, sum_content content) {
    return start_sum_over<T>("all_reduce_sum of " + count_of<T>(n), n, content, rank_, size_,
                             [this](std::span<T> values) { ranks_.all_reduce_sum(values, host_stream{}); });
  }
  verification start_local_sum(std::size_t n) {
    return start_sum_over<float>("reduce_locally of " + count_of<float>(n), n, sum_content::plain, local_rank_,
                                 local_size_, [this](std::span<float> values) {
                                   if constexpr (has_nodes) ranks_.reduce_locally(values, host_stream{});
                                 });
  }
  template <class T, class Sum>
  verification start_sum_over(const std::string& label, std::size_t n, sum_content content, int rank, int ranks,
                              const Sum& sum) {
    const std::uint64_t call = next_call();
    const auto values = std::make_shared<checked_span<T>>(n);
    for (std::size_t i = 0; i < n; ++i) values->span()[i] = term<T>(content, call, rank, ranks, i);
    make(label, [&] { sum(values->span()); });
    std::vector<T> result(values->values().begin(), values->values().end());
    values->spoil();
    if (label[0] == 'a') keep_bits(label, result);
    return [=, this, result = std::move(result)] {
      require_margins(label, *values, "values");
      require_sums(label, std::span<const T>(result), content, call, ranks);
    };
  }

  template <class T>
  verification start_gather(std::size_t n) {
    if (!has(collective::all_gather)) return [] {};
    const std::string label = "all_gather of " + count_of<T>(n);
    const std::uint64_t call = next_call();
    const auto mine = std::make_shared<checked_span<T>>(n);
    const auto all = std::make_shared<checked_span<T>>(n * ranks());
    for (std::size_t i = 0; i < n; ++i) mine->span()[i] = checked_value<T>(call, rank_, i);
    make(label, [&] { ranks_.all_gather(mine->values(), all->span(), host_stream{}); });
    std::vector<T> source(mine->values().begin(), mine->values().end());
    std::vector<T> result(all->values().begin(), all->values().end());
    mine->spoil();
    all->spoil();
    return [=, this, source = std::move(source), result = std::move(result)] {
      require_margins(label, *mine, "mine");
      require_margins(label, *all, "all");
      require_source(label, std::span<const T>(source), call, "mine");
      for (int from = 0; from < size_; ++from)
        if (!holds(label, "the place of rank " + std::to_string(from),
                   std::span<const T>(result).subspan(static_cast<std::size_t>(from) * n, n), call, from, 0, 1))
          return;
    };
  }

  template <class T>
  verification start_exchange(std::size_t n) {
    if (!has(collective::all_to_all)) return [] {};
    const std::string label = "all_to_all of " + std::to_string(size_) + " times " + count_of<T>(n);
    const std::uint64_t call = next_call();
    const auto send = std::make_shared<checked_span<T>>(n * ranks());
    const auto receive = std::make_shared<checked_span<T>>(n * ranks());
    for (std::size_t i = 0; i < n * ranks(); ++i) send->span()[i] = checked_value<T>(call, rank_, i);
    make(label, [&] { ranks_.all_to_all(send->values(), receive->span(), host_stream{}); });
    std::vector<T> source(send->values().begin(), send->values().end());
    std::vector<T> result(receive->values().begin(), receive->values().end());
    send->spoil();
    receive->spoil();
    return [=, this, source = std::move(source), result = std::move(result)] {
      require_margins(label, *send, "send");
      require_margins(label, *receive, "receive");
      require_source(label, std::span<const T>(source), call, "send");
      for (int from = 0; from < size_; ++from)
        if (!holds(label, "the place of rank " + std::to_string(from),
                   std::span<const T>(result).subspan(static_cast<std::size_t>(from) * n, n), call, from, rank_, size_))
          return;
    };
  }

  template <class T>
  verification start_broadcast(std::size_t n, int root) {
    if (!has(collective::broadcast)) return [] {};
    const std::string label = "broadcast of " + count_of<T>(n) + " from root " + std::to_string(root);
    const std::uint64_t call = next_call();
    const auto values = std::make_shared<checked_span<T>>(n);
    for (std::size_t i = 0; i < n; ++i) values->span()[i] = checked_value<T>(call, rank_, i);
    make(label, [&] { ranks_.broadcast(values->span(), root, host_stream{}); });
    std::vector<T> result(values->values().begin(), values->values().end());
    values->spoil();
    return [=, this, result = std::move(result)] {
      require_margins(label, *values, "values");
      holds(label, "`values`", std::span<const T>(result), call, root, 0, 1);
    };
  }

  /// @throws communicator_error, with what has been found before, if the collective throws
  template <class Call>
  void make(const std::string& label, const Call& call) {
    try {
      call();
    } catch (const std::exception& failure) {
      std::string text = "slamb: check_communicator: " + me() + ": " + label + " threw: " + failure.what();
      for (const std::string& found : findings_) text += "\n  " + found;
      throw communicator_error(text);
    }
  }

  std::uint64_t next_call() noexcept { return ++calls_; }

  // ---------------------------------------------------------------------------------------------------- what must be true

  template <class T>
  static T term(sum_content content, std::uint64_t call, int rank, int ranks, std::size_t i) {
    if constexpr (std::is_floating_point_v<T>)
      return checked_term<T>(content, call, rank, ranks, i);
    else
      return checked_value<T>(call, rank, i);
  }

  template <class T>
  void require_sums(const std::string& label, std::span<const T> sums, sum_content content, std::uint64_t call,
                    int ranks) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::string wrong = wrong_sum(sums[i], content, call, ranks, i);
      if (!wrong.empty())
        return add(label, "element " + std::to_string(i) + " is " + checked_text(sums[i]) + ", " + wrong);
    }
  }
  /// What is wrong with element i; empty if nothing is.
  template <class T>
  std::string wrong_sum(T found, sum_content content, std::uint64_t call, int ranks, std::size_t i) const {
    if constexpr (std::is_floating_point_v<T>) {
      long double sum = 0.0L, magnitude = 0.0L;
      for (int rank = 0; rank < ranks; ++rank) {
        const T x = term<T>(content, call, rank, ranks, i);
        if (std::isnan(x) && !std::isnan(found))
          return "but rank " + std::to_string(rank) + "'s value is NaN, and so must be the sum";
        if (std::isinf(x) && std::isfinite(found))
          return "but rank " + std::to_string(rank) + "'s value is infinite, so that the sum must be infinite or NaN";
        sum += static_cast<long double>(x);
        magnitude += std::fabs(static_cast<long double>(x));
      }
      if (!std::isfinite(sum)) return {};
      const long double rounding =
          ranks == 1 ? 0.0L : ranks * static_cast<long double>(std::numeric_limits<T>::epsilon());
      const bool is_exact = content == sum_content::integers || content == sum_content::tiny;
      const long double most = is_exact ? 0.0L : (rounding + static_cast<long double>(how_.wire_error)) * magnitude;
      if (std::fabs(static_cast<long double>(found) - sum) <= most) return {};
      if (content == sum_content::tiny && found == T(0)) return {};  // hardware may be told to make 0 of denormals
      return "but the ranks' values add up to " + to_text(static_cast<double>(sum));
    } else {
      std::uint64_t sum = 0;
      for (int rank = 0; rank < ranks; ++rank)
        sum += static_cast<std::uint64_t>(term<T>(content, call, rank, ranks, i));
      if (found == static_cast<T>(sum)) return {};
      return "but the ranks' values add up to " + checked_text(static_cast<T>(sum));
    }
  }

  /// Whether `found` is what `from` has sent: its chunk `chunk` of `chunks`. Else says what it is.
  template <class T>
  bool holds(const std::string& label, const std::string& place, std::span<const T> found, std::uint64_t call, int from,
             int chunk, int chunks) {
    const std::size_t other = first_other(found, call, from, chunk);
    if (other == found.size()) return true;
    if (found.size_bytes() >= 8) {  // fewer may be like others by accident
      for (int rank = 0; rank < size_; ++rank)
        for (int c = 0; c < chunks; ++c)
          if (first_other(found, call, rank, c) == found.size()) {
            std::string said = place;
            said.append(" has rank ").append(std::to_string(rank)).append("'s ");
            said.append(chunks > 1 ? "chunk " + std::to_string(c) : "values");
            add(label, said);
            return false;
          }
      for (std::uint64_t before = call > 8 ? call - 8 : 1; before < call; ++before)
        if (first_other(found, before, from, chunk) == found.size()) {
          add(label, place + " has the values of an earlier call");
          return false;
        }
    }
    const std::size_t i = static_cast<std::size_t>(chunk) * found.size() + other;
    add(label, "element " + std::to_string(other) + " of " + place + " is " + checked_text(found[other]) + ", but " +
                   checked_text(checked_value<T>(call, from, i)) + " was sent");
    return false;
  }
  /// The first element that is not as `from` has it in its chunk `chunk`; the size if there is none.
  template <class T>
  static std::size_t first_other(std::span<const T> found, std::uint64_t call, int from, int chunk) {
    const std::size_t first = static_cast<std::size_t>(chunk) * found.size();
    std::size_t i = 0;
    while (i < found.size() && found[i] == checked_value<T>(call, from, first + i)) ++i;
    return i;
  }

  template <class T>
  void require_source(const std::string& label, std::span<const T> source, std::uint64_t call, const char* name) {
    if (first_other(source, call, rank_, 0) != source.size())
      add(label, std::string("it has written to `") + name + "`, which it may only read");
  }
  template <class T>
  void require_margins(const std::string& label, const checked_span<T>& span, const char* name) {
    const std::string of = std::string(" of `") + name + "`";
    if (!span.is_intact_before()) add(label, "it has written before the first element" + of);
    if (!span.is_intact_behind()) add(label, "it has written behind the last element" + of);
    if (!span.is_spoilt()) add(label, "it has written to `" + std::string(name) + "` after it had returned");
  }

  /// Keeps what a sum is, in 32 bits, for a comparison of ranks. NaN is NaN.
  template <class T>
  void keep_bits(const std::string& label, std::span<const T> result) {
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (T x : result) {
      if constexpr (std::is_floating_point_v<T>)
        if (std::isnan(x)) x = std::numeric_limits<T>::quiet_NaN();
      for (const std::byte b : std::as_bytes(std::span(&x, 1)))
        hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
    }
    sums_.push_back({label, static_cast<std::uint32_t>(hash ^ (hash >> 32U))});
  }
  template <class T>
  void keep_bits(const std::string& label, const std::vector<T>& result) {
    keep_bits(label, std::span<const T>(result));
  }

  // ------------------------------------------------------------------------------------------------- what has been found

  std::string me() const {
    std::string text = "rank " + std::to_string(rank_) + " of " + std::to_string(size_);
    if (has_nodes) text += ", local rank " + std::to_string(local_rank_) + " of " + std::to_string(local_size_);
    return text;
  }
  std::string name_of(std::size_t one_of_all) const {
    const auto locals = static_cast<std::size_t>(local_size_);
    std::string text = "rank " + std::to_string(one_of_all / locals) + " of " + std::to_string(size_);
    if (has_nodes) text += ", local rank " + std::to_string(one_of_all % locals) + " of " + std::to_string(local_size_);
    return text;
  }

  void add(const std::string& label, const std::string& what) {
    findings_.push_back(me() + ": " + label + ": " + what);
  }

  static constexpr std::size_t told_findings = 8;    // of each rank
  static constexpr std::size_t told_letters = 1400;  // the same

  std::string own_text() const {
    std::string text;
    for (std::size_t i = 0; i < std::min(findings_.size(), told_findings); ++i) text += "\n  " + findings_[i];
    if (findings_.size() > told_findings)
      text += "\n  " + me() + ": and " + std::to_string(findings_.size() - told_findings) + " more";
    if (text.size() > told_letters) text.resize(told_letters);
    return text;
  }

  std::size_t everyone() const noexcept { return ranks() * static_cast<std::size_t>(local_size_); }
  std::size_t myself() const noexcept {
    return static_cast<std::size_t>(rank_) * static_cast<std::size_t>(local_size_) +
           static_cast<std::size_t>(local_rank_);
  }
  /// `table` has a row of each rank of all nodes, of which this one has filled its own, and others are 0.
  void sum_over_all(std::vector<float>& table) {
    if constexpr (has_nodes)
      make("reduce_locally of what ranks have found",
           [&] { ranks_.reduce_locally(std::span<float>(table), host_stream{}); });
    if constexpr (has_all_reduce_sum<C, float>)
      make("all_reduce_sum of what ranks have found",
           [&] { ranks_.all_reduce_sum(std::span<float>(table), host_stream{}); });
  }

  /// Ranks whose sums have other bits than those of the first rank.
  std::string other_bits() {
    const std::size_t width = 2 * sums_.size();
    std::vector<float> table(everyone() * width, 0.0F);
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      table[myself() * width + 2 * i] = static_cast<float>(sums_[i].bits & 0xFFFFU);
      table[myself() * width + 2 * i + 1] = static_cast<float>(sums_[i].bits >> 16U);
    }
    sum_over_all(table);
    for (std::size_t i = 0; i < width; ++i)
      for (std::size_t other = 1; other < everyone(); ++other)
        if (table[other * width + i] != table[i])
          return "\n  " + name_of(other) + ": " + sums_[i / 2].label +
                 ": the sums have other bits than those of rank 0";
    return {};
  }

  /// Letters are told as numbers, behind their count and their sum: a wrong all_reduce_sum must not make up sentences.
  std::string texts_of_all() {
    constexpr std::size_t width = told_letters + 2;
    const std::string own = own_text();
    std::vector<float> table(everyone() * width, 0.0F);
    const std::span<float> mine = std::span(table).subspan(myself() * width, width);
    mine[0] = static_cast<float>(own.size());
    mine[1] = static_cast<float>(sum_of(own));
    for (std::size_t i = 0; i < own.size(); ++i) mine[i + 2] = static_cast<float>(static_cast<unsigned char>(own[i]));
    sum_over_all(table);
    std::string all;
    for (std::size_t one = 0; one < everyone(); ++one) {
      if (one == myself()) {
        all += own;
        continue;
      }
      const std::span<const float> row = std::span<const float>(table).subspan(one * width, width);
      if (std::ranges::all_of(row, [](float x) { return x == 0.0F; })) continue;
      std::string text;
      for (std::size_t i = 2; i < width && row[i] >= 1.0F && row[i] <= 255.0F; ++i)
        text += static_cast<char>(static_cast<unsigned char>(row[i]));
      const bool is_whole = row[0] == static_cast<float>(text.size()) && row[1] == static_cast<float>(sum_of(text));
      all += is_whole ? text : "\n  " + name_of(one) + ": has found what wrong sums keep it from telling";
    }
    return all;
  }
  static unsigned sum_of(const std::string& text) {
    unsigned sum = 0;
    for (const char c : text) sum = (sum * 31U + static_cast<unsigned char>(c)) % 65521U;
    return sum;
  }

  void tell_and_throw() {
    const std::string bits = other_bits();
    const std::string found = texts_of_all() + bits;
    if (!found.empty())
      throw communicator_error("slamb: check_communicator has found what this Communicator does wrong:" + found);
  }

  struct summed {
    std::string label;
    std::uint32_t bits;
  };

  C& ranks_;
  communicator_check how_;
  int rank_, size_;
  int local_rank_ = 0, local_size_ = 1;
  std::uint64_t calls_ = 0;
  std::vector<std::string> findings_;
  std::vector<summed> sums_;
};

}  // namespace detail

/// Checks that a Communicator of host memory does what optimizers rely on, as docs/policies.md has it: sums of floats;
/// all_gather, all_to_all and broadcast of bytes, if it has them; reduce_locally, if its ranks are nodes. Sizes are 0, 1, fewer
/// than ranks, odd and large; spans are not aligned, and have margins that must not be written. Values have either sign, are
/// denormal, huge, infinite, NaN. Sums must have the same bits on all ranks. Every rank is root once; calls follow each other
/// without anything between them, repeat, and come from a second thread too.
///
/// Collective: every rank calls it, with the same `how`. It makes the same calls on all ranks whatever it finds, and tells by
/// all_reduce_sum what ranks have found: one whose results are right throws as well.
///
/// @tparam More  element types of which all collectives are checked too that the type has: check_communicator<double>(mine)
/// @throws communicator_error, on every rank, with a list: rank, collective, size, root, place, and what was found there. Where
///         all_reduce_sum is wrong, each rank has its own findings alone. If a collective throws, the check ends with what has
///         been found so far.
/// @throws std::invalid_argument if `how` is out of range
/// *Cost*: some hundred collectives; in the largest, a rank sends `how.large` elements to each rank.
template <class... More, communicator C>
void check_communicator(C& ranks, const communicator_check& how = {}) {
  static_assert(has_all_reduce_sum<C, float>,
                "slamb: the Communicator must have all_reduce_sum(std::span<float>, slamb::host_stream)");
  detail::communicator_checker<C>(ranks, how).template run<More...>();
}

}  // namespace slamb
