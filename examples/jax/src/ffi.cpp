// The calls as foreign functions of XLA, for the host. Python describes an optimizer by a text (settings.hpp), which is an attribute of
// each call; tables are made at the first call with it, and kept.
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

/// The calls of a rank, made once for each settings in a process. They are never destroyed, because XLA's threads may use them until
/// the process ends.
rank_calls& calls_of(std::string_view text, int rank) {
  using calls_of_ranks = std::vector<std::unique_ptr<rank_calls>>;
  static std::mutex& busy = *new std::mutex;
  static auto& made = *new std::map<std::string, calls_of_ranks, std::less<>>;
  const std::lock_guard lock(busy);
  auto found = made.find(text);
  if (found == made.end()) {
    const settings s = parse(text);
    found = made.emplace(std::string(text), static_cast<std::size_t>(s.ranks)).first;
  }
  if (rank < 0 || static_cast<std::size_t>(rank) >= found->second.size())
    throw std::invalid_argument("slamb: rank " + std::to_string(rank) + " is none of the " +
                                std::to_string(found->second.size()) + " ranks of this optimizer");
  std::unique_ptr<rank_calls>& its = found->second[static_cast<std::size_t>(rank)];
  if (its == nullptr) its = make_calls(parse(text), rank);
  return *its;
}

// An array that must have `size` elements, or nothing is read.
template <class Array>
auto* checked(Array&& array, std::int64_t size, const char* name) {
  if (static_cast<std::int64_t>(array.element_count()) != size)
    throw std::invalid_argument("slamb: the array of " + std::string(name) + " has " +
                                std::to_string(array.element_count()) + " elements in place of " +
                                std::to_string(size));
  return array.typed_data();
}
std::byte* checked_bytes(const bytes& array, std::int64_t size, const char* name) {
  return reinterpret_cast<std::byte*>(checked(array, size, name));
}

// Tensors first … first + count − 1 of the arguments that remain.
std::vector<float*> tensors_of(const ffi::RemainingArgs& all, std::size_t first, std::size_t count) {
  std::vector<float*> pointers;
  for (std::size_t i = first; i < first + count; ++i) {
    const auto tensor = all.get<floats>(i);
    if (!tensor.has_value()) throw std::invalid_argument(tensor.error().message());
    pointers.push_back(tensor->typed_data());
  }
  return pointers;
}
std::vector<const float*> gradients_of(const ffi::RemainingArgs& all, std::size_t first, std::size_t count) {
  const std::vector<float*> pointers = tensors_of(all, first, count);
  return {pointers.begin(), pointers.end()};
}

// Runs a call; what it throws becomes the error of the program.
template <class Run>
ffi::Error run(std::string_view text, int rank, const Run& body) noexcept {
  try {
    rank_calls& calls = calls_of(text, rank);
    const std::lock_guard lock(calls.busy());
    body(calls, calls.sizes());
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

ffi::Error encode(std::string_view text, std::int64_t ranks, number rank, number taken, number frozen_at,
                  floats momentum, floats ratios, floats worker_error, ffi::RemainingArgs gradients,
                  ffi::Result<bytes> sent, ffi::Result<floats> dense) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const array_sizes& size) {
    step_arrays at;
    at.taken = static_cast<std::uint32_t>(*taken.typed_data());
    at.frozen_at = static_cast<std::uint32_t>(*frozen_at.typed_data());
    at.momentum = checked(momentum, size.state, "m");
    at.ratios = checked(ratios, size.ratios, "trust ratios");
    at.worker_error = checked(worker_error, size.state, "the worker error");
    at.sent = checked_bytes(*sent, ranks * size.message, "messages to send");
    at.dense = checked(*dense, size.dense, "dense gradients");
    at.gradients = gradients_of(gradients, 0, gradients.size());
    calls.encode(at);
  });
}

ffi::Error average(std::string_view text, std::int64_t ranks, number rank, number taken, bytes received,
                   floats server_error, ffi::Result<bytes> averaged, ffi::Result<floats> mean) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const array_sizes& size) {
    step_arrays at;
    at.taken = static_cast<std::uint32_t>(*taken.typed_data());
    at.received = checked_bytes(received, ranks * size.message, "received messages");
    at.server_error = checked(server_error, size.codes, "the server error");
    at.averaged = checked_bytes(*averaged, size.message, "the averaged message");
    at.mean = checked(*mean, size.codes, "the mean");
    calls.average(at);
  });
}

ffi::Error update(std::string_view text, std::int64_t ranks, number rank, rate learning_rate, bytes received,
                  bytes sent, bytes averaged, floats dense, floats mean, number taken, number skipped, number frozen_at,
                  floats momentum, floats variance, floats fresh_variance, floats ratios, floats worker_error,
                  floats server_error, ffi::RemainingArgs tensors, ffi::Result<floats> exchanged,
                  ffi::Result<number> now_taken, ffi::Result<number> now_skipped, ffi::Result<number> now_frozen_at,
                  ffi::RemainingRets /*arrays*/) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const array_sizes& size) {
    step_arrays at;
    const lasting its{taken, skipped, frozen_at, momentum, variance, fresh_variance, ratios};
    its.point(at, size);
    at.rate = static_cast<double>(*learning_rate.typed_data());
    at.received = checked_bytes(received, ranks * size.message, "received messages");
    at.sent = checked_bytes(sent, ranks * size.message, "sent messages");
    at.averaged = checked_bytes(averaged, size.message, "the averaged message");
    at.dense = checked(dense, size.dense, "dense gradients");
    at.mean = checked(mean, size.codes, "the mean");
    at.worker_error = checked(worker_error, size.state, "the worker error");
    at.server_error = checked(server_error, size.codes, "the server error");
    at.exchanged = checked(*exchanged, size.mean, "the mean gradient");
    const std::size_t count = tensors.size() / 2;
    at.parameters = tensors_of(tensors, 0, count);
    at.gradients = gradients_of(tensors, count, count);
    its.end(calls.update(at), calls, at, *now_taken, *now_skipped, *now_frozen_at);
  });
}

ffi::Error update_dense(std::string_view text, number rank, rate learning_rate, number taken, number skipped,
                        number frozen_at, floats momentum, floats variance, floats fresh_variance, floats ratios,
                        ffi::RemainingArgs tensors, ffi::Result<number> now_taken, ffi::Result<number> now_skipped,
                        ffi::Result<number> now_frozen_at, ffi::RemainingRets /*arrays*/) {
  return run(text, *rank.typed_data(), [&](rank_calls& calls, const array_sizes& size) {
    step_arrays at;
    const lasting its{taken, skipped, frozen_at, momentum, variance, fresh_variance, ratios};
    its.point(at, size);
    at.rate = static_cast<double>(*learning_rate.typed_data());
    const std::size_t count = tensors.size() / 2;
    at.parameters = tensors_of(tensors, 0, count);
    at.gradients = gradients_of(tensors, count, count);
    its.end(calls.update_dense(at), calls, at, *now_taken, *now_skipped, *now_frozen_at);
  });
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(slamb_encode, encode,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("settings")
                                  .Attr<std::int64_t>("ranks")
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
                                  .Attr<std::int64_t>("ranks")
                                  .Arg<number>()
                                  .Arg<number>()
                                  .Arg<bytes>()
                                  .Arg<floats>()
                                  .Ret<bytes>()
                                  .Ret<floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(slamb_update, update,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("settings")
                                  .Attr<std::int64_t>("ranks")
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
    const array_sizes all = calls_of(text, 0).sizes();
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
