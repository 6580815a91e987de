// The calls as foreign functions of XLA, for the host. Python describes an optimizer by a text (settings.hpp), which is an attribute of
// each call; tables are made at the first call with it, and kept.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "make_calls.hpp"
#include "rank_calls.hpp"
#include "xla/ffi/api/ffi.h"

namespace slamb_jax {
namespace {

namespace ffi = xla::ffi;

using floats = ffi::Buffer<ffi::F32>;
using bytes = ffi::Buffer<ffi::U8>;
using number = ffi::BufferR0<ffi::S32>;
using rate = ffi::BufferR0<ffi::F32>;

/// The calls of the ranks of an optimizer.
struct optimizer {
  settings options;
  std::vector<std::unique_ptr<rank_calls>> ranks;
};
struct rank_of {
  const settings& options;
  rank_calls& calls;
};

/// The calls of a rank, made once for each settings in a process. They are never destroyed, because XLA's threads may use them until
/// the process ends.
rank_of calls_of(std::string_view text, int rank) {
  static std::mutex& busy = *new std::mutex;
  static auto& made = *new std::map<std::string, optimizer, std::less<>>;
  const std::lock_guard lock(busy);
  auto found = made.find(text);
  if (found == made.end()) {
    optimizer its{parse(text), {}};
    its.ranks.resize(static_cast<std::size_t>(its.options.ranks));
    found = made.emplace(std::string(text), std::move(its)).first;
  }
  optimizer& its = found->second;
  if (rank < 0 || rank >= its.options.ranks)
    throw std::invalid_argument("slamb: rank " + std::to_string(rank) + " is none of the " +
                                std::to_string(its.options.ranks) + " ranks of this optimizer");
  std::unique_ptr<rank_calls>& calls = its.ranks[static_cast<std::size_t>(rank)];
  if (calls == nullptr) calls = make_calls(its.options, rank);
  return {its.options, *calls};
}

[[noreturn]] void throw_wrong_size(const std::string& name, std::size_t size, std::uint64_t expected) {
  throw std::invalid_argument("slamb: the array of " + name + " has " + std::to_string(size) +
                              " elements in place of " + std::to_string(expected));
}

// An array that must have `size` elements, or nothing is read.
template <class Array>
auto* checked(Array&& array, std::int64_t size, const char* name) {
  const auto expected = static_cast<std::uint64_t>(size);
  if (array.element_count() != expected) throw_wrong_size(name, array.element_count(), expected);
  return array.typed_data();
}
std::byte* checked_bytes(const bytes& array, std::int64_t size, const char* name) {
  return reinterpret_cast<std::byte*>(checked(array, size, name));
}

// Array i of the arguments or results that remain.
template <class Arrays>
auto array_at(const Arrays& all, std::size_t i) {
  const auto array = all.template get<floats>(i);
  if (!array.has_value()) throw std::invalid_argument(array.error().message());
  return array;
}

// The arrays of all tensors of the settings, from argument `first` of those that remain.
std::vector<float*> tensors_of(const ffi::RemainingArgs& all, const settings& options, std::size_t first) {
  std::vector<float*> pointers;
  for (std::size_t i = 0; i < options.tensors.size(); ++i) {
    const auto tensor = array_at(all, first + i);
    if (const std::uint64_t size = options.tensors[i].size; tensor->element_count() != size)
      throw_wrong_size("tensor " + std::to_string(i), tensor->element_count(), size);
    pointers.push_back(tensor->typed_data());
  }
  return pointers;
}
std::vector<const float*> gradients_of(const ffi::RemainingArgs& all, const settings& options, std::size_t first) {
  const std::vector<float*> pointers = tensors_of(all, options, first);
  return {pointers.begin(), pointers.end()};
}
void require_count(std::size_t count, std::size_t expected, const char* what) {
  if (count != expected)
    throw std::invalid_argument("slamb: there are " + std::to_string(count) + " " + what + " in place of " +
                                std::to_string(expected));
}

// A result must be in the memory of its argument, which the call writes.
void require_in_place(const void* argument, const void* result, std::size_t elements, const char* name) {
  if (elements != 0 && argument != result)
    throw std::invalid_argument("slamb: the result of " + std::string(name) +
                                " is not in the memory of the argument; the call must have input_output_aliases");
}

double checked_rate(const rate& learning_rate) {
  const double value = static_cast<double>(*learning_rate.typed_data());
  if (!(value >= 0.0) || std::isinf(value))
    throw std::invalid_argument("slamb: the learning rate is " + std::to_string(value) +
                                ", but it must be a finite number >= 0");
  return value;
}

// Runs a call; what it throws becomes the error of the program.
template <class Run>
ffi::Error run(std::string_view text, int rank, const Run& body) noexcept {
  try {
    const auto [options, calls] = calls_of(text, rank);
    const std::lock_guard lock(calls.busy());
    body(calls, options, calls.sizes());
    return ffi::Error::Success();
  } catch (const std::exception& e) {
    return ffi::Error::InvalidArgument(e.what());
  }
}

// What lasts, as arguments of a call. The results of the call are in their memory: XLA copies an argument that is needed elsewhere.
struct lasting {
  number taken, skipped, frozen_at;
  floats momentum, variance, fresh_variance, ratios;

