// The time for comparing ranks.
#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "measurement.hpp"
#include "slamb/slamb.hpp"
#include "workbench.hpp"

namespace bench {
namespace {

result time_of_parameters(benchmark::State& state, workbench& at, unsigned threads) {
  using pass = slamb::detail::fingerprint_of_parameters;
  const slamb::detail::layout tensors(at.of_rank(0).tensors(), 0.0);
  const auto launcher = slamb::host_backend{.threads = threads}.make_launcher(tensors.elements());
  const std::vector<slamb::detail::tile> table = tensors.tile_table();
  const slamb::detail::view_in<> view{{.segments = tensors.segments().data(), .tiles = table.data()}};
  std::vector<double> sums(tensors.tile_count());
  double all = 0.0;
  const result r = time_of(state, at, slamb::detail::bytes_per_element<pass>(), [&] {
    launcher.launch(slamb::detail::run_pass{pass{}, view, {0, sums.size()}, sums.data()});
    launcher.launch(slamb::detail::add_up{sums.data(), sums.size(), &all});
  });
  // 24 random bits have a mean square of 2^48/3.
  const double expected = std::ldexp(1.0, 48) / 3.0 * static_cast<double>(tensors.elements());
  if (!(std::abs(all / expected - 1.0) < 0.01))
    throw std::runtime_error("the fingerprint differs too much from a fingerprint of random bits");
  return r;
}

// Of two ranks with equal headers: the sum is twice the header.
result time_of_header(benchmark::State& state, workbench& at) {
  constexpr std::size_t payload = 4096;
  slamb::detail::step_record record;
  std::array<float, slamb::detail::sum_header::floats + payload> sum{};
  const result r = time_of(state, at, 0.0, [&] {
    slamb::detail::begin_step{&record, 1.0}();
    slamb::detail::write_sum_header{&record, sum.data()}();
    for (std::size_t i = 0; i < slamb::detail::sum_header::floats; ++i) sum[i] *= 2.0F;
    slamb::detail::read_sum_header{&record, sum.data(), 2, payload}();
    slamb::detail::end_step{&record}();
  });
  if (record.agreement.diverged != 0 || record.taken == 0)
    throw std::runtime_error("ranks with the same fingerprint differ");
  return r;
}

}  // namespace

void register_comparisons(const shape_set& shapes, unsigned threads) {
  register_one("comparison/parameters", shapes, 1, threads,
               [threads](benchmark::State& state, workbench& at) { return time_of_parameters(state, at, threads); });
  register_one("comparison/header", shapes, 1, threads, time_of_header);
}

}  // namespace bench
