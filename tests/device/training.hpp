// Trains the same made-up tensors on the host or on the GPU, and returns the result.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <slamb/communicator/run_ranks.hpp>
#include <span>
#include <utility>
#include <vector>

#include "../support/generate.hpp"
#include "optimizers.hpp"
#include "poisoned.hpp"

namespace device_tests {

enum class side { host, device };

/// A training run on made-up gradients.
struct plan {
  test_support::tensor_shapes shapes;
  int ranks = 1;
  std::size_t steps = 1;
  std::size_t first_step = 0;  ///< index of the first gradient
  std::size_t shift = 0;       ///< floats by which all tensors are moved from an aligned address
  bool has_rows = false;  ///< some tensors have ten rows; in these every third row has no gradient, as the options say
  double learning_rate = 0.01;
  std::optional<std::size_t> nan_step{};  ///< the step at which rank 0's first gradient has a NaN
  std::span<const std::byte> state{};     ///< the state to resume from; empty: start new
  bool state_is_of_others = false;        ///< the state is loaded without its errors
  std::span<const float> parameters{};    ///< the parameters to start from; empty: made up
  slamb::allocator memory{};              ///< the optimizer's on the device; empty: the backend's own
  bool is_captured = false;               ///< as ingredients::is_captured
};

/// The result at rank 0. `same_on_all` is true if all ranks ended with the same parameters bit for bit.
struct outcome {
  std::vector<float> start;
  std::vector<float> parameters;
  std::vector<std::byte> state;
  std::uint64_t steps = 0;
  std::uint64_t skipped = 0;
  bool same_on_all = true;
};

inline std::size_t elements(const test_support::tensor_shapes& shapes) {
  std::size_t all = 0;
  for (const auto& shape : shapes) all += shape.size;
  return all;
}

inline std::vector<float> made_up(std::uint64_t seed, std::size_t count, double size) {
  test_support::random_source source(seed, 0xD0);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(size * source.bell());
  return values;
}

/// The gradient of a rank has a part common to all ranks, so that signs of sums seldom depend on rounding.
inline std::vector<float> gradient(const plan& given, std::size_t step, int rank) {
  const std::size_t n = elements(given.shapes);
  std::vector<float> values = made_up(1000 + step, n, 1.0);
  const std::vector<float> own = made_up(100000 + 64 * step + static_cast<std::size_t>(rank), n, 0.3);
  for (std::size_t i = 0; i < n; ++i) values[i] += own[i];
  if (given.nan_step == step && rank == 0 && n > 0) std::memset(values.data(), 0xFF, sizeof(float));
  return values;
}

/// [10] 1 for rows with a gradient, in a plan with rows.
inline constexpr std::array<std::uint8_t, 10> rows_with_gradients{1, 1, 0, 1, 1, 0, 1, 1, 0, 1};
inline bool has_rows(const plan& given, const test_support::tensor_shape& shape) {
  return given.has_rows && shape.dimensions > 1 && shape.size % 10 == 0 && shape.size > 10;
}

/// Sets the gradients of rows without one to 0.
inline void clear_rows(const plan& given, std::span<float> gradients) {
  std::size_t first = 0;
  for (const auto& shape : given.shapes) {
    for (std::size_t i = 0; has_rows(given, shape) && i < shape.size; ++i)
      if (rows_with_gradients[10 * i / shape.size] == 0) gradients[first + i] = 0.0F;
    first += shape.size;
  }
}

/// One rank's arrays, in host or device memory.
class arrays {
 public:
  arrays(side where, std::size_t count, std::size_t shift) : where_(where), count_(count), shift_(shift) {
    const std::size_t bytes = (count + shift) * sizeof(float);
    if (where == side::device)
      there_ = poisoned(bytes);
    else
      here_.assign(count + shift, 0.0F);
  }

  float* data() {
    return (where_ == side::device ? reinterpret_cast<float*>(there_.data().get()) : here_.data()) + shift_;
  }
  void write(std::span<const float> values, cudaStream_t on) {
    if (where_ == side::device)
      upload(values, data(), on);
    else
      std::copy(values.begin(), values.end(), data());
  }
  std::vector<float> read(cudaStream_t on) {
    if (where_ == side::device) return downloaded(static_cast<const float*>(data()), count_, on);
    return {data(), data() + count_};
  }

