// Moves the payloads of one rank's collectives between the memory of a GPU and MPI, waits for the copies, and handles failures.
// communicator/cuda/mpi_communicator.hpp makes the collectives.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/mpi_communicator.hpp"
#include "slamb/communicator/mpi_device_options.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/runtime/cuda_staging.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"

namespace slamb::detail {

class cuda_mpi_transfer {
 public:
  using transport_type = mpi_device_options::transport_type;

  /// A part of a payload.
  struct part {
    std::size_t offset;  // bytes
    std::size_t size;    // bytes
    std::byte* memory;   // the pinned memory through which the part goes
  };

  cuda_mpi_transfer(mpi_communicator host, const mpi_device_options& options)
      : host_(std::move(host)), staging_(host_.size() == 1 ? 0 : 2 * half_of(options, host_.size())) {
    transport_ = agreed_transport(options);
  }

  mpi_communicator& host() noexcept { return host_; }
  const mpi_communicator& host() const noexcept { return host_; }
  transport_type transport() const noexcept { return transport_; }

  /// @throws the first failure of this communicator, if it has failed; std::logic_error while the stream is captured
  void require_usable(cudaStream_t stream, const char* what) {
    handle().throw_if_unusable();
    bool is_captured = false;
    guarded([&] { is_captured = cuda::is_capturing(stream); });
    if (is_captured) {
      throw std::logic_error(std::string("slamb: cuda_mpi_communicator: ") + what +
                             " cannot be captured into a graph, because the host sends the messages of MPI; call it "
                             "outside the capture, or use an nccl_communicator");
    }
  }

  /// Calls body(). If it throws, this communicator fails, reports the failure to its peers, and rethrows. The staging memory is
  /// then never freed, because MPI may still write to it.
  template <class Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (const std::exception& failure) {
      staging_.keep();
      if (!handle().has_failed()) {
        handle().tell_peers(failure.what());
        handle().break_off(std::current_exception());
      }
      throw;
    }
  }

  /// Makes one collective: by `by_mpi` if the transport is direct, else by `by_host`.
  template <class T, class ByMpi, class ByHost>
  void run(collective_call call, cudaStream_t stream, const ByMpi& by_mpi, const ByHost& by_host) {
    require_usable(stream, to_text(call.kind));
    call.family = element_family<T>();
    call.element_size = sizeof(T);
    guarded([&] {
      handle().begin_parts(call);
      if (call.count > 0 && transport_ == transport_type::direct) {
        by_mpi();
      } else if (call.count > 0) {
        by_host();
      }
      handle().end_parts();
    });
  }

  /// Transfers `size` bytes in parts. Half of the staging memory holds `ways` parts of the same size. fetch(part) enqueues copies
  /// to the staging memory, exchange(part) sends and receives, and put(part) enqueues copies from the staging memory. A part is
  /// fetched while the part before is exchanged. The stream's order ensures that a half is put before it is fetched again.
  template <class Fetch, class Exchange, class Put>
  void in_parts(std::size_t size, int ways, cudaStream_t stream, const Fetch& fetch, const Exchange& exchange,
                const Put& put) {
    if (host_.size() == 1) return;
    const std::size_t whole = staging_.half_size() / static_cast<std::size_t>(ways) / line * line;
    const auto at = [&](std::size_t offset, int slot) {
      return part{offset, std::min(whole, size - offset), staging_.half(slot)};
    };
    const auto begin = [&](std::size_t offset, int slot) {
      fetch(at(offset, slot));
      // Also if nothing is fetched, because messages must not overwrite a half that is still being put.
      staging_.mark(slot, stream);
    };
    staging_.acquire(stream);
    begin(0, 0);
    int slot = 0;
    for (std::size_t offset = 0; offset < size; offset += whole, slot ^= 1) {
      if (whole < size - offset) begin(offset + whole, slot ^ 1);
      wait_for(slot);
      exchange(at(offset, slot));
      put(at(offset, slot));
    }
    staging_.release(stream);
  }

  /// Waits until the work on the stream is done. Fails if a peer has failed, or after the timeout.
  void wait(cudaStream_t stream) {
    staging_.mark(0, stream);
    wait_for(0);
  }

 private:
  static constexpr std::size_t line = mpi_communicator::line;

  mpi_handle& handle() noexcept { return host_.messages_.handle(); }

  /// The size of half of the staging memory, in bytes: whole lines, with at least one line for each rank in both directions, as
  /// all_to_all needs.
  static std::size_t half_of(const mpi_device_options& options, int ranks) {
    return std::max(options.staging_bytes / 2, mpi_communicator::offset_of(2 * ranks, line)) / line * line;
  }

  transport_type agreed_transport(const mpi_device_options& options) {
    struct sizes {
      std::uint64_t staging_bytes;
      std::uint64_t piece_bytes;
      std::uint64_t message_bytes;
      transport_type transport;
      std::uint32_t has_direct;
    };
    const sizes mine{options.staging_bytes, options.messages.piece_bytes, options.messages.message_bytes,
                     options.transport, mpi_takes_cuda_pointers().value_or(false) ? 1U : 0U};
    std::vector<sizes> all(static_cast<std::size_t>(host_.size()));
    host_.all_gather(std::span<const sizes>(&mine, 1), std::span<sizes>(all), host_stream{});
    bool has_direct = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const char* const differs = all[i].transport != all[0].transport           ? "transport"
                                  : all[i].staging_bytes != all[0].staging_bytes ? "staging_bytes"
                                  : all[i].piece_bytes != all[0].piece_bytes     ? "messages.piece_bytes"
                                  : all[i].message_bytes != all[0].message_bytes ? "messages.message_bytes"
                                                                                 : nullptr;
      if (differs != nullptr) {
        handle().fail_with(communicator_error(std::string("slamb: mpi_device_options::") + differs + " of rank " +
                                              std::to_string(i) +
                                              " differs from rank 0's, but it must be the same on all ranks"));
      }
      has_direct = has_direct && all[i].has_direct != 0;
    }
    if (options.transport != transport_type::automatic) return options.transport;
    return has_direct ? transport_type::direct : transport_type::staged;
  }

  void wait_for(int slot) {
    if (handle().wait_until([&] { return staging_.is_ready(slot); })) return;
    handle().fail_with(communicator_error("slamb: " + handle().here() + ": after " +
                                          std::to_string(handle().options().timeout.count()) +
                                          " ms, the stream's work was not done"));
  }

  mpi_communicator host_;
  cuda::staging staging_;
  transport_type transport_ = transport_type::staged;
};

}  // namespace slamb::detail
