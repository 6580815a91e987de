// Conservation: the compression error of an exchange is in the kept errors, and so in the next exchange. For every quantizer
// with its own decode, element by element:
//
//   result = mean of (x_i + e_i − e_i′) + s − s′
//
// A wrapper of each quantizer sends numbers as they are and decodes them as the quantizer would. So a communicator that listens
// sees z_i = x_i + e_i and y = mean of decode(z_i) + s. The optimizer is 0/1 Adam with v = 0, ε = 1, β1 = λ = 0 and γ = 1, so
// that p ← p − result.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace properties_conservation_tests {
namespace {

using slamb::thread_communicator;
using slamb::word_of;
using test_support::experiment;
using test_support::model;
using test_support::replica;

using message = std::vector<std::byte>;

/// The messages that one rank sent, by exchange.
struct exchange_record {
  std::vector<message> signals;  // [exchange] to all ranks
  std::vector<message> means;    // [exchange]
};

/// Copies the messages of both phases.
class listening_communicator {
 public:
  listening_communicator(thread_communicator base, std::shared_ptr<exchange_record> record)
      : base_(std::move(base)), record_(std::move(record)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) { base_.all_reduce_sum(values, stream); }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    record_->signals.emplace_back(send.begin(), send.end());
    base_.all_to_all(send, receive, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    record_->means.emplace_back(mine.begin(), mine.end());
    base_.all_gather(mine, all, stream);
  }

 private:
  thread_communicator base_;
  std::shared_ptr<exchange_record> record_;
};

/// Sends numbers as they are, and decodes them as Q does. Where Q rounds at random, it rounds to nearest.
template <class Q>
struct transparent : Q {
  static constexpr int bits_per_element = 32;

  template <class Real>
  word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    using slamb::as_word;
    return as_word(x);
  }
  template <class Real>
  Real decode(const word_of<Real>& code, const Real& scale) const {
    using slamb::as_real;
    return Q::template decode<Real>(Q::encode(Real(as_real(code)), scale, Real(0.5F)), scale);
  }
};

/// A schedule without refreshes, so the variance stays 0.
struct no_refresh {
  struct state_type {};
  bool refreshes(const state_type& /*state*/, std::uint64_t /*tau*/) const { return false; }
  void advance(state_type& /*state*/, std::uint64_t /*tau*/) const {}
  bool ends_after(std::uint64_t /*tau*/) const { return false; }
};

constexpr double tolerance = 2e-6;  // a few roundings of numbers around 4

/// The place of an element on the wire.
struct place {
  std::size_t owner;
  std::size_t code;   // in the owner's message, bytes
  std::size_t scale;  // bytes
};

template <class Q>
std::vector<place> places_of(const model& tensors, int world, const Q& quantizer, std::size_t& message_bytes) {
  std::vector<slamb::detail::wire_tensor> sizes;
  for (const auto& l : tensors) sizes.push_back({l.size, true});
  const slamb::detail::scale_granularity groups = slamb::detail::granularity_of(quantizer);
  const slamb::detail::wire_layout wire(sizes, world, groups, 32);
  message_bytes = static_cast<std::size_t>(wire.message_bytes());
  std::vector<place> places;
  for (const slamb::detail::wire_piece& piece : wire.pieces()) {
    for (std::uint64_t k = 0; k < piece.count; ++k) {
      const std::uint64_t block = groups.of == slamb::detail::scale_granularity::blocks ? k / groups.block : 0;
      places.push_back({piece.owner, static_cast<std::size_t>(wire.codes_at() + 4 * (piece.code + k)),
                        static_cast<std::size_t>(4 * (piece.scale + block))});
    }
  }
  return places;
}

float float_at(const message& bytes, std::size_t at) {
  float x = 0.0F;
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}

/// The largest differences between the observed values and the law.
struct deviations {
  double signal = 0.0;  ///< z_i − (x_i + e_i)
  double mean = 0.0;    ///< y − (mean of decode(z_i) + s)
  double result = 0.0;  ///< movement of parameters − decode(y)
  double lost = 0.0;    ///< z_i − decode(z_i): the compression error
};

