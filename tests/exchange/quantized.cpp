// Properties of the compressed exchange without an optimizer, for every quantizer, error feedback, number of ranks and model
// shape, in random combinations. Errors carry over from one exchange to the next.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/sign.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/error_feedback/residual.hpp"
#include "slamb/error_feedback/two_sided.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/exchange_combinations.hpp"
#include "support/exchange_properties.hpp"

namespace exchange_quantized_tests {
namespace {

using namespace test_support;  // nearly all of it is used
using slamb::bfloat16;
using slamb::no_error_feedback;
using slamb::residual;
using slamb::segment_scale;
using slamb::sign;
using slamb::two_sided;

/// Each quantizer with some of the feedbacks, and each feedback with all kinds of quantizers.
const std::vector<combination>& combinations() {
  static const std::vector<combination> all = [] {
    std::vector<combination> made;
    append<eager_backend, sign, no_error_feedback, residual<bfloat16>, two_sided<>, two_sided<bfloat16>>(made);
    append<eager_backend, l1_sign, no_error_feedback, residual<bfloat16>, two_sided<>>(made);
    append<eager_backend, slamb::four_levels, residual<>, two_sided<bfloat16>>(made);
    append<eager_backend, slamb::int8, no_error_feedback, residual<bfloat16>, two_sided<>>(made);
    append<eager_backend, slamb::int4, no_error_feedback, residual<bfloat16>, two_sided<>>(made);
    append<eager_backend, slamb::natural, no_error_feedback, residual<bfloat16>, two_sided<>>(made);
    append<eager_backend, slamb::bf16, no_error_feedback, residual<>, two_sided<>>(made);
    append<eager_backend, slamb::fp16, no_error_feedback, residual<bfloat16>, two_sided<>>(made);
    append<eager_backend, archetype_ternary, no_error_feedback, residual<>, two_sided<bfloat16>>(made);
    append<eager_backend, archetype_levels, no_error_feedback, residual<bfloat16>, two_sided<>>(made);
    append<eager_backend, archetype_blocks, no_error_feedback, residual<>, two_sided<>>(made);
    append<eager_backend, archetype_octal, no_error_feedback, residual<bfloat16>, two_sided<>>(made);
    append<eager_backend, archetype_floats, no_error_feedback, two_sided<>>(made);
    return made;
  }();
  return all;
}

/// ±2½ times the root mean square: the compression error is larger than the signal.
struct loud_sign : sign {
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    return sign::decode<Real>(code, s) * Real(2.5F);
  }
};

/// The fault that a property finds in a correct observation after one change of its history.
template <class Property, class Change>
std::string fault_with(observation o, Property property, Change change) {
  change(o.history);
  return property(o);
}

/// The largest errors of any exchange, relative to the largest signal of any rank: in L2 norm, and by element.
struct error_sizes {
  double worker_norm = 0.0, server_norm = 0.0;
  double worker_element = 0.0, server_element = 0.0;
};

double norm_of(const std::vector<float>& values) {
  double squares = 0.0;
  for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(squares);
}

/// @param make  makes an exchange with errors on both sides
error_sizes errors_of_many_exchanges(std::unique_ptr<any_exchange<>> (*make)(const quantizer_settings&, bool)) {
  exchange_setup setup{.tensors = {{1000}, {4096}, {300}}, .world = 4};
  const std::size_t n = total_size(setup.tensors);
  constexpr std::uint64_t exchanges = 30;
  double signal_norm = 0.0, signal_element = 0.0;
  for (std::uint64_t t = 0; t < exchanges; ++t) {
    setup.gradients.push_back(random_gradients(5, t, setup.world, n));
    const std::vector<float> lasting = random_parameters(5, n, 1.0);
    for (std::vector<float>& of_rank : setup.gradients.back()) {
      for (std::size_t j = 0; j < n; ++j) of_rank[j] += lasting[j];
      signal_norm = std::max(signal_norm, norm_of(of_rank));
      signal_element = std::max(signal_element, max_magnitude(std::span(of_rank)));
    }
  }
  error_sizes sizes;
  for (const auto& of_ranks : run_exchanges<eager_backend>(setup, [&] { return make({.by_default = true}, false); })) {
    double server_squares = 0.0;
    for (const exchange_record& r : of_ranks) {
      const double server = norm_of(r.server_error);
      server_squares += server * server;
      sizes.worker_norm = std::max(sizes.worker_norm, norm_of(r.worker_error) / signal_norm);
      sizes.worker_element = std::max(sizes.worker_element, max_magnitude(std::span(r.worker_error)) / signal_element);
      sizes.server_element = std::max(sizes.server_element, max_magnitude(std::span(r.server_error)) / signal_element);
    }
    sizes.server_norm = std::max(sizes.server_norm, std::sqrt(server_squares) / signal_norm);
  }
  return sizes;
}

/// The errors of stochastic rounding, in units of their standard deviation: in the senders' codes, and in the owners' codes of
/// means.
struct draws {
  std::vector<std::vector<std::vector<double>>> sent;  // [exchange][rank][n], 0 for exact values
  std::vector<std::vector<double>> said;               // [exchange][n]
};

/// The normalized error of x that was decoded as `decoded`.
double draw_of(const code_model& model, double x, double scale, double decoded) {
  const number_range levels = model.become(x, scale);
  const double up = (x - levels.low) / (levels.high - levels.low);  // the probability of the upper one
  if (!(up > 0.05 && up < 0.95)) return 0.0;
  return (decoded - x) / ((levels.high - levels.low) * std::sqrt(up * (1.0 - up)));
}

draws draws_of(const observation& o) {
  const code_model& model = *o.scheme.model;
  draws all;
  for (std::size_t t = 0; t < o.history.size(); ++t) {
    std::vector<double> mean(o.elements());
    auto& sent = all.sent.emplace_back(o.ranks(), std::vector<double>(o.elements()));
    for (std::size_t rank = 0; rank < o.ranks(); ++rank)
      for (std::size_t j = 0; j < o.elements(); ++j) {
        const std::vector<std::byte>& messages = o.history[t][rank].wire.sent;
        const double decoded = o.decoded(messages, j);
        mean[j] += decoded / static_cast<double>(o.ranks());
        sent[rank][j] = draw_of(model, o.signal(t, rank, j), o.scale_of(messages, j), decoded);
      }
    auto& said = all.said.emplace_back(o.elements());
    for (std::size_t j = 0; j < o.elements(); ++j) {
      const std::vector<std::byte>& messages = o.history[t][0].wire.said;
      said[j] = draw_of(model, mean[j], o.scale_of(messages, j), o.decoded(messages, j));
    }
  }
  return all;
}

/// The correlation of two kinds of draws, in units of its standard deviation for independent draws.
class correlation {
 public:
  void add(double a, double b) {
    if (a == 0.0 || b == 0.0) return;
    sum_ += a * b;
    count_ += 1.0;
  }
  double deviations() const { return sum_ / std::sqrt(count_); }
  double count() const { return count_; }

