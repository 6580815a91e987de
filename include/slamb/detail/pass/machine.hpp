// A backend as the core of an optimizer sees it, which is no template: memory, order, and the passes that every optimizer runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "slamb/core/allocator.hpp"
#include "slamb/core/detail/any_stream.hpp"
#include "slamb/core/detail/backend_memory.hpp"
#include "slamb/core/detail/call_scope.hpp"
#include "slamb/core/detail/collectives.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/step_calls.hpp"

namespace slamb::detail {

/// A flag of the backend's memory that is read at one point of a stream, and returned to the host later: `late_read`.
class late_flag {
 public:
  late_flag() = default;
  late_flag(const late_flag&) = delete;
  late_flag& operator=(const late_flag&) = delete;
  virtual ~late_flag() = default;

  /// Starts to read after all earlier work, without waiting.
  virtual void start(const std::uint32_t* from) = 0;
  /// Waits for the read alone, through `ranks`, and returns the flag.
  virtual std::uint32_t finish(const stream_waiter& ranks) = 0;
};

/// Sums over ranks that run beside the stream of an optimizer, one after another: `side_stream`.
class side_sums {
 public:
  side_sums() = default;
  side_sums(const side_sums&) = delete;
  side_sums& operator=(const side_sums&) = delete;
  virtual ~side_sums() = default;

  virtual void start(std::span<float> values) = 0;
  /// Makes the stream wait for all of them. @throws the exception of a sum
  virtual void join() = 0;
};

/// Properties of a backend.
struct machine_properties {
  bool is_synchronous = true;     ///< work is done when a call returns
  bool takes_types = false;       ///< parameters and gradients may have sixteen bits
  bool rounds_by_chance = false;  ///< parameters of sixteen bits have no master copies
  bool has_draws = false;         ///< something is rounded by chance
  bool is_plan = false;           ///< kernels do not run, and ranks send nothing: steps are only counted
  std::uint64_t seed = 0;         ///< of the draws
  std::size_t cache_bytes = 0;
};

/// Does the work of the core, in the order of the calls. Pointers and spans are in the backend's memory unless a function says
/// otherwise. The functions are those of a launcher (backend/host/detail/thread_launcher.hpp), by which `machine_on` implements them.
class machine : public backend_memory {
 public:
  explicit machine(const machine_properties& properties) noexcept : properties_(properties) {}
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;
  virtual ~machine() = default;

  const machine_properties& properties() const noexcept { return properties_; }

  virtual any_stream stream() const noexcept = 0;
  /// A scope that must be alive in a thread that calls other functions.
  virtual call_scope enter() const noexcept = 0;
  virtual bool is_capturing() const = 0;
  virtual allocator memory_source() const = 0;
  virtual void require_memory(const void* memory, const char* what) const = 0;

  virtual void clear(std::span<std::byte> memory) const = 0;
  /// Copies the table of all tiles, [tiles] in the backend's memory. A plan looks at `tensors` later instead.
  virtual void upload_tiles(const layout& tensors, std::span<tile> to) const = 0;

  virtual void invoke(const step_calls& calls) const = 0;
  virtual void run(const model_pass& pass, const any_view& view, tile_range tiles, double* sums = nullptr,
                   std::uint32_t* not_finite = nullptr) const = 0;
  /// Runs fingerprint_of_payload.
  virtual void hash_payload(const model_view& view, const payload_view& payload, tile_range tiles,
                            double* sums) const = 0;
  virtual void add_up(std::span<const double> values, double* to) const = 0;
  /// The same for values of all tiles of a model, without those that another rank counts.
  virtual void add_up_counted(const model_view& view, std::span<const double> of_tiles, double* to) const = 0;
  /// Adds up the values of each tensor's tiles: `to` [tensors].
  virtual void add_up_tensors(const model_view& view, std::span<const double> of_tiles, std::span<double> to) const = 0;

  /// Null if the backend cannot read later.
  virtual std::unique_ptr<late_flag> make_late_flag() const = 0;
  /// @param most  sums between two calls of `join`
  virtual std::unique_ptr<side_sums> make_side_sums(counted_collectives& ranks, std::size_t most) const = 0;

  /// Copies a table from host memory.
  template <class T>
  void upload(std::span<const T> from, std::span<T> to) const {
    upload_bytes(std::as_bytes(from), std::as_writable_bytes(to).first(from.size_bytes()));
  }
  /// Returns one value. Waits.
  template <class T>
  T read(const T* from, const stream_waiter& ranks) const {
    T value;
    download(std::as_bytes(std::span(from, 1)), std::as_writable_bytes(std::span(&value, 1)), ranks);
    return value;
  }
  template <class T>
  void write(T* to, T value) const {
    upload(std::span<const T>(&value, 1), std::span<T>(to, 1));
  }

 private:
  machine_properties properties_;
};

}  // namespace slamb::detail
