// The processes that mpirun started, and what they send.
#pragma once

#include <mpi.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <slamb/mpi.hpp>
#include <string>
#include <vector>

namespace mpi_tests {

/// An MPI communicator of all processes, or of the first ones.
class processes {
 public:
  explicit processes(int ranks) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank < ranks ? 0 : MPI_UNDEFINED, rank, &comm_);
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  ~processes() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

  static int all() {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
  }

  /// Null in a process outside it.
  MPI_Comm get() const { return comm_; }
  bool has_this() const { return comm_ != MPI_COMM_NULL; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Element i of a rank: numbers of either sign, whose sums depend on the order of the terms.
inline float value_of_rank(int rank, std::size_t i) {
  const std::uint64_t bits = (i * 64 + static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15U;
  const float fraction = 1.0F + static_cast<float>(bits >> 41U) / 8388608.0F;
  return std::ldexp((bits >> 40U & 1U) != 0 ? fraction : -fraction, static_cast<int>(bits >> 37U & 7U));
}

/// All elements of a rank.
inline std::vector<float> values_of(int rank, std::size_t size) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = value_of_rank(rank, i);
  return values;
}

/// The message of the exception that call() throws.
inline std::string message_of(auto&& call) {
  try {
    call();
  } catch (const std::exception& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

}  // namespace mpi_tests