  void point(step_arrays& at, const array_sizes& size) const {
    at.taken = static_cast<std::uint32_t>(*taken.typed_data());
    at.frozen_at = static_cast<std::uint32_t>(*frozen_at.typed_data());
    at.momentum = checked(momentum, size.state, "m");
    at.variance = checked(variance, size.state, "v");
    at.fresh_variance = checked(fresh_variance, size.fresh, "the fresh variance");
    at.ratios = checked(ratios, size.ratios, "trust ratios");
  }

  // The results that remain: these four arrays, `errors`, and the tensors, as the arguments are.
  void require_all_in_place(const ffi::RemainingRets& results, std::vector<floats> errors,
                            const ffi::RemainingArgs& tensors, std::size_t count) const {
    std::vector<floats> arrays{momentum, variance, fresh_variance, ratios};
    arrays.insert(arrays.end(), errors.begin(), errors.end());
    for (std::size_t i = 0; i < count; ++i) arrays.push_back(*array_at(tensors, i));
    require_count(results.size(), arrays.size(), "results that remain");
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      auto result = array_at(results, i);
      require_in_place(arrays[i].untyped_data(), (*result)->untyped_data(), arrays[i].element_count(),
                       i < 4 + errors.size() ? "the state" : "a parameter");
    }
  }

  // Counts a step, and freezes the variance if this was the last one before.
  void end(bool was_taken, rank_calls& calls, const step_arrays& at, number& now_taken, number& now_skipped,
           number& now_frozen_at) const {
    const int now = *taken.typed_data() + (was_taken ? 1 : 0);
    *now_taken.typed_data() = now;
    *now_skipped.typed_data() = *skipped.typed_data() + (was_taken ? 0 : 1);
    *now_frozen_at.typed_data() = *frozen_at.typed_data();
    if (!was_taken || at.frozen_at != 0 || !calls.freezes_after(static_cast<std::uint64_t>(now))) return;
    calls.freeze(at);
    *now_frozen_at.typed_data() = now;
  }
};

ffi::Error encode(std::string_view text, number rank, number taken, number frozen_at, floats momentum, floats ratios,
                  floats worker_error, ffi::RemainingArgs gradients, ffi::Result<bytes> sent,
                  ffi::Result<floats> dense) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const settings& options, const array_sizes& size) {
    step_arrays at;
    at.taken = static_cast<std::uint32_t>(*taken.typed_data());
    at.frozen_at = static_cast<std::uint32_t>(*frozen_at.typed_data());
    at.momentum = checked(momentum, size.state, "m");
    at.ratios = checked(ratios, size.ratios, "trust ratios");
    at.worker_error = checked(worker_error, size.state, "the worker error");
    at.sent = checked_bytes(*sent, options.ranks * size.message, "messages to send");
    at.dense = checked(*dense, size.dense, "dense gradients");
    require_count(gradients.size(), options.tensors.size(), "gradients");
    at.gradients = gradients_of(gradients, options, 0);
    calls.encode(at);
  });
}

ffi::Error average(std::string_view text, number rank, number taken, bytes received, floats server_error,
                   ffi::Result<bytes> averaged, ffi::Result<floats> mean) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const settings& options, const array_sizes& size) {
    step_arrays at;
    at.taken = static_cast<std::uint32_t>(*taken.typed_data());
    at.received = checked_bytes(received, options.ranks * size.message, "received messages");
    at.server_error = checked(server_error, size.codes, "the server error");
    at.averaged = checked_bytes(*averaged, size.message, "the averaged message");
    at.mean = checked(*mean, size.codes, "the mean");
    calls.average(at);
  });
}