 private:
  double sum_ = 0.0, count_ = 0.0;
};

}  // namespace

TEST_CASE("quantized_exchange: random combinations of quantizers, feedbacks, ranks and tensors, first round") {
  check_random_combinations(combinations(), 0);
}
TEST_CASE("quantized_exchange: random combinations of quantizers, feedbacks, ranks and tensors, second round") {
  check_random_combinations(combinations(), 1);
}
TEST_CASE("quantized_exchange: random combinations of quantizers, feedbacks, ranks and tensors, third round") {
  check_random_combinations(combinations(), 2);
}
TEST_CASE("quantized_exchange: random combinations of quantizers, feedbacks, ranks and tensors, fourth round") {
  check_random_combinations(combinations(), 3);
}

TEST_CASE("quantized_exchange: a view without a buffer has null pointers, not offsets from null") {
  slamb::detail::two_phase_exchange<sign, slamb::detail::no_storage, slamb::detail::no_storage> codes{sign{}};
  const slamb::detail::wire_tensor tensor{1000, true};
  codes.lay_out({&tensor, 1}, 2, 0);
  REQUIRE(codes.buffer_bytes() > 0);
  const slamb::detail::wire_view without = codes.view({}, 2, 0);
  CHECK(without.sent == nullptr);
  CHECK(without.received == nullptr);
  CHECK(without.averaged == nullptr);
  CHECK(without.dense == nullptr);
  CHECK(without.mean == nullptr);
}

