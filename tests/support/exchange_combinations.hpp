// Quantizers with error feedbacks, and random setups of the compressed exchange, for the properties of an exchange on any Backend.
#pragma once

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
#include "support/exchange_properties.hpp"

namespace test_support {

// ---------------------------------------------------------------------------------------- quantizers and feedbacks

struct quantizer_settings {
  bool per_tensor = false;
  std::uint32_t block = 128;
  bool zero_aware = false;
  std::uint64_t seed = 1;
  bool by_default = false;  ///< true: all settings are the quantizer's defaults
};

template <class Quantizer>
Quantizer quantizer_of(const quantizer_settings& s) {
  Quantizer q;
  if (s.by_default) return q;
  if constexpr (requires { q.scales; })
    q.scales = s.per_tensor ? slamb::scale_sharing::per_tensor : slamb::scale_sharing::fused;
  if constexpr (requires { q.block; }) q.block = s.block;
  if constexpr (requires { q.zero_aware; }) q.zero_aware = s.zero_aware;
  if constexpr (requires { q.seed; }) q.seed = s.seed;
  return q;
}

/// A quantizer with an error feedback.
struct combination {
  exchange_scheme (*scheme)(const quantizer_settings&);
  exchange_history (*run)(const exchange_setup&, const quantizer_settings&);

  observation observed(const exchange_setup& setup, const quantizer_settings& s) const {
    return {setup, scheme(s), run(setup, s)};
  }
};

template <class Quantizer, class ErrorFeedback, class Backend = eager_backend>
std::unique_ptr<any_exchange<Backend>> make_exchange(const quantizer_settings& s, bool on_single_rank) {
  return std::make_unique<exchange_of<Quantizer, ErrorFeedback, Backend>>(quantizer_of<Quantizer>(s), on_single_rank);
}
template <class Quantizer, class ErrorFeedback, class Backend = eager_backend>
exchange_history run_of(const exchange_setup& setup, const quantizer_settings& s) {
  return run_exchanges<Backend>(
      setup, [&] { return make_exchange<Quantizer, ErrorFeedback, Backend>(s, setup.on_single_rank); });
}

template <class Quantizer>
struct meaning;  // its name and model

template <class Quantizer, class ErrorFeedback, class Backend = eager_backend>
exchange_scheme scheme_of(const quantizer_settings& s) {
  using meant = meaning<Quantizer>;
  exchange_scheme made{.name = std::string(meant::name), .model = &meant::model, .scale = Quantizer::scale};
  if constexpr (requires(Quantizer q) { q.scales; })
    made.sharing = s.per_tensor ? shared_scales::per_tensor : shared_scales::fused;
  if constexpr (requires(Quantizer q) { q.block; }) {
    made.sharing = shared_scales::blocks;
    made.block = s.block;
  }
  if constexpr (std::is_same_v<Quantizer, archetype_octal>) made.scale_bytes = 1;
  if constexpr (requires(Quantizer q) { q.zero_aware; }) made.zero_aware = s.zero_aware;
  made.keeps_worker_error = ErrorFeedback::worker_state;
  made.keeps_server_error = ErrorFeedback::server_state;
  if constexpr (requires { typename ErrorFeedback::storage_type; })
    made.errors_are_narrow = std::is_same_v<typename ErrorFeedback::storage_type, slamb::bfloat16>;
  made.is_finished_always = !Backend::launcher_type::is_synchronous;
  made.name += made.keeps_server_error ? ", two_sided" : made.keeps_worker_error ? ", residual" : ", no errors";
  made.name += made.errors_are_narrow ? " as bfloat16" : "";
  return made;
}

template <class Backend, class Quantizer, class... ErrorFeedbacks>
void append(std::vector<combination>& all) {
  (all.push_back({&scheme_of<Quantizer, ErrorFeedbacks, Backend>, &run_of<Quantizer, ErrorFeedbacks, Backend>}), ...);
}

using l1_sign = slamb::basic_sign<slamb::segment_scale::l1>;

#define SLAMB_MEANING(quantizer, its_model)         \
  template <>                                       \
  struct meaning<quantizer> {                       \
    static constexpr const char* name = #quantizer; \
    static constexpr const auto& model = its_model; \
  };
SLAMB_MEANING(slamb::sign, code_models::sign)
SLAMB_MEANING(l1_sign, code_models::sign)
SLAMB_MEANING(slamb::four_levels, code_models::four_levels)
SLAMB_MEANING(slamb::int8, code_models::integer<8>)
SLAMB_MEANING(slamb::int4, code_models::integer<4>)
SLAMB_MEANING(slamb::natural, code_models::natural)
SLAMB_MEANING(slamb::bf16, code_models::bf16)
SLAMB_MEANING(slamb::fp16, code_models::fp16)
SLAMB_MEANING(archetype_ternary, code_models::archetype_ternary)
SLAMB_MEANING(archetype_levels, code_models::archetype_levels)
SLAMB_MEANING(archetype_blocks, code_models::archetype_blocks)
SLAMB_MEANING(archetype_octal, code_models::archetype_octal)
SLAMB_MEANING(archetype_floats, code_models::archetype_floats)
#undef SLAMB_MEANING

template <class Quantizer, class ErrorFeedback, class Backend = eager_backend>
observation observed(const exchange_setup& setup, const quantizer_settings& s = {}) {
  return combination{&scheme_of<Quantizer, ErrorFeedback, Backend>, &run_of<Quantizer, ErrorFeedback, Backend>}
      .observed(setup, s);
}

// ------------------------------------------------------------------------------------------------- random setups

/// A pool of numbers of several kinds, generated once.
class number_pool {
 public:
  enum kind { bell, heavy_tails, sparse, wide, constant, zero, kinds };

