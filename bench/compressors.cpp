// The time of a compressor for gradients, by the passes with which an exchange encodes and decodes.
#include "compressors.hpp"

#include <benchmark/benchmark.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "huge_array.hpp"
#include "measurement.hpp"
#include "slamb/slamb.hpp"
#include "workbench.hpp"

namespace bench {
namespace {

// Encodes the gradient, and writes the decoded values to the parameters.
struct gradient_to_parameter : slamb::detail::pass_without_constants {
  using signal_reads = slamb::detail::arrays<slamb::detail::array::gradient>;
  using reads = slamb::detail::arrays<>;
  using writes = slamb::detail::arrays<slamb::detail::array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    return e.gradient;
  }
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.parameter = e.exchanged;
  }
};

using launcher_type = slamb::host_backend::launcher_type;

// The message that one rank sends, and the arrays for writing and reading it.
template <slamb::quantizer Quantizer>
class coding {
 public:
  coding(const Quantizer& quantizer, const model& tensors, unsigned threads)
      : quantizer_(quantizer),
        tensors_(tensors.tensors(), 0.0),
        table_(tensors_.tile_table()),
        launcher_(slamb::host_backend{.threads = threads}.make_launcher(tensors_.elements())),
        wire_(wire_tensors(tensors_), 1, slamb::detail::granularity_of(quantizer), Quantizer::bits_per_element),
        message_(wire_.message_bytes() / sizeof(float) + 1),
        statistic_(tensors_.tile_count()) {
    message_.fill(0.0F, 0, threads);
    for (const slamb::detail::wire_piece& piece : wire_.pieces())
      for (std::uint64_t done = 0; done < piece.count; done += slamb::detail::layout::tile_size) {
        const std::uint64_t scale = piece.scale + (wire_.scales().block == 0 ? 0 : done / wire_.scales().block);
        placed_.push_back({piece.code + done, scale, piece.owner});
      }
    for (const slamb::detail::tile& tile : table_) counts_.push_back(tile.count);
    scales_.assign_sent(wire_);
  }

  void encode() {
    ++round_;
    std::uint32_t not_finite = 0;
    constexpr auto work = slamb::detail::encode_mode::statistics_and_codes;
    launcher_.launch(slamb::detail::send_signal<work, no_storage, gradient_to_parameter, Quantizer>{
        {}, quantizer_, model_view(), view(), all_tiles(), statistic_.data(), &not_finite});
    if (not_finite != 0) throw std::runtime_error("a gradient is not finite");
    launcher_.launch(slamb::detail::finish_scales<Quantizer>{scales(), statistic_.data(), counts_.data(), view().sent});
  }

  void decode() {
    launcher_.launch(slamb::detail::receive_mean<no_storage, no_storage, gradient_to_parameter, Quantizer>{
        {}, quantizer_, model_view(), view(), all_tiles()});
  }

  // Decoded values must be near the gradient. Half a bit per element gives only the sign.
  void check() const {
    const slamb::detail::segment& first = tensors_.segments()[0];
    const auto* const gradient = static_cast<const float*>(first.gradient);
    const auto* const decoded = static_cast<const float*>(first.data);
    double signal = 0.0, lost = 0.0;
    for (std::uint64_t i = 0; i < first.size; ++i) {
      const auto x = static_cast<double>(gradient[i]);
      const double difference = x - static_cast<double>(decoded[i]);
      signal += x * x;
      lost += difference * difference;
    }
    if (!(std::sqrt(lost / signal) < 0.6))
      throw std::runtime_error("the decoded values differ too much from the encoded values");
  }

 private:
  using no_storage = slamb::detail::no_storage;
  static_assert(!slamb::detail::shared_scales<Quantizer>::are_known_first,
                "these benchmarks encode in one pass, so the quantizer must not need the scale of a tensor first");

  static std::vector<slamb::detail::wire_tensor> wire_tensors(const slamb::detail::layout& tensors) {
    std::vector<slamb::detail::wire_tensor> all;
    for (const slamb::detail::segment& s : tensors.segments()) all.push_back({s.size, true});
    return all;
  }

