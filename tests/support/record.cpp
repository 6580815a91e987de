// The oracles that run on traces, compiled once.
#include "support/record.hpp"

#include <utility>

#include "support/one_bit_record.hpp"

namespace test_support {

namespace detail {

std::vector<oracle::vector> gradients_of(const trace& given, std::size_t step) {
  std::vector<oracle::vector> gradients;
  for (int rank = 0; rank < given.settings.world; ++rank) gradients.push_back(widened(given.gradient(step, rank)));
  return gradients;
}

}  // namespace detail

std::vector<double> run_oracle(const trace& given, const oracle::settings& how) {
  oracle::adam_family run(oracle_tensors(given.settings), widened(given.start), how);
  std::vector<double> reached;
  for (std::size_t step = 0; step < given.settings.steps; ++step) {
    run.step(given.settings.number("lr"), detail::gradients_of(given, step));
    for (int rank = 0; rank < given.settings.world; ++rank)
      reached.insert(reached.end(), run.parameters().begin(), run.parameters().end());
  }
  return reached;
}

std::vector<double> run_oracle(const trace& given, const oracle::slamb_settings& how) {
  oracle::slamb run(oracle_tensors(given.settings), widened(given.start), given.settings.world, how);
  std::vector<double> reached;
  for (std::size_t step = 0; step < given.settings.steps; ++step) {
    const auto mask = given.mask(step);
    run.step(given.settings.number("lr"), detail::gradients_of(given, step), {mask.begin(), mask.end()});
    for (int rank = 0; rank < given.settings.world; ++rank)
      reached.insert(reached.end(), run.parameters(rank).begin(), run.parameters(rank).end());
  }
  return reached;
}

void record_trace(const std::filesystem::path& folder, const std::string& text, std::uint64_t seed, double k) {
  write_file(folder / "trace.txt", text);
  trace made;
  made.settings = read_trace_settings(folder / "trace.txt");
  const std::size_t n = made.settings.elements;
  made.start = random_parameters(seed, n);
  for (std::size_t step = 0; step < made.settings.steps; ++step) {
    for (int rank = 0; rank < made.settings.world; ++rank) {
      const auto gradient = random_gradient(seed, step, rank, n);
      made.gradients.insert(made.gradients.end(), gradient.begin(), gradient.end());
    }
    const auto mask = random_mask(seed, step, n, k);
    made.masks.insert(made.masks.end(), mask.begin(), mask.end());
  }
  const std::vector<double> reached = made.settings.algorithm == "slamb"
                                          ? run_oracle(made, oracle_slamb_settings(made.settings))
                                          : run_oracle(made, oracle_settings(made.settings));
  made.expected.assign(reached.size(), 0.0F);
  for (std::size_t i = 0; i < reached.size(); ++i) made.expected[i] = static_cast<float>(reached[i]);

  write_floats(folder / "params0.f32", made.start);
  write_floats(folder / "grads.f32", made.gradients);
  write_floats(folder / "params.f32", made.expected);
  if (made.settings.algorithm == "slamb") {
    const std::vector<char> bytes(made.masks.begin(), made.masks.end());
    write_file(folder / "masks.u8", bytes);
  }
}

namespace detail {

template <class Oracle>
std::vector<double> run_over_trace(const trace& given, Oracle run) {
  const std::vector<double> rates(given.settings.shapes.size(), given.settings.number("lr"));
  std::vector<double> reached;
  for (std::size_t step = 0; step < given.settings.steps; ++step) {
    run.step(rates, gradients_of(given, step));
    for (int rank = 0; rank < given.settings.world; ++rank)
      reached.insert(reached.end(), run.parameters(rank).begin(), run.parameters(rank).end());
  }
  return reached;
}

template <class Oracle>
void make_gradients(trace& made, std::uint64_t seed, Oracle run) {
  const std::vector<double> rates(made.settings.shapes.size(), made.settings.number("lr"));
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < made.settings.shapes.size(); ++i) sizes.push_back(made.settings.size(i));
  settling settled(std::move(run));
  for (std::size_t step = 0; step < made.settings.steps; ++step) {
    auto gradients = structured_gradients(seed, step, made.settings.world, sizes);
    settled.step(rates, gradients);
    for (const auto& of_rank : gradients) made.gradients.insert(made.gradients.end(), of_rank.begin(), of_rank.end());
    for (int rank = 0; rank < made.settings.world; ++rank)
      for (const double x : settled.run().parameters(rank)) made.expected.push_back(static_cast<float>(x));
  }
}

template <class Oracle, class Settings>
Oracle oracle_at_start(const trace& given, const Settings& how) {
  return Oracle(oracle_tensors(given.settings), widened(given.start), given.settings.world, how);
}

}  // namespace detail

std::vector<double> run_oracle(const trace& given, const oracle::one_bit_settings& how) {
  return detail::run_over_trace(given, detail::oracle_at_start<oracle::one_bit>(given, how));
}

std::vector<double> run_oracle(const trace& given, const oracle::zero_one_settings& how) {
  return detail::run_over_trace(given, detail::oracle_at_start<oracle::zero_one_adam>(given, how));
}

void record_one_bit_trace(const std::filesystem::path& folder, const std::string& text, std::uint64_t seed) {
  write_file(folder / "trace.txt", text);
  trace made;
  made.settings = read_trace_settings(folder / "trace.txt");
  made.start = random_parameters(seed, made.settings.elements);
  if (made.settings.algorithm == "zero_one_adam") {
    const auto how = oracle_zero_one_settings(made.settings);
    detail::make_gradients(made, seed, detail::oracle_at_start<oracle::zero_one_adam>(made, how));
  } else {
    const auto how = oracle_one_bit_settings(made.settings);
    detail::make_gradients(made, seed, detail::oracle_at_start<oracle::one_bit>(made, how));
  }
  write_floats(folder / "params0.f32", made.start);
  write_floats(folder / "grads.f32", made.gradients);
  write_floats(folder / "params.f32", made.expected);
}

}  // namespace test_support
