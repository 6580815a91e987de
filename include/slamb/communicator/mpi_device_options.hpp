// Settings of an MPI communicator on device memory, and a check that MPI can reach device memory.
#pragma once

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // Open MPI's; other MPIs declare their extensions in mpi.h
#endif

#include <cstddef>
#include <optional>
#include <stdexcept>

#include "slamb/communicator/mpi_options.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Settings of a cuda_mpi_communicator. They must be the same on all ranks.
struct mpi_device_options {
  /// The way of a payload from the memory of one device to another.
  enum class transport_type {
    automatic,  ///< direct if MPI reports on every rank that it accepts device pointers, else staged
    staged,     ///< through host memory, by copies that overlap with messages
    direct      ///< MPI gets device pointers; sums are staged nevertheless, because the host computes them
  };

  mpi_options messages{};                                ///< as for host memory
  transport_type transport = transport_type::automatic;  ///< direct is rejected if MPI reports that it cannot
  std::size_t staging_bytes = std::size_t{1} << 25;      ///< of pinned host memory, half of it per part; in [128, 2^40]
};

namespace detail {

/// True if MPI reports that it accepts pointers to CUDA device memory; empty if MPI has no such report.
inline std::optional<bool> mpi_takes_cuda_pointers() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return std::nullopt;
#endif
}

inline mpi_device_options validated(const mpi_device_options& o) {
  require_in(o.staging_bytes >= 128 && o.staging_bytes <= (std::size_t{1} << 40), "mpi_device_options::staging_bytes",
             static_cast<double>(o.staging_bytes), "in [128, 2^40]");
  if (o.transport == mpi_device_options::transport_type::direct && !mpi_takes_cuda_pointers().value_or(true)) {
    throw std::invalid_argument(
        "slamb: mpi_device_options::transport = direct, but this MPI says that it does not take pointers to device "
        "memory (MPIX_Query_cuda_support); use an MPI that is built for CUDA, or set transport = staged");
  }
  return o;
}

}  // namespace detail
}  // namespace slamb