  number_pool() {
    random_source source(0x9001);
    for (std::vector<float>& numbers : all_) numbers.resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      const double x = source.bell();
      const double side = source.below(2) == 0 ? -1.0 : 1.0;
      all_[bell][i] = static_cast<float>(x);
      all_[heavy_tails][i] = static_cast<float>(x * x * x);
      all_[sparse][i] = source.below(8) == 0 ? static_cast<float>(x) : static_cast<float>(0.0 * side);
      all_[wide][i] = static_cast<float>(x * std::exp2(60.0 * source.uniform() - 40.0));
      all_[constant][i] = static_cast<float>(side);
    }
  }

  /// [n] from index `offset` on, times `scale`.
  std::vector<float> numbers(kind of, std::uint64_t offset, std::size_t n, float scale) const {
    std::vector<float> some(n);
    for (std::size_t i = 0; i < n; ++i) some[i] = all_[of][(offset + i) % size] * scale;
    return some;
  }

 private:
  static constexpr std::size_t size = 1U << 15U;
  std::array<std::vector<float>, kinds> all_;
};

/// A setup, and the rows that its tensors point to.
struct random_setup {
  exchange_setup exchanged;
  std::vector<std::vector<std::uint8_t>> rows;
  std::size_t refused = 0;  // the exchange with a number that is not finite, if there are elements

  random_setup() = default;
  random_setup(const random_setup&) = delete;
  random_setup& operator=(const random_setup&) = delete;
};

inline std::size_t random_size(random_source& source) {
  constexpr std::array<std::size_t, 16> small{0, 0, 1, 2, 15, 16, 17, 31, 127, 128, 129, 130, 255, 384, 1000, 1025};
  switch (source.below(36)) {
    case 0:
      return 8192;
    case 1:
      return 8193;
    case 2:
      return source.below(20001);
    default:
      return small[source.below(small.size())];
  }
}

/// [rows] of 0 and 1; their number divides `size`.
inline std::vector<std::uint8_t> random_rows(random_source& source, std::size_t size) {
  std::vector<std::size_t> counts{1, size};
  for (std::size_t count = 2; count < 200; ++count)
    if (size % count == 0) counts.push_back(count);
  std::vector<std::uint8_t> rows(counts[source.below(counts.size())]);
  const std::uint64_t ones = source.below(5);  // in fourths
  for (std::uint8_t& row : rows) row = source.below(4) < ones ? 1 : 0;
  return rows;
}