 private:
  side where_;
  std::size_t count_;
  std::size_t shift_;
  thrust::device_vector<std::byte> there_;
  std::vector<float> here_;
};

/// One rank of a run.
class rank_of_run {
 public:
  /// @param on  the stream on the device; null on the host
  rank_of_run(const recipe& of, side where, const plan& given, slamb::thread_communicator ranks, cudaStream_t on)
      : given_(given),
        on_(on),
        rank_(ranks.rank()),
        parameters_(where, elements(given.shapes), given.shift),
        gradients_(where, elements(given.shapes), given.shift) {
    start_ = given.parameters.empty() ? made_up(7, elements(given.shapes), 0.5)
                                      : std::vector<float>(given.parameters.begin(), given.parameters.end());
    parameters_.write(start_, on_);
    std::vector<slamb::parameter> tensors;
    std::size_t first = 0;
    for (const auto& shape : given.shapes) {
      tensors.push_back({.data = parameters_.data() + first,
                         .gradient = gradients_.data() + first,
                         .size = shape.size,
                         .dimensions = shape.dimensions});
      if (has_rows(given, shape)) tensors.back().options.rows = rows_with_gradients;
      first += shape.size;
    }
    ingredients from{tensors, std::move(ranks), on, given.memory, given.is_captured};
    own_ = where == side::device ? of.on_device(std::move(from)) : of.on_host(std::move(from));
    if (!given.state.empty()) own_->load_state(given.state, {.from_other_ranks = given.state_is_of_others});
  }

  void step(std::size_t number) {
    prepare(number);
    take();
  }

  /// Computes the gradients of a step, and takes the step. @{
  void prepare(std::size_t number) {
    std::vector<float> values = gradient(given_, given_.first_step + number, rank_);
    clear_rows(given_, values);
    gradients_.write(values, on_);
  }
  void take() { own_->step(given_.learning_rate); }
  void take(const slamb::device_learning_rates& rates) { own_->step(rates); }
  /// @}
  outcome result() { return {start_, parameters_.read(on_), own_->save_state(), own_->steps(), own_->skipped(), true}; }

 private:
  const plan given_;
  cudaStream_t on_;
  int rank_;
  arrays parameters_;
  arrays gradients_;
  std::vector<float> start_;
  std::unique_ptr<optimizer> own_;
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// Runs a plan with a thread and a stream for each rank.
inline outcome run(const recipe& of, side where, const plan& given) {
  std::vector<outcome> of_rank(static_cast<std::size_t>(given.ranks));
  slamb::run_ranks(given.ranks, [&](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    std::optional<stream> on;
    if (where == side::device) on.emplace();
    rank_of_run one(of, where, given, std::move(ranks), on ? static_cast<cudaStream_t>(*on) : nullptr);
    for (std::size_t i = 0; i < given.steps; ++i) one.step(i);
    of_rank[rank] = one.result();
  });
  for (const outcome& other : of_rank)
    of_rank[0].same_on_all = of_rank[0].same_on_all && same_bits(other.parameters, of_rank[0].parameters);
  return of_rank[0];
}

/// max |a − b| / max |moved|, where `moved` is the distance of b from its start; infinite if anything is NaN.
inline double difference(const outcome& a, const outcome& b) {
  double most = 0.0;
  double moved = 0.0;
  for (std::size_t i = 0; i < b.parameters.size(); ++i) {
    const double apart = std::abs(static_cast<double>(a.parameters[i]) - static_cast<double>(b.parameters[i]));
    if (!(apart <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
    most = std::max(most, apart);
    moved = std::max(moved, std::abs(static_cast<double>(b.parameters[i]) - static_cast<double>(b.start[i])));
  }
  return moved == 0.0 ? most : most / moved;
}

/// As above, but ignores up to one element in a thousand, because rounding may change its sign, code or choice.
inline bool nearly_same(const outcome& a, const outcome& b) {
  std::size_t apart = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a.parameters[i]) - static_cast<double>(b.parameters[i]));
    apart += difference <= 1e-5 * (1.0 + std::abs(static_cast<double>(b.parameters[i]))) ? 0 : 1;
  }
  return 1000 * apart <= a.parameters.size();
}

/// For a single step, after which differences are in the last bits.
inline bool is_same_step(const recipe& of, const outcome& a, const outcome& b) {
  return of.is_smooth ? difference(a, b) <= 1e-4 : nearly_same(a, b);
}

}  // namespace device_tests