TEST_CASE("quantized_exchange: each property finds its violation") {
  const small_setup made(3);
  const observation o = observed<sign, two_sided<>>(made.exchanged);
  const auto every_property = [](const observation& changed) {
    for (const auto property : {fault_of_equations, fault_of_conservation, fault_of_agreement, fault_of_traffic,
                                fault_of_masks, fault_of_writes, fault_of_measurement})
      if (std::string fault = property(changed); !fault.empty()) return fault;
    return std::string();
  };
  CHECK(every_property(o) == "");
  constexpr std::size_t compressed = 7, whole = 310, masked = 300 + 129 + 2 * 16;
  REQUIRE(o.takes_part(compressed));
  REQUIRE_FALSE(o.is_compressed(whole));
  REQUIRE(o.left_out[masked] != 0);

  const auto change_result = [](std::size_t j) {
    return [j](exchange_history& h) {
      for (exchange_record& r : h[1]) r.result[j] += 1e-3F;
    };
  };
  const auto change_worker_error = [](exchange_history& h) { h[1][2].worker_error[compressed] *= 1.001F; };
  const auto change_server_error = [](exchange_history& h) { h[1][0].server_error[compressed] *= 1.001F; };

  CHECK(fault_with(o, fault_of_equations, change_result(compressed)) != "");
  CHECK(fault_with(o, fault_of_equations, change_result(whole)) != "");
  CHECK(fault_with(o, fault_of_equations, change_worker_error) != "");
  CHECK(fault_with(o, fault_of_equations, change_server_error) != "");
  const std::size_t code = o.map.first_code_byte(), scale = o.map.first_scale_byte + 1;
  CHECK(fault_with(o, fault_of_equations, [&](exchange_history& h) { h[1][1].wire.sent[code] ^= std::byte{1}; }) != "");
  CHECK(fault_with(o, fault_of_equations, [&](exchange_history& h) { h[1][1].wire.sent[scale] ^= std::byte{1}; }) !=
        "");
  CHECK(fault_with(o, fault_of_equations, [&](exchange_history& h) { h[1][0].wire.said[code] ^= std::byte{1}; }) != "");
  CHECK(fault_with(o, fault_of_equations, [&](exchange_history& h) { h[1][0].wire.said[scale] ^= std::byte{1}; }) !=
        "");

  CHECK(fault_with(o, fault_of_conservation, change_result(compressed)) != "");
  CHECK(fault_with(o, fault_of_conservation, change_worker_error) != "");
  CHECK(fault_with(o, fault_of_conservation, change_server_error) != "");

  CHECK(fault_with(o, fault_of_agreement, [](exchange_history& h) { h[2][1].result[compressed] = 0.0F; }) != "");
  CHECK(fault_with(o, fault_of_agreement, [](exchange_history& h) { h[2][1].done = false; }) != "");
  CHECK(fault_with(o, fault_of_agreement, [](exchange_history& h) { h[2][1].wire.said[9] ^= std::byte{1}; }) != "");

  CHECK(fault_with(o, fault_of_masks, change_result(masked)) != "");
  CHECK(fault_with(o, fault_of_masks, [](exchange_history& h) { h[0][1].worker_error[masked] = 1e-30F; }) != "");
  CHECK(fault_with(o, fault_of_masks, [](exchange_history& h) { h[0][1].worker_error[whole] = 1e-30F; }) != "");
  CHECK(fault_with(o, fault_of_masks, [&](exchange_history& h) {
          h[0][o.map.places[masked].owner].server_error[o.map.places[masked].code] = 1e-30F;
        }) != "");

  for (const auto kind : {slamb::collective::all_reduce, slamb::collective::all_gather, slamb::collective::all_to_all,
                          slamb::collective::broadcast}) {
    CHECK(fault_with(o, fault_of_traffic, [&](exchange_history& h) { ++h[1][1].traffic[kind].rounds; }) != "");
    CHECK(fault_with(o, fault_of_traffic, [&](exchange_history& h) { ++h[1][1].traffic[kind].payload_bytes; }) != "");
  }
  CHECK(fault_with(o, fault_of_traffic, [](exchange_history& h) { h[1][1].declared_bytes += 4; }) != "");

  CHECK(fault_with(o, fault_of_writes, [](exchange_history& h) { h[1][1].intact = false; }) != "");
  CHECK(fault_with(o, fault_of_writes, [](exchange_history& h) { h[1][1].result[whole] = unwritten; }) != "");
  CHECK(fault_with(o, fault_of_writes, [](exchange_history& h) { h[1][1].done = false; }) != "");

  CHECK(fault_with(o, fault_of_measurement, [](exchange_history& h) { h[1][1].measured[0].signal *= 1.00001; }) != "");
  CHECK(fault_with(o, fault_of_measurement, [](exchange_history& h) { h[1][1].measured[0].error *= 1.00001; }) != "");
  CHECK(fault_with(o, fault_of_measurement, [](exchange_history& h) { h[1][1].worker_norm[0] *= 1.00001; }) != "");

  CHECK(difference_of(o.history, o.history) == "");
  exchange_history other = o.history;
  other[2][2].state[0] ^= std::byte{1};
  CHECK(difference_of(o.history, other) != "");
  other = o.history;
  other[2][2].result[0] = -other[2][2].result[0];
  CHECK(difference_of(o.history, other) != "");
}