ffi::Error update(std::string_view text, number rank, rate learning_rate, bytes received, bytes sent, bytes averaged,
                  floats dense, floats mean, number taken, number skipped, number frozen_at, floats momentum,
                  floats variance, floats fresh_variance, floats ratios, floats worker_error, floats server_error,
                  ffi::RemainingArgs tensors, ffi::Result<floats> exchanged, ffi::Result<number> now_taken,
                  ffi::Result<number> now_skipped, ffi::Result<number> now_frozen_at, ffi::RemainingRets arrays) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const settings& options, const array_sizes& size) {
    step_arrays at;
    const lasting its{taken, skipped, frozen_at, momentum, variance, fresh_variance, ratios};
    its.point(at, size);
    at.rate = checked_rate(learning_rate);
    at.received = checked_bytes(received, options.ranks * size.message, "received messages");
    at.sent = checked_bytes(sent, options.ranks * size.message, "sent messages");
    at.averaged = checked_bytes(averaged, size.message, "the averaged message");
    at.dense = checked(dense, size.dense, "dense gradients");
    at.mean = checked(mean, size.codes, "the mean");
    at.worker_error = checked(worker_error, size.state, "the worker error");
    at.server_error = checked(server_error, size.codes, "the server error");
    at.exchanged = checked(*exchanged, size.mean, "the mean gradient");
    const std::size_t count = options.tensors.size();
    require_count(tensors.size(), 2 * count, "parameters and gradients");
    at.parameters = tensors_of(tensors, options, 0);
    at.gradients = gradients_of(tensors, options, count);
    its.require_all_in_place(arrays, {worker_error, server_error}, tensors, count);
    its.end(calls.update(at), calls, at, *now_taken, *now_skipped, *now_frozen_at);
  });
}

ffi::Error update_dense(std::string_view text, number rank, rate learning_rate, number taken, number skipped,
                        number frozen_at, floats momentum, floats variance, floats fresh_variance, floats ratios,
                        ffi::RemainingArgs tensors, ffi::Result<number> now_taken, ffi::Result<number> now_skipped,
                        ffi::Result<number> now_frozen_at, ffi::RemainingRets arrays) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const settings& options, const array_sizes& size) {
    step_arrays at;
    const lasting its{taken, skipped, frozen_at, momentum, variance, fresh_variance, ratios};
    its.point(at, size);
    at.rate = checked_rate(learning_rate);
    const std::size_t count = options.tensors.size();
    require_count(tensors.size(), 2 * count, "parameters and gradients");
    at.parameters = tensors_of(tensors, options, 0);
    at.gradients = gradients_of(tensors, options, count);
    its.require_all_in_place(arrays, {}, tensors, count);
    its.end(calls.update_dense(at), calls, at, *now_taken, *now_skipped, *now_frozen_at);
  });
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(slamb_encode, encode,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("settings")
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .RemainingArgs()
                                  .Ret<bytes>()
                                  .Ret<floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(slamb_average, average,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("settings")
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<bytes>()
                                  .Arg<floats>()
                                  .Ret<bytes>()
                                  .Ret<floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(slamb_update, update,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("settings")
                                  .Arg<number>()
                                  .Arg<rate>()
                                  .Arg<bytes>()
                                  .Arg<bytes>()
                                  .Arg<bytes>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .RemainingArgs()
                                  .Ret<floats>()
                                  .Ret<number>()
                                  .Ret<number>()
                                  .Ret<number>()
                                  .RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(slamb_update_dense, update_dense,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("settings")
                                  .Arg<number>()
                                  .Arg<rate>()
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .Arg<floats>()
                                  .RemainingArgs()
                                  .Ret<number>()
                                  .Ret<number>()
                                  .Ret<number>()
                                  .RemainingRets());

/// Writes the seven `array_sizes`. Returns an error message that is valid until this thread's next call, or null.
extern "C" const char* slamb_jax_sizes(const char* text, std::int64_t* sizes) {
  static thread_local std::string message;
  try {
    const array_sizes all = calls_of(text, 0).calls.sizes();
    sizes[0] = all.state;
    sizes[1] = all.mean;
    sizes[2] = all.message;
    sizes[3] = all.codes;
    sizes[4] = all.dense;
    sizes[5] = all.fresh;
    sizes[6] = all.ratios;
    return nullptr;
  } catch (const std::exception& e) {
    message = e.what();
    return message.c_str();
  }
}
#pragma GCC visibility pop

}  // namespace slamb_jax
