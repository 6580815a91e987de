// The data of a benchmark: a model for each rank, and the meter of the machine's bandwidth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bandwidth.hpp"
#include "huge_array.hpp"
#include "made_up.hpp"
#include "shapes.hpp"
#include "slamb/core/parameter.hpp"

namespace bench {

/// Parameters and gradients of one rank. Tensors start at multiples of 64 bytes.
class model {
 public:
  explicit model(const std::vector<tensor_shape>& tensors)
      : parameters_(padded_elements(tensors)), gradients_(parameters_.size()) {
    std::size_t first = 0;
    for (const tensor_shape& tensor : tensors) {
      tensors_.push_back({.data = parameters_.data() + first,
                          .gradient = gradients_.data() + first,
                          .size = tensor.size(),
                          .dimensions = tensor.dimensions()});
      first += padded(tensor.size());
    }
  }

  void fill(unsigned threads) {
    parameters_.fill(made_up_parameters.scale, made_up_parameters.seed, threads);
    gradients_.fill(made_up_gradients.scale, made_up_gradients.seed, threads);
  }

  const std::vector<slamb::parameter>& tensors() const noexcept { return tensors_; }
  std::size_t padded_elements() const noexcept { return parameters_.size(); }
  /// Index of a tensor's first element in arrays with the layout of the parameters.
  std::size_t first_of(const slamb::parameter& tensor) const noexcept {
    return static_cast<std::size_t>(tensor.data.as<const float>() - parameters_.data());
  }

 private:
  static std::size_t padded(std::size_t elements) { return (elements + 15) / 16 * 16; }
  static std::size_t padded_elements(const std::vector<tensor_shape>& tensors) {
    std::size_t sum = 0;
    for (const tensor_shape& tensor : tensors) sum += padded(tensor.size());
    return sum;
  }

  huge_array parameters_;
  huge_array gradients_;
  std::vector<slamb::parameter> tensors_;
};

/// The models and the meter. Only one workbench exists at a time, and benchmarks over the same tensors share it.
class workbench {
 public:
  /// @throws std::runtime_error if the machine has too little free memory
  static workbench& of(const shape_set& shapes, std::size_t ranks, unsigned threads) {
    std::unique_ptr<workbench>& current = instance();
    if (!current || current->name_ != shapes.name || current->models_.size() != ranks) {
      current.reset();
      current.reset(new workbench(shapes, ranks, threads));
    }
    for (model& each : current->models_) each.fill(threads);
    return *current;
  }

  static void release() { instance().reset(); }

  const model& of_rank(std::size_t rank) const { return models_[rank]; }
  std::size_t ranks() const noexcept { return models_.size(); }
  std::size_t elements() const noexcept { return elements_; }  ///< of one rank
  bandwidth measure() { return meter_->measure(); }

  /// Fails early: if the system overcommits memory, a program that asks for too much is killed, and its results are lost.
  /// @throws std::runtime_error if fewer bytes are free
  static void require_memory(std::size_t bytes) {
    std::ifstream file("/proc/meminfo");
    std::string name, unit;
    for (std::size_t kibibytes = 0; file >> name >> kibibytes; std::getline(file, unit)) {
      if (name == "MemAvailable:" && kibibytes < bytes / 1024)
        throw std::runtime_error("needs " + std::to_string(bytes >> 20U) + " MiB of memory, but " +
                                 std::to_string(kibibytes >> 10U) + " MiB are available");
    }
  }

 private:
  workbench(const shape_set& shapes, std::size_t ranks, unsigned threads)
      : name_(shapes.name), elements_(shapes.elements()) {
    constexpr std::size_t most = 4'000'000'000;
    const std::size_t bytes = ranks * elements_ * 16;           // p, g, m, v
    require_memory(bytes + bytes / 4 + std::min(bytes, most));  // a quarter for exchanged data
    for (std::size_t rank = 0; rank < ranks; ++rank) models_.emplace_back(shapes.tensors);
    meter_ = std::make_unique<bandwidth_meter>(std::min(bytes, most), threads);
  }

  static std::unique_ptr<workbench>& instance() {
    static std::unique_ptr<workbench> current;
    return current;
  }

  std::string name_;
  std::size_t elements_;
  std::vector<model> models_;
  std::unique_ptr<bandwidth_meter> meter_;
};

}  // namespace bench
