// The faults that ranks have found in a Communicator. Ranks exchange them by sums alone, because every Communicator has sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/core/error.hpp"

namespace slamb::detail {

/// The place of a rank among all ranks. With `in_nodes`, `rank` is the node and `local_rank` the place in the node.
struct checked_place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  bool in_nodes = false;

  bool is_one() const noexcept {
    return size >= 1 && rank >= 0 && rank < size && local_size >= 1 && local_rank >= 0 && local_rank < local_size;
  }
  std::size_t everyone() const noexcept {
    return static_cast<std::size_t>(size) * static_cast<std::size_t>(local_size);
  }
  std::size_t myself() const noexcept {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(local_size) + static_cast<std::size_t>(local_rank);
  }
  /// "rank 1 of 4", "rank 0 of 2, local rank 3 of 4".
  std::string text() const { return text_of(std::to_string(rank), std::to_string(local_rank)); }
  /// The place of rank `one_of_all`, counted over all nodes.
  std::string text(std::size_t one_of_all) const {
    const auto locals = static_cast<std::size_t>(local_size);
    return text_of(std::to_string(one_of_all / locals), std::to_string(one_of_all % locals));
  }

 private:
  std::string text_of(const std::string& at, const std::string& local) const {
    std::string all = "rank " + at + " of " + std::to_string(size);
    if (in_nodes) all.append(", local rank ").append(local).append(" of ").append(std::to_string(local_size));
    return all;
  }
};

/// The findings of one rank.
class rank_findings {
 public:
  explicit rank_findings(const checked_place& me) : me_(me) {}

  void add(const std::string& label, const std::string& what) {
    findings_.push_back(me_.text() + ": " + label + ": " + what);
  }

  /// Keeps a 32-bit hash of a sum's bits, so that ranks can compare them. All NaNs count as equal.
  template <class T>
  void keep_bits(const std::string& label, const std::vector<T>& result) {
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (T x : result) {
      if constexpr (std::is_floating_point_v<T>)
        if (std::isnan(x)) x = std::numeric_limits<T>::quiet_NaN();
      for (const std::byte b : std::as_bytes(std::span(&x, 1)))
        hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
    }
    sums_.push_back({label, static_cast<std::uint32_t>(hash ^ (hash >> 32U))});
  }

  /// All findings, one per line.
  std::string text() const {
    std::string all;
    for (const std::string& found : findings_) all += "\n  " + found;
    return all;
  }

  using summing = std::function<void(std::vector<float>& table)>;  ///< sums `table` over all ranks of all nodes

  /// Collective. The findings of all ranks, one per line; empty if there are none.
  std::string text_of_all(const summing& sum) const {
    const std::string bits = other_bits(sum);
    return texts_of_all(sum) + bits;
  }

 private:
  static constexpr std::size_t sent_findings = 8;    // listed per rank
  static constexpr std::size_t sent_letters = 1400;  // sent per rank

  std::string own_text() const {
    std::string text;
    for (std::size_t i = 0; i < std::min(findings_.size(), sent_findings); ++i) text += "\n  " + findings_[i];
    if (findings_.size() > sent_findings)
      text += "\n  " + me_.text() + ": and " + std::to_string(findings_.size() - sent_findings) + " more";
    if (text.size() > sent_letters) text.resize(sent_letters);
    return text;
  }

  // Tables have a row for each rank of all nodes. This rank fills its own row; the others are 0.

