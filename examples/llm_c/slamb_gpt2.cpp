// slamb for train_gpt2.c of llm.c, with C's linkage: see slamb_gpt2.h.
#include "slamb_gpt2.h"

#include <slamb/checkpoint.hpp>
#include <slamb/compressed_lamb.hpp>
#include <slamb/mpi.hpp>
#include <slamb/one_bit.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using sizes_type = std::span<const std::size_t, SLAMB_GPT2_TENSORS>;

// [tensors] of train_gpt2.c: `factors` · C^`dimensions` elements in each layer, or once; the first two have any number of rows of C.
constexpr std::array<const char*, SLAMB_GPT2_TENSORS> names{"wte",      "wpe",      "ln1w", "ln1b", "qkvw", "qkvb",
                                                            "attprojw", "attprojb", "ln2w", "ln2b", "fcw",  "fcb",
                                                            "fcprojw",  "fcprojb",  "lnfw", "lnfb"};
constexpr std::array<std::size_t, SLAMB_GPT2_TENSORS> factors{0, 0, 1, 1, 3, 3, 1, 1, 1, 1, 4, 4, 4, 1, 1, 1};
constexpr std::array<int, SLAMB_GPT2_TENSORS> dimensions{2, 2, 1, 1, 2, 1, 2, 1, 1, 1, 2, 1, 2, 1, 1, 1};
constexpr bool is_stacked(std::size_t tensor) { return 2 <= tensor && tensor < 14; }  // over layers

void require(bool is_right, std::size_t tensor, std::size_t size, const std::string& right) {
  if (is_right) return;
  throw std::invalid_argument("slamb_gpt2: sizes[" + std::to_string(tensor) + "], of " + names[tensor] + ", is " +
                              std::to_string(size) + ", but it must be " + right);
}

/// @throws std::invalid_argument that names a size that is not one of a GPT-2
void check(sizes_type sizes) {
  const std::size_t channels = sizes[14];
  require(channels != 0, 14, 0, "the number of channels C, 1 or more");
  const std::string of_channels = "C = sizes[14] = " + std::to_string(channels);
  const std::size_t layers = sizes[2] / channels;
  require(layers != 0 && sizes[2] % channels == 0, 2, sizes[2], "L * C with 1 layer L or more, and " + of_channels);
  for (std::size_t t = 0; t < SLAMB_GPT2_TENSORS; ++t) {
    const std::size_t once = factors[t] * channels * (dimensions[t] == 2 ? channels : 1);
    const std::size_t right = is_stacked(t) ? layers * once : once;
    if (factors[t] == 0)
      require(sizes[t] != 0 && sizes[t] % channels == 0, t, sizes[t], "a multiple of " + of_channels);
    else
      require(sizes[t] == right, t, sizes[t],
              std::to_string(right) + " with L = sizes[2] / C = " + std::to_string(layers) + " and " + of_channels);
  }
}

/// [rows] 1 for the first `used` rows of a tensor, else 0. Empty if `used` is 0, which means all.
std::vector<std::uint8_t> mask(const char* option, std::size_t used, std::size_t rows) {
  if (used > rows)
    throw std::invalid_argument("slamb_gpt2: " + std::string(option) + " = " + std::to_string(used) +
                                ", but its tensor has only " + std::to_string(rows) + " rows");
  std::vector<std::uint8_t> active(used == 0 ? 0 : rows);
  std::fill_n(active.begin(), used, std::uint8_t{1});
  return active;
}

/// The tensors of the optimizer: a stacked one is a tensor for each layer, with a trust ratio of its own. Biases and layer norms have no
/// decay, and a trust ratio of 1.
/// @param rows  [2] masks of wte and wpe, which must outlive the list
std::vector<slamb::parameter> split(float* parameters, const float* gradients, sizes_type sizes,
                                    const std::array<std::vector<std::uint8_t>, 2>& rows) {
  std::vector<slamb::parameter> all;
  for (std::size_t t = 0; t < SLAMB_GPT2_TENSORS; ++t) {
    const std::size_t parts = is_stacked(t) ? sizes[2] / sizes[14] : 1, size = sizes[t] / parts;
    for (std::size_t part = 0; part < parts; ++part, parameters += size, gradients += size) {
      slamb::parameter tensor{.data = parameters, .gradient = gradients, .size = size, .dimensions = dimensions[t]};
      if (dimensions[t] == 1) tensor.options = {.weight_decay = 0.0, .adapt = false};
      if (t < rows.size()) tensor.options.rows = rows[t];
      all.push_back(tensor);
    }
  }
  return all;
}