TEST_CASE("quantized_exchange: the equations of one quantizer fail for another") {
  const small_setup made(3);
  const auto fault_as = [&](auto change) {
    observation o = observed<sign, two_sided<>>(made.exchanged);
    change(o.scheme);
    return fault_of_equations(o);
  };
  CHECK(fault_as([](exchange_scheme&) {}) == "");
  CHECK(fault_as([](exchange_scheme& s) { s.scale = segment_scale::l1; }) != "");
  CHECK(fault_as([](exchange_scheme& s) { s.scale = segment_scale::max; }) != "");
  CHECK(fault_as([](exchange_scheme& s) { s.keeps_worker_error = false; }) != "");
  CHECK(fault_as([](exchange_scheme& s) { s.keeps_server_error = false; }) != "");
  exchange_setup of_many_tensors{.tensors = std::vector<tensor_spec>(40, {1}),
                                 .world = 2};  // its scales alone fill a message
  of_many_tensors.gradients.assign(1, random_gradients(3, 0, 2, 40));
  const observation by_tensor = observed<sign, two_sided<>>(of_many_tensors, {.per_tensor = true});
  CHECK(fault_of_equations(by_tensor) == "");
  CHECK(fault_of_traffic(by_tensor) == "");
  exchange_scheme fused = by_tensor.scheme;
  fused.sharing = shared_scales::fused;
  CHECK(fault_of_equations({of_many_tensors, fused, by_tensor.history}) != "");
  CHECK(fault_of_traffic({of_many_tensors, fused, by_tensor.history}) != "");
}

TEST_CASE("quantized_exchange: scales count active elements, and no padding") {
  // 3 elements of size 2 and 13 of padding; in another tensor 16 elements of size 5, half of which take no part.
  const std::vector<std::uint8_t> rows{0, 1};
  exchange_setup setup{.tensors = {{3}, {16}}, .world = 2};
  setup.tensors[1].options.rows = rows;
  std::vector<float> gradient(3, 2.0F);
  gradient.resize(19, -5.0F);
  setup.gradients.assign(1, {gradient, gradient});
  const auto result = [&](const quantizer_settings& s, std::size_t j) {
    return observed<sign, no_error_feedback>(setup, s).history[0][0].result[j];
  };
  CHECK(result({.per_tensor = true}, 0) == 2.0F);
  CHECK(result({.per_tensor = true}, 18) == -5.0F);
  CHECK(result({.per_tensor = true}, 3) == 0.0F);
  CHECK(result({}, 0) == doctest::Approx(std::sqrt((3.0 * 4.0 + 8.0 * 25.0) / 11.0)));
}

