// Trains with the library's own optimizers, on ranks that are threads, by the gradients of a file: what slamb.jax is compared with.
//
//   reference RECIPE COMPRESSOR RANKS STEPS WARM_UP BOUND SEED MAX_NORM RATE SIZE:DECAY:ADAPT:COMPRESS… <gradients >numbers
//
// Standard input has floats: the parameters, then for each step the gradients of each rank. Standard output has floats: the parameters
// after each step, then m, then v. A gradient that is not finite makes all ranks skip the step.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <slamb/compressed_lamb.hpp>
#include <slamb/one_bit.hpp>
#include <slamb/threads.hpp>

namespace {

struct job {
  std::string recipe, compressor;
  int ranks = 1;
  std::size_t steps = 0;
  std::uint64_t warm_up = 1, seed = 0;
  double bound = 0.0;  // of updates; 0: Adam's own
  double max_norm = std::numeric_limits<double>::infinity(), rate = 0.0;
  std::vector<std::size_t> sizes;
  std::vector<slamb::tensor_options> options;
  std::size_t elements = 0;
};

std::vector<float> read_floats(std::size_t count) {
  std::vector<float> all(count);
  if (std::fread(all.data(), sizeof(float), count, stdin) != count) throw std::runtime_error("the input is too short");
  return all;
}

void write_floats(const std::vector<float>& all) {
  if (std::fwrite(all.data(), sizeof(float), all.size(), stdout) != all.size())
    throw std::runtime_error("the output cannot be written");
}

template <class Optimizer>
Optimizer make(const job& j, const std::vector<slamb::parameter>& parameters, slamb::thread_communicator ranks) {
  typename Optimizer::options_type o;
  o.epsilon = j.recipe == "lamb" ? 1e-6 : 1e-8;
  o.weight_decay = 0.0;
  o.max_gradient_norm = j.max_norm;
  if constexpr (requires { o.compressor.seed; }) o.compressor.seed = j.seed;
  if constexpr (requires { o.warm_up.steps; }) o.warm_up.steps = j.warm_up;
  if constexpr (requires { o.update_bound; }) o.update_bound = j.bound;
  return Optimizer(parameters, o, std::move(ranks), slamb::host_backend{.threads = 1});
}

template <class Optimizer>
void train(const job& j) {
  const std::vector<float> start = read_floats(j.elements);
  const std::vector<float> gradients =
      read_floats(j.steps * static_cast<std::size_t>(j.ranks) * j.elements);  // [steps][ranks][elements]
  std::vector<std::vector<float>> after(j.steps);
  std::vector<float> momentum, variance;
  slamb::run_ranks(j.ranks, [&](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    std::vector<float> own = start, gradient(j.elements);
    std::vector<slamb::parameter> parameters;
    std::size_t first = 0;
    for (std::size_t i = 0; i < j.sizes.size(); ++i) {
      parameters.push_back({.data = own.data() + first,
                            .gradient = gradient.data() + first,
                            .size = j.sizes[i],
                            .options = j.options[i]});
      first += j.sizes[i];
    }
    Optimizer optimizer = make<Optimizer>(j, parameters, std::move(ranks));
    for (std::size_t t = 0; t < j.steps; ++t) {
      const auto from =
          gradients.begin() + static_cast<std::ptrdiff_t>((t * static_cast<std::size_t>(j.ranks) + rank) * j.elements);
      std::copy(from, from + static_cast<std::ptrdiff_t>(j.elements), gradient.begin());
      optimizer.step(j.rate);
      if (rank == 0) after[t] = own;
    }
    if (rank != 0) return;
    for (std::size_t i = 0; i < j.sizes.size(); ++i) {
      const auto its = optimizer.moments(i);
      momentum.insert(momentum.end(), its.momentum.begin(), its.momentum.end());
      variance.insert(variance.end(), its.variance.begin(), its.variance.end());
    }
  });
  for (const std::vector<float>& parameters : after) write_floats(parameters);
  write_floats(momentum);
  write_floats(variance);
}

template <class Compressor>
void train_with(const job& j) {
  using ranks = slamb::thread_communicator;
  if (j.recipe == "adamw") return train<slamb::adamw<Compressor, ranks>>(j);
  if (j.recipe == "lamb") return train<slamb::lamb<Compressor, ranks>>(j);
  throw std::invalid_argument("there is no recipe " + j.recipe);
}

job read(int count, char** words) {
  if (count < 11) throw std::invalid_argument("arguments are missing");
  job j;
  j.recipe = words[1];
  j.compressor = words[2];
  j.ranks = std::atoi(words[3]);
  j.steps = std::strtoull(words[4], nullptr, 10);
  j.warm_up = std::strtoull(words[5], nullptr, 10);
  j.bound = std::strtod(words[6], nullptr);
  j.seed = std::strtoull(words[7], nullptr, 10);
  j.max_norm = std::strtod(words[8], nullptr);
  j.rate = std::strtod(words[9], nullptr);
  for (int i = 10; i < count; ++i) {
    std::istringstream tensor(words[i]);
    std::size_t size = 0;
    double decay = 0.0;
    int adapt = 1, compress = 1;
    char colon = 0;
    if (!(tensor >> size >> colon >> decay >> colon >> adapt >> colon >> compress))
      throw std::invalid_argument(std::string("a tensor is ") + words[i]);
    j.sizes.push_back(size);
    j.options.push_back({.weight_decay = decay, .adapt = adapt != 0, .compress = compress != 0});
    j.elements += size;
  }
  return j;
}

}  // namespace

int main(int count, char** words) try {
  const job j = read(count, words);
  using ranks = slamb::thread_communicator;
  if (j.recipe == "one_bit_adam")
    train<slamb::one_bit_adam<ranks>>(j);
  else if (j.recipe == "one_bit_lamb")
    train<slamb::one_bit_lamb<ranks>>(j);
  else if (j.compressor == "sign")
    train_with<slamb::sign>(j);
  else if (j.compressor == "int8")
    train_with<slamb::int8>(j);
  else if (j.compressor == "int4")
    train_with<slamb::int4>(j);
  else
    train_with<slamb::no_compressor>(j);
} catch (const std::exception& e) {
  std::fprintf(stderr, "reference: %s\n", e.what());
  return 1;
}
