// Each combination of an optimizer and policies is a type, which takes the compiler about two seconds.
#include "optimizers.hpp"

#include <slamb/compressed_lamb.hpp>
#include <slamb/one_bit.hpp>
#include <slamb/slamb.hpp>

#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../pytorch/src/settings.hpp"

namespace many_ranks {

namespace {

using binding::settings;

/// An integer, a number, or else the text itself. "off" is ∞; "adam" is 0, Adam's own bound of updates.
settings::value value_of(const std::string& text) {
  const char* const end = text.data() + text.size();
  const auto is_all = [&](std::from_chars_result read) { return read.ec == std::errc() && read.ptr == end; };
  std::int64_t integer = 0;
  if (is_all(std::from_chars(text.data(), end, integer))) return integer;
  double number = 0.0;
  if (is_all(std::from_chars(text.data(), end, number))) return number;
  if (text == "off") return std::numeric_limits<double>::infinity();
  if (text == "adam") return 0.0;
  return text;
}

std::map<std::string, settings::value> read_options(const std::string& text) {
  std::map<std::string, settings::value> found;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw std::invalid_argument("'" + word + "' is not name=value, such as warm_up_steps=20");
    if (!found.emplace(word.substr(0, equals), value_of(word.substr(equals + 1))).second)
      throw std::invalid_argument("'" + word + "': this option is given twice");
  }
  return found;
}

/// Reads the options that all optimizers have. All others must have been read.
template <class Optimizer>
optimizer_maker maker_with(typename Optimizer::options_type options, settings& s) {
  s.take("beta1", options.beta1);
  s.take("beta2", options.beta2);
  s.take("eps", options.epsilon);
  s.take("max_gradient_norm", options.max_gradient_norm);
  s.take("compare_every", options.ranks.compare_every);
  if constexpr (requires { options.update_bound; }) s.take("update_bound", options.update_bound);
  s.require_all_taken();
  return [options](std::span<const slamb::parameter> parameters, slamb::thread_communicator ranks,
                   const rank_device& device) -> slamb::optimizer {
    rank_backend backend = device.backend_of(ranks.rank());
    return Optimizer(parameters, options, rank_communicator(std::move(ranks)), std::move(backend));
  };
}

template <class Compressor, class TrustRatio>
optimizer_maker make_gradient(settings& s) {
  return maker_with<slamb::lamb<Compressor, TrustRatio, rank_communicator, rank_backend>>({}, s);
}

using choice = optimizer_maker (*)(settings&);

optimizer_maker make_lamb(settings& s) {
  using ratio = slamb::layerwise_trust_ratio;
  choice make = make_gradient<slamb::no_compressor, ratio>;
  s.take_one_of<choice>(
      "compressor", make,
      {{"none", make}, {"int8", make_gradient<slamb::int8, ratio>}, {"int4", make_gradient<slamb::int4, ratio>}});
  return make(s);
}

template <class Compressor, class TrustRatio, class ParameterSync>
optimizer_maker make_slamb_with(settings& s) {
  using optimizer = slamb::slamb<Compressor, TrustRatio, ParameterSync, rank_communicator, rank_backend>;
  typename optimizer::options_type options;
  if constexpr (slamb::capability::chained<Compressor>)
    s.take("k", options.compressor.sparsifier.k);
  else
    s.take("k", options.compressor.k);
  s.take("beta3", options.beta3);
  s.take("local_steps", options.local_steps);
  s.take("dense_below", options.dense_below);
  return maker_with<optimizer>(options, s);
}

/// SLAMB that averages parameters, or keeps them together by differences.
optimizer_maker make_slamb(settings& s) {
  using bytes = slamb::chain<slamb::random_k<>, slamb::int8>;
  using averaging = slamb::rescaled_trust_ratio<>;
  using of_mean_step = slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>;
  choice make = make_slamb_with<slamb::random_k<>, averaging, slamb::sync::whole_average>;
  choice with_bytes = make_slamb_with<bytes, averaging, slamb::sync::whole_average>;
  choice by_differences = nullptr;
  s.take_one_of<choice>(
      "parameter_sync", by_differences,
      {{"average", nullptr},
       {"four_levels", make_slamb_with<bytes, of_mean_step, slamb::sync::quantized_difference<>>},
       {"int4", make_slamb_with<bytes, of_mean_step, slamb::sync::quantized_difference<slamb::int4>>}});
  if (by_differences != nullptr) with_bytes = by_differences;
  s.take_one_of<choice>("compressor", make, {{"random_k", make}, {"random_k+int8", with_bytes}});
  if (by_differences != nullptr && make != by_differences)
    throw std::invalid_argument("slamb: parameter_sync other than 'average' needs compressor = 'random_k+int8'");
  return make(s);
}

/// 1-bit Adam and 1-bit LAMB. As in the Python package, signs leave out elements whose gradient has always been 0: rows of the
/// embedding of bytes that do not occur.
template <template <class...> class Recipe>
optimizer_maker make_one_bit(settings& s) {
  using optimizer = Recipe<rank_communicator, rank_backend>;
  typename optimizer::options_type options{.compressor = {.zero_aware = true}};
  s.take("warm_up_steps", options.warm_up.steps);
  return maker_with<optimizer>(options, s);
}

optimizer_maker make_zero_one_adam(settings& s) {
  using optimizer = slamb::zero_one_adam<rank_communicator, rank_backend>;
  optimizer::options_type options{.compressor = {.zero_aware = true}};
  s.take("variance_freeze_step", options.variance_schedule.freeze_step);
  s.take("variance_update_scaler", options.variance_schedule.update_scaler);
  s.take("local_interval_scaler", options.local_schedule.scaler);
  s.take("local_interval_clipper", options.local_schedule.clipper);
  return maker_with<optimizer>(options, s);
}

constexpr std::array<std::pair<std::string_view, choice>, 6> all{{
    {"adamw", make_gradient<slamb::no_compressor, slamb::unit_trust_ratio>},
    {"lamb", make_lamb},
    {"slamb", make_slamb},
    {"one_bit_adam", make_one_bit<slamb::one_bit_adam>},
    {"one_bit_lamb", make_one_bit<slamb::one_bit_lamb>},
    {"zero_one_adam", make_zero_one_adam},
}};

}  // namespace

optimizer_maker maker_of(const std::string& name, const std::string& options) {
  std::string names;
  for (const auto& [known, make] : all) {
    if (known == name) {
      settings given(read_options(options), name);
      return make(given);
    }
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  throw std::invalid_argument("no optimizer is named '" + name + "'; there are " + names);
}

}  // namespace many_ranks