TEST_CASE("quantized_exchange: errors stay bounded over many exchanges") {
  // Norms: the error of a sign is a fixed part of the signal, so errors are bounded by a geometric sum.
  const auto norms_below = [](const error_sizes& s, double bound) {
    return s.worker_norm > 0.0 && s.worker_norm < bound && s.server_norm > 0.0 && s.server_norm < bound;
  };
  CHECK(norms_below(errors_of_many_exchanges(make_exchange<sign, two_sided<>>), 4.0));
  CHECK(norms_below(errors_of_many_exchanges(make_exchange<l1_sign, two_sided<>>), 4.0));
  CHECK(norms_below(errors_of_many_exchanges(make_exchange<slamb::natural, two_sided<>>),
                    0.65));  // at most an eighth of z²: 1/(√8 − 1)
  CHECK_FALSE(norms_below(errors_of_many_exchanges(make_exchange<loud_sign, two_sided<>>), 1000.0));
  CHECK_FALSE(
      norms_below(errors_of_many_exchanges(make_exchange<archetype_floats, two_sided<>>), 1000.0));  // it has no errors

  // Elements: the compression error is at most the part u of the largest value, so E ≤ u (X + E); for the mean u (X + E) + ….
  const auto elements_below = [](const error_sizes& s, double u) {
    const double bound = u / (1.0 - u);
    return s.worker_element > 0.0 && s.worker_element < bound && s.server_element > 0.0 &&
           s.server_element < bound * (1.0 + u) / (1.0 - u);
  };
  CHECK(elements_below(errors_of_many_exchanges(make_exchange<slamb::int8, two_sided<>>), 1.0 / 127.0));
  CHECK(elements_below(errors_of_many_exchanges(make_exchange<slamb::int4, two_sided<>>), 1.0 / 7.0));
  CHECK(elements_below(errors_of_many_exchanges(make_exchange<slamb::bf16, two_sided<>>), 0x1p-8));
  CHECK(elements_below(errors_of_many_exchanges(make_exchange<slamb::fp16, two_sided<>>), 0x1p-11));
  CHECK_FALSE(elements_below(errors_of_many_exchanges(make_exchange<slamb::int4, two_sided<>>), 1.0 / 127.0));
}

TEST_CASE("quantized_exchange: a value that is not finite stops all ranks and keeps all errors, at any position") {
  check_values_that_are_not_finite<eager_backend>();
}

TEST_CASE("quantized_exchange: any of sixty-four ranks stops all of them") {
  check_flags_of_many_ranks<eager_backend>();
}

TEST_CASE("quantized_exchange: an error that would overflow in bfloat16 stops the exchange") {
  check_errors_that_overflow<eager_backend>();
}

TEST_CASE("quantized_exchange: after its errors are cleared, an exchange equals the first") {
  const small_setup made(3, 2);
  std::array<std::vector<float>, 4> results;  // two each, before and after
  slamb::run_ranks(3, [&](slamb::thread_communicator communicator) {
    const auto number = static_cast<std::size_t>(communicator.rank());
    exchanging_rank<> rank(made.exchanged, make_exchange<sign, two_sided<>>({}, true), std::move(communicator));
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (i == 2) rank.clear_errors();
      const exchange_record now = rank.exchange(made.exchanged.gradients[i % 2][number]);
      if (number == 0) results[i] = now.result;
    }
  });
  CHECK(same_bits(results[2], results[0]));
  CHECK(same_bits(results[3], results[1]));
  CHECK_FALSE(same_bits(results[1], observed<sign, no_error_feedback>(made.exchanged).history[1][0].result));
}

TEST_CASE("quantized_exchange: elements that are no longer active have no error") {
  small_setup made(2, 4);
  const std::size_t n = total_size(made.exchanged.tensors);
  std::array<std::vector<float>, 2> variances{std::vector<float>(n, 1.0F), std::vector<float>(n, 1.0F)};
  for (std::size_t j = 0; j < n; ++j) variances[j % 2][j] = j % 6 < 2 ? 0.0F : 1.0F;
  exchange_history history(4, std::vector<exchange_record>(2));
  made.exchanged.variance = variances[0];
  const quantizer_settings settings{.zero_aware = true};
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const auto number = static_cast<std::size_t>(communicator.rank());
    exchanging_rank<> rank(made.exchanged, make_exchange<sign, two_sided<>>(settings, true), std::move(communicator));
    for (std::size_t t = 0; t < history.size(); ++t) {
      if (t > 0) rank.change_variance(variances[t % 2]);
      history[t][number] = rank.exchange(made.exchanged.gradients[t][number]);
    }
  });
  for (std::size_t t = 0; t < history.size(); ++t) {  // each alone, after the earlier ones
    made.exchanged.variance = variances[t % 2];
    observation o(made.exchanged, scheme_of<sign, two_sided<>>(settings), history);
    for (std::size_t other = 0; other < history.size(); ++other)
      if (other != t)
        for (exchange_record& r : o.history[other]) r.done = false;
    CHECK(fault_of_equations(o) == "");
    CHECK(fault_of_conservation(o) == "");
    CHECK(fault_of_masks(o) == "");
    made.exchanged.variance = variances[1 - t % 2];
    observation wrong(made.exchanged, o.scheme, o.history);
    CHECK(fault_of_masks(wrong) != "");
  }
}