  slamb::detail::scale_table scales() const {
    return {scales_.groups.data(), scales_.tiles.data(), scales_.places.data(), scales_.groups.size()};
  }
  slamb::detail::tile_range all_tiles() const { return {0, placed_.size()}; }
  slamb::detail::view_in<> model_view() const {
    return {{.segments = std::as_const(tensors_).segments().data(), .tiles = table_.data()}};
  }
  slamb::detail::wire_view view() const {
    auto* const message = reinterpret_cast<std::byte*>(message_.data());
    return {.tiles = placed_.data(),
            .sent = message,
            .received = message,
            .codes = wire_.codes(),
            .message_bytes = wire_.message_bytes(),
            .codes_at = wire_.codes_at(),
            .random_stream = round_};
  }

  Quantizer quantizer_;
  slamb::detail::layout tensors_;
  std::vector<slamb::detail::tile> table_;
  launcher_type launcher_;
  slamb::detail::wire_layout wire_;
  huge_array message_;
  std::vector<double> statistic_;                 // [tiles]
  std::vector<slamb::detail::wire_tile> placed_;  // [tiles]
  std::vector<std::uint64_t> counts_;             // [tiles]
  slamb::detail::host_scale_table scales_;
  std::uint64_t round_ = 0;
};

template <slamb::quantizer Quantizer>
void register_quantizer(const std::string& name, const shape_set& shapes, unsigned threads,
                        const Quantizer& quantizer) {
  const double bytes = sizeof(float) + slamb::detail::code_bytes(quantizer);
  register_one("compressor/" + name + "/encode", shapes, 1, threads, [=](benchmark::State& state, workbench& at) {
    coding<Quantizer> at_work(quantizer, at.of_rank(0), threads);
    const result r = time_of(state, at, bytes, [&] { at_work.encode(); });
    at_work.decode();
    at_work.check();
    return r;
  });
  register_one("compressor/" + name + "/decode", shapes, 1, threads, [=](benchmark::State& state, workbench& at) {
    coding<Quantizer> at_work(quantizer, at.of_rank(0), threads);
    at_work.encode();
    const result r = time_of(state, at, bytes, [&] { at_work.decode(); });
    at_work.check();
    return r;
  });
}

result time_of_choice(benchmark::State& state, workbench& at, const slamb::top_k& compressor, unsigned threads) {
  const slamb::detail::layout tensors(at.of_rank(0).tensors(), 0.0);
  const launcher_type launcher = slamb::host_backend{.threads = threads}.make_launcher(tensors.elements());
  const std::vector<slamb::detail::tile> table = tensors.tile_table();
  const slamb::detail::view_in<> view{{.segments = tensors.segments().data(), .tiles = table.data()}};
  std::vector<std::uint16_t> bits(tensors.state_elements() / 16);
  const result r = time_of(state, at, sizeof(float) + 1.0 / 8.0, [&] {
    std::uint32_t not_finite = 0;
    launcher.launch(slamb::detail::choose_elements{
        gradient_to_parameter{}, compressor, view, {0, tensors.tile_count()}, bits.data(), &not_finite});
    if (not_finite != 0) throw std::runtime_error("a gradient is not finite");
  });
  std::uint64_t chosen = 0, wanted = 0;
  for (const std::uint16_t group : bits) chosen += static_cast<std::uint64_t>(std::popcount(group));
  for (const slamb::detail::tile& tile : table) wanted += compressor.chosen_of(tile.count);
  if (chosen != wanted) throw std::runtime_error("the number of chosen elements is wrong");
  return r;
}

}  // namespace

void register_compressors(const shape_set& shapes, unsigned threads) {
  register_quantizer("sign", shapes, threads, slamb::sign{});
  register_quantizer("four_levels", shapes, threads, slamb::four_levels{});
  register_quantizer("int8", shapes, threads, slamb::int8{});
  register_quantizer("int4", shapes, threads, slamb::int4{});
  register_quantizer("natural", shapes, threads, slamb::natural{});
  register_quantizer("bf16", shapes, threads, slamb::bf16{});
  register_quantizer("fp16", shapes, threads, slamb::fp16{});
  register_one("compressor/top_k/choose", shapes, 1, threads, [threads](benchmark::State& state, workbench& at) {
    return time_of_choice(state, at, slamb::top_k{.k = 0.1}, threads);
  });
}

}  // namespace bench