  /// A line for the first difference found between the sums' bits of a rank and of rank 0; empty if there is none.
  std::string other_bits(const summing& sum) const {
    const std::size_t width = 2 * sums_.size();
    std::vector<float> table(me_.everyone() * width, 0.0F);
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      table[me_.myself() * width + 2 * i] = static_cast<float>(sums_[i].bits & 0xFFFFU);
      table[me_.myself() * width + 2 * i + 1] = static_cast<float>(sums_[i].bits >> 16U);
    }
    sum(table);
    for (std::size_t i = 0; i < width; ++i)
      for (std::size_t other = 1; other < me_.everyone(); ++other)
        if (table[other * width + i] != table[i])
          return "\n  " + me_.text(other) + ": " + sums_[i / 2].label + ": the sums have other bits than on rank 0";
    return {};
  }

  /// Letters are sent as numbers, after their count and their checksum, so that a wrong all_reduce_sum cannot change a sentence
  /// unnoticed.
  std::string texts_of_all(const summing& sum) const {
    constexpr std::size_t width = sent_letters + 2;
    const std::string own = own_text();
    std::vector<float> table(me_.everyone() * width, 0.0F);
    const std::span<float> mine = std::span(table).subspan(me_.myself() * width, width);
    mine[0] = static_cast<float>(own.size());
    mine[1] = static_cast<float>(sum_of(own));
    for (std::size_t i = 0; i < own.size(); ++i) mine[i + 2] = static_cast<float>(static_cast<unsigned char>(own[i]));
    sum(table);
    std::string all;
    for (std::size_t one = 0; one < me_.everyone(); ++one) {
      if (one == me_.myself()) {
        all += own;
        continue;
      }
      const std::span<const float> row = std::span<const float>(table).subspan(one * width, width);
      if (std::ranges::all_of(row, [](float x) { return x == 0.0F; })) continue;
      std::string text;
      for (std::size_t i = 2; i < width && row[i] >= 1.0F && row[i] <= 255.0F; ++i)
        text += static_cast<char>(static_cast<unsigned char>(row[i]));
      const bool is_whole = row[0] == static_cast<float>(text.size()) && row[1] == static_cast<float>(sum_of(text));
      all += is_whole ? text
                      : "\n  " + me_.text(one) + ": has found mistakes, but cannot report them because sums are wrong";
    }
    return all;
  }
  static unsigned sum_of(const std::string& text) {
    unsigned sum = 0;
    for (const char c : text) sum = (sum * 31U + static_cast<unsigned char>(c)) % 65521U;
    return sum;
  }

  struct summed {
    std::string label;
    std::uint32_t bits;
  };

  checked_place me_;
  std::vector<std::string> findings_;
  std::vector<summed> sums_;
};

/// Numbers that must be equal on all ranks. Works even if ranks disagree on the number of ranks: each rank counts itself at
/// each hexadecimal digit of each number, in a table whose size depends only on the count of numbers.
class summed_numbers {
 public:
  explicit summed_numbers(std::vector<std::uint64_t> numbers)
      : numbers_(std::move(numbers)), table_(numbers_.size() * digits * base, 0.0F) {
    for (std::size_t i = 0; i < numbers_.size(); ++i)
      for (std::size_t d = 0; d < digits; ++d) row(i, d)[digit(i, d)] = 1.0F;
  }

  std::vector<float>& table() noexcept { return table_; }  ///< to be summed over all ranks

  /// The index of the first number that differs between ranks; the count of numbers if none differs, or if the table cannot be
  /// a sum of such counts.
  std::size_t first_other() const {
    if (!is_of_counts()) return numbers_.size();
    for (std::size_t i = 0; i < numbers_.size(); ++i)
      for (std::size_t d = 0; d < digits; ++d)
        if (row(i, d)[digit(i, d)] != total(row(i, d))) return i;
    return numbers_.size();
  }

 private:
  static constexpr std::size_t digits = 16, base = 16;

  std::size_t digit(std::size_t i, std::size_t d) const { return numbers_[i] >> (4 * d) & 15U; }
  std::span<float> row(std::size_t i, std::size_t d) {
    return std::span(table_).subspan((i * digits + d) * base, base);
  }
  std::span<const float> row(std::size_t i, std::size_t d) const {
    return std::span(table_).subspan((i * digits + d) * base, base);
  }
  static float total(std::span<const float> row) {
    float sum = 0.0F;
    for (const float x : row) sum += x;
    return sum;
  }
  bool is_of_counts() const {
    const float ranks = total(row(0, 0));
    for (std::size_t i = 0; i < numbers_.size(); ++i)
      for (std::size_t d = 0; d < digits; ++d) {
        const bool are_counts = std::ranges::all_of(row(i, d), [](float x) { return x >= 0.0F && x == std::floor(x); });
        if (!are_counts || total(row(i, d)) != ranks || row(i, d)[digit(i, d)] < 1.0F) return false;
      }
    return true;
  }

  std::vector<std::uint64_t> numbers_;
  std::vector<float> table_;  // [number][digit][value]: ranks that have this digit
};

}  // namespace slamb::detail