inline void fill_tensors(random_setup& made, random_source& source) {
  made.exchanged.tensors.resize(source.below(7));
  made.rows.resize(made.exchanged.tensors.size());
  const bool has_masks = source.below(3) == 0;
  const std::uint64_t whole_one_in = source.below(3) == 0 ? 2 : 12;
  for (std::size_t l = 0; l < made.rows.size(); ++l) {
    tensor_spec& tensor = made.exchanged.tensors[l];
    tensor.size = random_size(source);
    tensor.options.compress = source.below(whole_one_in) != 0;
    tensor.options.group = static_cast<int>(source.below(3));
    if (has_masks && tensor.size > 0 && source.below(2) == 0) made.rows[l] = random_rows(source, tensor.size);
    tensor.options.rows = made.rows[l];
  }
}

inline void fill_gradients(random_setup& made, random_source& source, std::size_t exchanges) {
  static const number_pool pool;
  const std::size_t n = total_size(made.exchanged.tensors);
  constexpr std::array scales{1e-12F, 1e-3F, 1.0F, 300.0F};
  const float scale = scales[source.below(scales.size())];
  const auto kind = static_cast<number_pool::kind>(source.below(number_pool::kinds));
  const bool same_on_ranks = source.below(6) == 0;
  for (std::size_t t = 0; t < exchanges; ++t) {
    const std::uint64_t offset = source.below(1U << 20U);
    auto& of_ranks = made.exchanged.gradients.emplace_back();
    for (int rank = 0; rank < made.exchanged.world; ++rank) {
      const std::uint64_t own = same_on_ranks ? 0 : source.below(1U << 15U);
      const auto its_kind = source.below(8) == 0 ? number_pool::zero : kind;
      of_ranks.push_back(pool.numbers(its_kind, offset + own, n, scale));
    }
  }
}

inline constexpr std::array not_finite{std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                       -std::numeric_limits<float>::infinity(), 1e30F};

/// Fills setup number `index`. A `world` of 0 means a single rank that does not encode.
inline void fill(random_setup& made, std::uint64_t index, int world) {
  random_source source(0xE8, index);
  made.exchanged.world = std::max(1, world);
  made.exchanged.on_single_rank = world != 0;
  fill_tensors(made, source);
  constexpr std::size_t exchanges = 4;
  fill_gradients(made, source, exchanges);
  const std::size_t n = total_size(made.exchanged.tensors);
  made.exchanged.variance.assign(n, 1.0F);
  for (float& v : made.exchanged.variance) v = source.below(3) == 0 ? 0.0F : 1e-3F;
  made.refused = source.below(exchanges);
  if (n == 0) return;
  auto& spoiled =
      made.exchanged.gradients[made.refused][source.below(static_cast<std::uint64_t>(made.exchanged.world))];
  spoiled[source.below(n)] = not_finite[source.below(not_finite.size())];
}

inline quantizer_settings random_settings(std::uint64_t index) {
  random_source source(0xE9, index);
  return {.per_tensor = source.below(2) == 0,
          .block = 16U << source.below(7),
          .zero_aware = source.below(3) == 0,
          .seed = source.next()};
}

/// Two compressed tensors and one that is not. One of the compressed ones has rows of 16, and the third row takes no part.
struct small_setup {
  std::vector<std::uint8_t> rows = std::vector<std::uint8_t>(25, 1);
  exchange_setup exchanged;

  explicit small_setup(int world, std::size_t exchanges = 3) {
    rows[2] = 0;
    exchanged = {.tensors = {{300}, {129}, {400}}, .world = world, .on_single_rank = true};
    exchanged.tensors[1].options.compress = false;
    exchanged.tensors[2].options.rows = rows;
    for (std::size_t t = 0; t < exchanges; ++t)
      exchanged.gradients.push_back(random_gradients(3, t, world, total_size(exchanged.tensors)));
  }
  small_setup(const small_setup&) = delete;
  small_setup& operator=(const small_setup&) = delete;
};