/// @param worker, server_side  true: errors are kept there
template <class ErrorFeedback, class Q>
deviations find_deviations(const Q& plain, int world, bool worker = ErrorFeedback::worker_state,
                           bool server_side = ErrorFeedback::server_state) {
  using quantizer = transparent<Q>;
  using optimizer = slamb::zero_one_adam<quantizer, ErrorFeedback, no_refresh, listening_communicator>;
  const model tensors{{200}, {1}, {0}, {700}, {129}, {3}};
  const experiment e = test_support::make_experiment(tensors, static_cast<std::uint64_t>(150 + world), world, 5);
  const std::size_t n = e.start.size();
  std::vector<exchange_record> records(static_cast<std::size_t>(world));
  test_support::trajectory reached(e.steps());
  for (auto& ranks : reached) ranks.resize(static_cast<std::size_t>(world));
  slamb::run_ranks(world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto record = std::make_shared<exchange_record>();
    replica mine(tensors, e.start);
    optimizer run(mine.parameters(),
                  {.beta1 = 0.0,
                   .epsilon = 1.0,
                   .weight_decay = 0.0,
                   .update_bound = std::numeric_limits<double>::infinity(),  // its variance is never refreshed
                   .compress_single_rank = true,
                   .compressor = {plain}},
                  listening_communicator(std::move(communicator), record), test_support::one_thread());
    *record = {};  // without the messages of the construction
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(1.0);
      reached[t][rank] = mine.values();
    }
    records[rank] = *record;
  });

  std::size_t bytes = 0;
  const std::vector<place> places = places_of(tensors, world, quantizer{plain}, bytes);
  REQUIRE(places.size() == n);
  const auto decoded = [&](float x, float scale) { return quantizer{plain}.decode(slamb::as_word(x), scale); };
  std::vector<std::vector<float>> error(static_cast<std::size_t>(world), std::vector<float>(n, 0.0F));
  std::vector<float> server(n, 0.0F);
  deviations found;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    for (std::size_t j = 0; j < n; ++j) {
      const place at = places[j];
      double mean = 0.0;
      for (std::size_t rank = 0; rank < records.size(); ++rank) {
        const message& all = records[rank].signals.at(t);
        const float z = float_at(all, at.owner * bytes + at.code);
        const float d = decoded(z, float_at(all, at.owner * bytes + at.scale));
        found.signal = std::max(found.signal, std::abs(double{z} - e.gradients[t][rank][j] - error[rank][j]));
        if (worker) error[rank][j] = z - d;
        found.lost = std::max(found.lost, std::abs(double{z} - d));
        mean += double{d} / world;
      }
      const message& sent = records[at.owner].means.at(t);
      const float y = float_at(sent, at.code);
      const float result = decoded(y, float_at(sent, at.scale));
      found.mean = std::max(found.mean, std::abs(y - mean - server[j]));
      if (server_side) server[j] = y - result;
      const float before = t == 0 ? e.start[j] : reached[t - 1][0][j];
      found.result = std::max(found.result, std::abs(double{before} - reached[t][0][j] - result));
    }
    CHECK(test_support::ranks_agree(reached, t));
  }
  return found;
}

template <class ErrorFeedback, class Q>
void check_conservation(const Q& quantizer, int world) {
  CAPTURE(world);
  const deviations found = find_deviations<ErrorFeedback>(quantizer, world);
  CHECK(found.lost > 1e-4);
  CHECK(found.signal <= tolerance);
  CHECK(found.mean <= tolerance);
  CHECK(found.result <= tolerance);
}

template <class Q>
void check_both_errors(const Q& quantizer) {
  for (const int world : {1, 2, 3, 5}) check_conservation<slamb::two_sided<>>(quantizer, world);
}

}  // namespace

// Each kind of scale with one feedback, and each feedback with one quantizer. exchange/quantized.cpp checks the sums of every
// quantizer, without an optimizer.
TEST_CASE("conservation: the loss of signs is in the errors") {
  for (const slamb::scale_sharing scales : {slamb::scale_sharing::fused, slamb::scale_sharing::per_tensor}) {
    check_both_errors(slamb::sign{.scales = scales});
    check_conservation<slamb::no_error_feedback>(slamb::sign{.scales = scales}, 3);
  }
}

TEST_CASE("conservation: the loss of integers is in the errors") {
  check_conservation<slamb::residual<>>(slamb::int4{}, 3);
  check_conservation<slamb::residual<>>(slamb::int4{.block = 16}, 3);
}

TEST_CASE("conservation: the loss of powers of two is in the errors") { check_both_errors(slamb::natural{}); }

TEST_CASE("conservation: the comparison can fail") {
  const slamb::sign quantizer{};
  CHECK(find_deviations<slamb::two_sided<>>(quantizer, 3, false, true).signal > 1e-2);
  CHECK(find_deviations<slamb::two_sided<>>(quantizer, 3, true, false).mean > 1e-2);
  CHECK(find_deviations<slamb::residual<>>(slamb::int4{}, 3, true, true).mean > 1e-2);
  CHECK(find_deviations<slamb::no_error_feedback>(quantizer, 3, true, false).signal > 1e-2);
}

}  // namespace properties_conservation_tests