/// The library knows tensors 0 and 1 by number, and not the options that mask their rows. Collective.
/// @throws slamb::rank_mismatch_error on all processes if their values differ
void require_equal(const char* option, std::uint64_t value, MPI_Comm processes) {
  std::array<std::uint64_t, 2> most{value, ~value};  // ~ makes the least value the most
  const int code = MPI_Allreduce(MPI_IN_PLACE, most.data(), 2, MPI_UINT64_T, MPI_MAX, processes);
  if (code != MPI_SUCCESS) throw slamb::mpi_error(code, "MPI_Allreduce", "slamb_gpt2_create");
  if (most[0] != ~most[1])
    throw slamb::rank_mismatch_error("slamb_gpt2: " + std::string(option) + " is " + std::to_string(value) +
                                     " on this process, and " + std::to_string(~most[1]) + " to " +
                                     std::to_string(most[0]) + " on all; the option " + option +
                                     " must be equal on all processes");
}

/// An optimizer of this type. Its options are checked before the first collective.
template <class Optimizer>
slamb::optimizer made(std::span<const slamb::parameter> tensors, const slamb_gpt2_options& from, MPI_Comm processes) {
  typename Optimizer::options_type options{
      .beta1 = from.beta1, .beta2 = from.beta2, .epsilon = from.epsilon, .weight_decay = from.weight_decay};
  if constexpr (requires { options.warm_up.steps; }) options.warm_up.steps = from.warm_up_steps;
  Optimizer::validate(options);
  require_equal("vocabulary", from.vocabulary, processes);
  require_equal("positions", from.positions, processes);
  return Optimizer(tensors, options, slamb::mpi_communicator(processes), {.threads = from.threads});
}

slamb::optimizer make(std::span<const slamb::parameter> tensors, const slamb_gpt2_options& from, MPI_Comm processes) {
  const std::string name = from.optimizer == nullptr ? "NULL" : from.optimizer;
  if (name == "adamw") return made<slamb::adamw<>>(tensors, from, processes);
  if (name == "lamb") return made<slamb::lamb<>>(tensors, from, processes);
  if (name == "lamb+int4") return made<slamb::lamb<slamb::int4>>(tensors, from, processes);
  if (name == "one_bit_lamb") return made<slamb::one_bit_lamb<>>(tensors, from, processes);
  throw std::invalid_argument("slamb_gpt2: optimizer '" + name + "' is none of adamw, lamb, lamb+int4, one_bit_lamb");
}

thread_local std::string last_error;

/// The result of `call`, or `otherwise` if it throws: then the reason is in last_error.
template <class Result, class Call>
Result caught(Result otherwise, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    last_error = error.what();
    return otherwise;
  }
}

}  // namespace

struct slamb_gpt2 {
  slamb::optimizer optimizer;
};

namespace {

/// @tparam Handle  slamb_gpt2 or const slamb_gpt2
template <class Handle>
auto& optimizer_in(Handle* handle) {
  if (handle == nullptr) throw std::invalid_argument("slamb_gpt2: optimizer is NULL");
  return handle->optimizer;
}

std::string path_from(const char* path) {
  if (path == nullptr) throw std::invalid_argument("slamb_gpt2: path is NULL");
  return path;
}

}  // namespace

extern "C" {

slamb_gpt2* slamb_gpt2_create(float* parameters, const float* gradients, const size_t* sizes,
                              const slamb_gpt2_options* options, MPI_Comm processes) {
  return caught<slamb_gpt2*>(nullptr, [&] {
    if (parameters == nullptr || gradients == nullptr || sizes == nullptr || options == nullptr)
      throw std::invalid_argument("slamb_gpt2: parameters, gradients, sizes and options must not be NULL");
    const sizes_type all(sizes, SLAMB_GPT2_TENSORS);
    check(all);
    const std::array rows{mask("vocabulary", options->vocabulary, sizes[0] / sizes[14]),
                          mask("positions", options->positions, sizes[1] / sizes[14])};
    return new slamb_gpt2{make(split(parameters, gradients, all, rows), *options, processes)};
  });
}

int slamb_gpt2_step(slamb_gpt2* optimizer, double learning_rate) {
  return caught(1, [&] {
    optimizer_in(optimizer).step(learning_rate);
    return 0;
  });
}

unsigned long long slamb_gpt2_skipped_steps(const slamb_gpt2* optimizer) {
  return caught(0ULL, [&] { return 0ULL + optimizer_in(optimizer).statistics().skipped_steps; });
}

unsigned long long slamb_gpt2_sent_bytes(const slamb_gpt2* optimizer) {
  return caught(0ULL, [&] { return 0ULL + optimizer_in(optimizer).statistics().traffic.total().sent_bytes; });
}

int slamb_gpt2_save(const slamb_gpt2* optimizer, const char* path) {
  return caught(1, [&] {
    slamb::save_checkpoint(optimizer_in(optimizer), path_from(path));
    return 0;
  });
}

int slamb_gpt2_load(slamb_gpt2* optimizer, const char* path) {
  return caught(1, [&] {
    slamb::load_checkpoint(optimizer_in(optimizer), path_from(path));
    return 0;
  });
}

void slamb_gpt2_free(slamb_gpt2* optimizer) { delete optimizer; }

const char* slamb_gpt2_error(void) { return last_error.c_str(); }

}  // extern "C"
