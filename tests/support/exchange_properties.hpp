// Properties of every compressed exchange, for every quantizer and all values: docs/algorithms/one_bit_exchange.md. Each
// function returns the fault that it found, or "".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "support/exchange_observation.hpp"

namespace test_support {

inline constexpr double float_rounding = 0x1p-24;       // relative
inline constexpr double bfloat16_rounding = 0x1.01p-8;  // relative
inline constexpr double least_difference = 0x1p-133;    // between bfloat16s, and more than between floats
inline constexpr double scale_rounding = 0x1p-22;       // relative: a sum in double precision, rounded once

inline std::string fault_at(const std::string& what, std::size_t t, std::size_t j) {
  return what + ", exchange " + std::to_string(t) + ", element " + std::to_string(j);
}

/// One encoding of all active elements: the values that were encoded, and their codes.
struct coding {
  std::string name;
  const std::vector<std::byte>& messages;
  std::vector<double> values;  // [n]
  std::vector<double> slack;   // [n] how far `values` may differ from the single-precision ones; empty: not at all
  bool whole_signal = false;   // true: a sender's whole signal; false: a chunk, by its owner

  double slack_of(std::size_t j) const { return slack.empty() ? 0.0 : slack[j]; }
};

/// Compares the scales on the wire with scales computed in double precision from the active elements.
inline std::string fault_of_scales(const observation& o, std::size_t t, const coding& c) {
  if (o.scheme.sharing == shared_scales::none) return {};
  struct statistic {
    double sum = 0.0, slack = 0.0;
    std::size_t count = 0;
  };
  const std::size_t width = o.map.message_scales();
  std::vector<statistic> groups(std::max(o.ranks() * width, o.setup.tensors.size()));
  const auto group_of = [&](std::size_t j) -> statistic& {
    const wire_place& p = o.map.places[j];
    if (c.whole_signal && o.scheme.sharing == shared_scales::fused) return groups[0];
    if (c.whole_signal && o.scheme.sharing == shared_scales::per_tensor) return groups[p.tensor];
    return groups[p.owner * width + p.scale];
  };
  for (std::size_t j = 0; j < o.elements(); ++j) {
    if (!o.takes_part(j)) continue;
    statistic& g = group_of(j);
    const double x = std::abs(c.values[j]);
    ++g.count;
    g.slack = std::max(g.slack, c.slack_of(j));
    if (o.scheme.scale == slamb::segment_scale::l2) g.sum += x * x;
    if (o.scheme.scale == slamb::segment_scale::l1) g.sum += x;
    if (o.scheme.scale == slamb::segment_scale::max) g.sum = std::max(g.sum, x);
  }
  for (std::size_t j = 0; j < o.elements(); ++j) {
    if (!o.is_compressed(j)) continue;
    const statistic& g = group_of(j);
    double expected = g.count == 0 ? 0.0 : g.sum;
    if (g.count > 0 && o.scheme.scale != slamb::segment_scale::max) expected /= static_cast<double>(g.count);
    if (o.scheme.scale == slamb::segment_scale::l2) expected = std::sqrt(expected);
    double slack = scale_rounding * expected + g.slack + least_difference;
    if (o.scheme.scale_bytes == 1) {
      const auto power_from = [](double x) { return x > 0.0 ? std::exp2(std::ceil(std::log2(x))) : 0.0; };
      const double highest = power_from(expected + slack);
      slack = highest - power_from(expected - slack);
      expected = highest - slack;
    }
    if (!(std::abs(o.scale_of(c.messages, j) - expected) <= slack))
      return fault_at(c.name + ": the scale is " + std::to_string(o.scale_of(c.messages, j)) + " instead of " +
                          std::to_string(expected),
                      t, j);
  }
  return {};
}

/// Checks that codes are right for their values, and that the kept error is the rest: error_after(j).
template <class ErrorAfter>
std::string fault_of_codes(const observation& o, std::size_t t, const coding& c, bool keeps_error,
                           const ErrorAfter& error_after) {
  for (std::size_t j = 0; j < o.elements(); ++j) {
    if (!o.takes_part(j)) continue;
    const double x = c.values[j], slack = c.slack_of(j);
    const double scale = o.scale_of(c.messages, j), decoded = o.decoded(c.messages, j);
    const double rounding = 4.0 * float_rounding * (std::abs(x) + std::abs(decoded));
    const double low = o.scheme.model->become(x - slack, scale).low;
    const double high = o.scheme.model->become(x + slack, scale).high;
    if (!(low - rounding <= decoded && decoded <= high + rounding))
      return fault_at(c.name + ": " + std::to_string(x) + " became " + std::to_string(decoded), t, j);
    if (!keeps_error) continue;
    const double lost = x - decoded;
    const double kept_in = o.scheme.errors_are_narrow ? bfloat16_rounding * std::abs(lost) : 0.0;
    if (!(std::abs(error_after(j) - lost) <= slack + rounding + kept_in + least_difference))
      return fault_at(
          c.name + ": the error is " + std::to_string(error_after(j)) + " instead of " + std::to_string(lost), t, j);
  }
  return {};
}

/// docs/algorithms/one_bit_exchange.md (1) … (9), computed in double precision from the numbers before each exchange.
inline std::string fault_of_equations(const observation& o) {
  const auto n = static_cast<double>(o.ranks());
  for (std::size_t t = 0; t < o.history.size(); ++t) {
    if (!o.is_done(t)) continue;
    std::vector<double> mean(o.elements()), magnitude(o.elements());
    for (std::size_t rank = 0; rank < o.ranks(); ++rank) {
      const exchange_record& now = o.history[t][rank];
      if (o.is_active()) {
        const coding sent{"rank " + std::to_string(rank), now.wire.sent, o.values_sent(t, rank), {}, true};
        std::string fault = fault_of_scales(o, t, sent);
        if (fault.empty())
          fault = fault_of_codes(o, t, sent, o.scheme.keeps_worker_error,
                                 [&](std::size_t j) { return o.worker_error(t + 1, rank, j); });
        if (!fault.empty()) return fault;
      }
      for (std::size_t j = 0; j < o.elements(); ++j) {
        const double x = o.takes_part(j) && o.is_active() ? o.decoded(now.wire.sent, j) : o.signal(t, rank, j);
        mean[j] += x / n;
        magnitude[j] += std::abs(x) / n;
      }
    }
    std::vector<double> slack(o.elements());
    for (std::size_t j = 0; j < o.elements(); ++j) {
      const double before = o.takes_part(j) ? o.server_error(t, j) : 0.0;
      mean[j] += before;
      slack[j] = (n + 2.0) * float_rounding * (magnitude[j] + std::abs(before)) + least_difference;
    }
    if (o.is_active()) {
      const coding said{"the mean", o.history[t][0].wire.said, mean, slack, false};
      std::string fault = fault_of_scales(o, t, said);
      if (fault.empty())
        fault = fault_of_codes(o, t, said, o.scheme.keeps_server_error,
                               [&](std::size_t j) { return o.server_error(t + 1, j); });
      if (!fault.empty()) return fault;
    }
    for (std::size_t j = 0; j < o.elements(); ++j) {
      if (o.is_active() && o.left_out[j] != 0) continue;
      const bool decodes = o.is_active() && o.takes_part(j);
      const double expected = decodes ? o.decoded(o.history[t][0].wire.said, j) : mean[j];
      const double rounding = !o.is_active() ? 0.0 : decodes ? 4.0 * float_rounding * std::abs(expected) : slack[j];
      if (!(std::abs(o.result(t, j) - expected) <= rounding))
        return fault_at("the result is " + std::to_string(o.result(t, j)) + " instead of " + std::to_string(expected),
                        t, j);
    }
  }
  return {};
}

/// docs/algorithms/one_bit_exchange.md (10): result = mean of (x + e − e′) + s − s′, element by element, where errors are kept
/// by the senders. A server without an error loses the difference between the mean and its codes.
///
/// In single precision the sum holds to (N + 8) roundings of its terms: x + e; e′ with two decoded values; the mean of N terms;
/// s and s′. bfloat16 adds its own rounding of e′ and s′.
inline std::string fault_of_conservation(const observation& o) {
  const auto n = static_cast<double>(o.ranks());
  for (std::size_t t = 0; t < o.history.size(); ++t) {
    if (!o.is_done(t) || !o.is_active() || !o.scheme.keeps_worker_error) continue;
    for (std::size_t j = 0; j < o.elements(); ++j) {
      if (!o.takes_part(j)) continue;
      double expected = 0.0, magnitude = std::abs(o.result(t, j)), errors = 0.0, said = 0.0;
      for (std::size_t rank = 0; rank < o.ranks(); ++rank) {
        const double x = o.signal(t, rank, j), e = o.worker_error(t, rank, j), after = o.worker_error(t + 1, rank, j);
        expected += (x + e - after) / n;
        magnitude += (std::abs(x) + std::abs(e) + std::abs(after)) / n;
        errors += std::abs(after) / n;
        said += o.decoded(o.history[t][rank].wire.sent, j) / n;
      }
      if (o.scheme.keeps_server_error) {
        const double s = o.server_error(t, j), after = o.server_error(t + 1, j);
        expected += s - after;
        magnitude += std::abs(s) + std::abs(after);
        errors += std::abs(after);
      } else {
        expected += o.result(t, j) - said;
      }
      const double bound = (n + 8.0) * float_rounding * magnitude +
                           (o.scheme.errors_are_narrow ? bfloat16_rounding * errors : 0.0) + 4.0 * least_difference;
      if (!(std::abs(o.result(t, j) - expected) <= bound))
        return fault_at("of " + std::to_string(expected) + " there is " + std::to_string(o.result(t, j)), t, j);
    }
  }
  return {};
}

/// All ranks must have the same bits, and must agree on whether the exchange happened.
inline std::string fault_of_agreement(const observation& o) {
  for (std::size_t t = 0; t < o.history.size(); ++t)
    for (const exchange_record& r : o.history[t]) {
      const exchange_record& first = o.history[t][0];
      if (r.done != first.done) return fault_at("one rank has exchanged, another has not", t, 0);
      if (!same_bits(r.result, first.result)) return fault_at("ranks have different results", t, 0);
      if (r.wire.said != first.wire.said) return fault_at("ranks were told different means", t, 0);
    }
  return {};
}

/// The first difference of two histories, which must be equal bit for bit, or "".
inline std::string difference_of(const exchange_history& a, const exchange_history& b) {
  if (a.size() != b.size()) return "their lengths";
  for (std::size_t t = 0; t < a.size(); ++t)
    for (std::size_t rank = 0; rank < a[t].size(); ++rank) {
      const exchange_record& x = a[t][rank];
      const exchange_record& y = b[t][rank];
      if (x.done != y.done) return fault_at("whether there was one", t, 0);
      if (!same_bits(x.result, y.result)) return fault_at("the results", t, 0);
      if (x.state != y.state) return fault_at("the errors", t, 0);
    }
  return {};
}

/// An exchange makes two collectives of the declared size, and one more if some tensors are dense. A single rank that does not
/// encode makes none. If a rank skips the step, the others learn it in the first collective.
inline std::string fault_of_traffic(const observation& o) {
  const std::size_t bytes = o.is_active() ? o.ranks() * o.map.message_bytes(o.scheme.model->bits) : 0;
  for (std::size_t t = 0; t < o.history.size(); ++t)
    for (const exchange_record& r : o.history[t]) {
      const auto is = [&r](slamb::collective kind, std::uint64_t rounds, std::uint64_t payload) {
        return r.traffic[kind].rounds == rounds && r.traffic[kind].payload_bytes == payload;
      };
      const std::uint64_t first = o.is_active() ? 1 : 0, second = r.done || o.scheme.is_finished_always ? first : 0;
      const std::uint64_t third = o.map.dense_elements > 0 ? second : 0;
      if (r.declared_bytes != bytes) return fault_at("the layout declares other bytes", t, 0);
      if (!is(slamb::collective::all_to_all, first, first * bytes)) return fault_at("all_to_all", t, 0);
      if (!is(slamb::collective::all_gather, second, second * bytes)) return fault_at("all_gather", t, 0);
      if (!is(slamb::collective::all_reduce, third, third * 4 * o.map.dense_elements))
        return fault_at("all_reduce", t, 0);
      if (!is(slamb::collective::broadcast, 0, 0)) return fault_at("broadcast", t, 0);
    }
  return {};
}

/// Elements that take no part must have no result and no errors. Not checked on a single rank that does not encode.
inline std::string fault_of_masks(const observation& o) {
  for (std::size_t t = 0; t < o.history.size(); ++t) {
    if (!o.is_done(t) || !o.is_active()) continue;
    for (std::size_t j = 0; j < o.elements(); ++j) {
      const bool whole = !o.is_compressed(j);
      if (!whole && o.takes_part(j)) continue;
      if (!whole && o.result(t, j) != 0.0) return fault_at("a result of what takes no part", t, j);
      if (!whole && o.server_error(t + 1, j) != 0.0) return fault_at("a server error of what takes no part", t, j);
      for (std::size_t rank = 0; rank < o.ranks(); ++rank)
        if (o.worker_error(t + 1, rank, j) != 0.0) return fault_at("a worker error of what takes no part", t, j);
    }
  }
  return {};
}

/// An exchange may write only results, errors and the buffer. A skipped exchange must not write results or errors either.
inline std::string fault_of_writes(const observation& o) {
  for (std::size_t t = 0; t < o.history.size(); ++t)
    for (std::size_t rank = 0; rank < o.ranks(); ++rank) {
      const exchange_record& now = o.history[t][rank];
      if (!o.is_active() && !now.state.empty()) return fault_at("errors of one rank alone", t, 0);
      if (!now.intact) return fault_at("something else was written at rank " + std::to_string(rank), t, 0);
      const auto is_unwritten = [](float x) { return x == unwritten; };
      if (now.done && std::ranges::any_of(now.result, is_unwritten)) return fault_at("a result is missing", t, 0);
      if (now.done) continue;
      if (!std::ranges::all_of(now.result, is_unwritten)) return fault_at("a result of a skipped step", t, 0);
      const bool has_errors = std::ranges::any_of(now.state, [](std::byte b) { return b != std::byte{0}; });
      if (t == 0 ? has_errors : now.state != o.history[t - 1][rank].state)
        return fault_at("errors of a skipped step", t, 0);
    }
  return {};
}

/// Compares the reported ‖z‖ and ‖z − decoded‖ of each parameter group, and ‖e′‖, with the test's own.
inline std::string fault_of_measurement(const observation& o) {
  for (std::size_t t = 0; t < o.history.size(); ++t) {
    if (!o.is_done(t) || !o.is_active()) continue;
    for (std::size_t rank = 0; rank < o.ranks(); ++rank) {
      const exchange_record& now = o.history[t][rank];
      const std::vector<double> values = o.values_sent(t, rank);
      struct squares {
        double signal = 0.0, lost = 0.0, error = 0.0, rounding = 0.0;
      };
      std::vector<squares> groups(now.measured.size());
      for (std::size_t j = 0; j < o.elements(); ++j) {
        squares& g = groups.at(static_cast<std::size_t>(o.setup.tensors[o.map.places[j].tensor].options.group));
        const double error = o.worker_error(t + 1, rank, j);
        g.error += error * error;
        if (!o.takes_part(j)) continue;
        const double decoded = o.decoded(now.wire.sent, j), lost = values[j] - decoded;
        g.signal += values[j] * values[j];
        g.lost += lost * lost;
        g.rounding += 16.0 * float_rounding * float_rounding * (values[j] * values[j] + decoded * decoded);
      }
      const auto is = [](double said, double sum, double rounding) {
        return std::abs(said - std::sqrt(sum)) <= 1e-6 * std::sqrt(sum) + std::sqrt(rounding);
      };
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (!is(now.measured[g].signal, groups[g].signal, 0.0)) return fault_at("the norm of the signal", t, g);
        if (!is(now.measured[g].error, groups[g].lost, groups[g].rounding))
          return fault_at("the norm of the loss", t, g);
        if (o.scheme.keeps_worker_error && !is(now.worker_norm.at(g), groups[g].error, 0.0))
          return fault_at("the norm of the errors", t, g);
      }
    }
  }
  return {};
}

}  // namespace test_support