TEST_CASE("quantized_exchange: as many collectives for 398 tensors as for one") {
  for (const std::size_t tensors : {1U, 7U, 398U})
    for (const bool with_whole : {false, true}) {
      exchange_setup setup{.tensors = model(tensors, {37}), .world = 2};
      if (with_whole) setup.tensors.resize(tensors + 5, {11, 1, {.compress = false}});
      setup.gradients.push_back(random_gradients(1, 1, 2, total_size(setup.tensors)));
      for (const bool per_tensor : {false, true}) {
        const observation o = observed<sign, two_sided<>>(setup, {.per_tensor = per_tensor});
        CHECK(o.history[0][1].traffic.total().rounds == (with_whole ? 3 : 2));
        CHECK(fault_of_traffic(o) == "");
      }
    }
}

TEST_CASE("quantized_exchange: the rig finds a byte that is written outside") {
  slamb::run_ranks(1, [](slamb::thread_communicator communicator) {
    small_setup made(1);
    exchanging_rank<> rank(made.exchanged, make_exchange<sign, two_sided<>>({}, true), std::move(communicator));
    CHECK(rank.is_intact());
    std::vector<std::byte*> guarded{rank.raw_buffer().data() - 1, rank.raw_buffer().data() + rank.raw_buffer().size(),
                                    rank.raw_memory().data() - 1, rank.raw_memory().data() + rank.raw_memory().size()};
    for (const std::span<std::byte> guard : rank.raw_guards())
      guarded.insert(guarded.end(), {&guard.front(), &guard.back()});
    REQUIRE(guarded.size() > 6);
    for (std::byte* const byte : guarded) {
      *byte ^= std::byte{1};
      CHECK_FALSE(rank.is_intact());
      *byte ^= std::byte{1};
      CHECK(rank.is_intact());
    }
  });
}

TEST_CASE("quantized_exchange: draws differ by rank, phase, exchange, chunk and element") {
  constexpr std::size_t exchanges = 60, n = 700;
  exchange_setup setup{.tensors = {{n}}, .world = 3};
  const std::vector<float> always = random_gradient(8, 0, 0, n);  // equal for all, so that only draws differ
  setup.gradients.assign(exchanges, std::vector<std::vector<float>>(3, always));
  const observation o = observed<slamb::int4, no_error_feedback>(setup);
  const draws all = draws_of(o);
  const std::size_t chunk = wire_map::chunk_length(n, o.ranks());
  correlation mean, itself, ranks, phases, in_time, neighbours, chunks;
  for (std::size_t t = 0; t < exchanges; ++t)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t rank = 0; rank < 3; ++rank) {
        const double draw = all.sent[t][rank][j];
        mean.add(draw, 1.0);
        itself.add(draw, draw);
        ranks.add(draw, all.sent[t][(rank + 1) % 3][j]);
        if (rank == o.map.places[j].owner) phases.add(draw, all.said[t][j]);
        if (t > 0) in_time.add(draw, all.sent[t - 1][rank][j]);
        if (j > 0) neighbours.add(draw, all.sent[t][rank][j - 1]);
        if (j >= chunk) chunks.add(draw, all.sent[t][rank][j - chunk]);
      }
  for (const correlation& c : {mean, ranks, phases, in_time, neighbours, chunks}) {
    CHECK(c.count() > 10000.0);
    CHECK(std::abs(c.deviations()) < 4.5);
  }
  CHECK(itself.deviations() > 100.0);
}

}  // namespace exchange_quantized_tests