/// Every combination with a single rank that does not encode, and with 1 … 8 ranks that do, in one of several rounds.
inline void check_random_combinations(const std::vector<combination>& all, std::uint64_t round) {
  constexpr int worlds = 9;
  std::uint64_t index = round * worlds * all.size();
  for (int world = 0; world < worlds; ++world)
    for (const combination& c : all) {
      random_setup made;
      fill(made, ++index, world);
      const quantizer_settings settings = random_settings(index);
      made.exchanged.ways = 1 + static_cast<unsigned>(index % 2);
      const observation o = c.observed(made.exchanged, settings);
      CAPTURE(index);
      CAPTURE(o.scheme.name);
      CHECK(fault_of_equations(o) == "");
      CHECK(fault_of_conservation(o) == "");
      CHECK(fault_of_agreement(o) == "");
      CHECK(fault_of_traffic(o) == "");
      CHECK(fault_of_masks(o) == "");
      CHECK(fault_of_writes(o) == "");
      CHECK(fault_of_measurement(o) == "");
      for (std::size_t t = 0; t < o.history.size(); ++t)
        CHECK(o.is_done(t) == (t != made.refused || o.elements() == 0));
      if (round % 2 == 0) {
        made.exchanged.ways = 3 - made.exchanged.ways;
        CHECK(difference_of(c.run(made.exchanged, settings), o.history) == "");
      }
    }
}

/// A value that is not finite must stop all ranks and keep all errors, at any position.
template <class Backend>
void check_values_that_are_not_finite() {
  for (const int world : {1, 3})
    for (int rank = 0; rank < world; ++rank)
      for (const float bad : not_finite)
        for (const std::size_t j : {0U, 299U, 310U, 461U, 828U}) {  // 310 is not compressed, 461 takes no part
          small_setup made(world, 4);
          made.exchanged.gradients[2][static_cast<std::size_t>(rank)][j] = bad;
          const observation o = observed<slamb::sign, slamb::two_sided<>, Backend>(made.exchanged);
          CAPTURE(world);
          CAPTURE(rank);
          CAPTURE(bad);
          CAPTURE(j);
          for (std::size_t t = 0; t < 4; ++t) CHECK(o.is_done(t) == (t != 2));
          CHECK(fault_of_writes(o) == "");
          CHECK(fault_of_agreement(o) == "");
          CHECK(fault_of_equations(o) == "");
          CHECK(fault_of_traffic(o) == "");
        }
}

/// Any of sixty-four ranks must stop all of them.
template <class Backend>
void check_flags_of_many_ranks() {
  constexpr std::size_t stopping[] = {0, 1, 31, 32, 33, 62, 63};
  exchange_setup setup{.tensors = {{5}, {300}}, .world = 64, .ways = 2};
  for (const std::size_t rank : stopping) {
    auto& of_ranks = setup.gradients.emplace_back(random_gradients(4, rank, setup.world, total_size(setup.tensors)));
    of_ranks[rank][rank] = std::numeric_limits<float>::infinity();
    setup.gradients.push_back(random_gradients(5, rank, setup.world, total_size(setup.tensors)));
  }
  const observation o = observed<slamb::sign, slamb::two_sided<>, Backend>(setup);
  for (std::size_t t = 0; t < o.history.size(); ++t) CHECK(o.is_done(t) == (t % 2 == 1));
  CHECK(fault_of_writes(o) == "");
  CHECK(fault_of_agreement(o) == "");
  CHECK(fault_of_traffic(o) == "");
}

/// An error that would be infinite as bfloat16 must stop the exchange, and no other.
template <class Backend>
void check_errors_that_overflow() {
  exchange_setup setup{.tensors = {{100}}, .world = 2};
  setup.gradients.push_back(random_gradients(6, 0, 2, 100));
  setup.gradients[0][0][9] = 1.84e19F;
  CHECK_FALSE(observed<slamb::sign, slamb::two_sided<slamb::bfloat16>, Backend>(setup).is_done(0));
  CHECK(observed<slamb::sign, slamb::two_sided<>, Backend>(setup).is_done(0));
  setup.gradients[0][0][9] = 1.8e19F;
  CHECK(observed<slamb::sign, slamb::two_sided<slamb::bfloat16>, Backend>(setup).is_done(0));
}

}  // namespace test_support
