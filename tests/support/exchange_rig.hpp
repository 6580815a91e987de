// Runs the compressed exchange without an optimizer: a pass sends the gradient as the signal and writes the exchanged mean into
// the parameters. After each exchange a test can look at everything that was written and sent.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "support/replica.hpp"

namespace test_support {

/// The signal is the gradient; the parameter becomes the exchanged mean.
struct keep_the_mean : slamb::detail::pass_without_constants {
  using signal_reads = slamb::detail::arrays<slamb::detail::array::gradient>;
  using reads = slamb::detail::arrays<>;
  using writes = slamb::detail::arrays<slamb::detail::array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& sums) const {
    sums.check_finite(e.gradient);
    return e.gradient;
  }
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.parameter = e.exchanged;
  }
};

/// Memory between two guards.
class guarded_bytes {
 public:
  explicit guarded_bytes(std::size_t bytes) : bytes_(bytes), memory_(bytes + 2 * guard) {
    std::ranges::fill(memory_.all(), mark);
  }

  std::span<std::byte> bytes() { return memory_.all().subspan(guard, bytes_); }
  bool intact() {
    const auto is_marked = [](std::byte b) { return b == mark; };
    return std::ranges::all_of(memory_.all().first(guard), is_marked) &&
           std::ranges::all_of(memory_.all().last(guard), is_marked);
  }

 private:
  static constexpr std::size_t guard = 4096;
  static constexpr std::byte mark{0xA5};

  class aligned {
   public:
    explicit aligned(std::size_t bytes) : all_(static_cast<std::byte*>(::operator new(bytes, alignment)), bytes) {}
    aligned(const aligned&) = delete;
    aligned& operator=(const aligned&) = delete;
    ~aligned() { ::operator delete(all_.data(), alignment); }

    std::span<std::byte> all() { return all_; }

   private:
    static constexpr std::align_val_t alignment{slamb::detail::arena::alignment};
    std::span<std::byte> all_;
  };

  std::size_t bytes_;
  aligned memory_;
};

/// The host backend. It uses the given number of threads even for models that are too small for them.
struct eager_backend : slamb::host_backend {
  launcher_type make_launcher(std::uint64_t /*elements*/) const {
    return slamb::host_backend::make_launcher(std::uint64_t{1} << 40U);
  }
  void spread(unsigned ways) { threads = ways; }
};

/// The emulated backend, with grids and orders of threads of several kinds.
struct emulated_grids : slamb::emulated_backend {
  void spread(unsigned ways) {
    using slamb::detail::cuda::thread_order;
    constexpr std::array orders{thread_order::forwards, thread_order::backwards, thread_order::interleaved};
    most_blocks = ways == 1 ? 1 : 3 * ways;
    order = orders[ways % orders.size()];
  }
};

/// The traffic of a communicator since the log was last cleared.
struct wire_log {
  std::vector<std::byte> sent;  // [ranks][message] of the first phase
  std::vector<std::byte> said;  // [ranks][message] of the second, of all ranks
};

/// Logs what is sent by all_to_all and received by all_gather.
class wire_tapping_communicator {
 public:
  wire_tapping_communicator(slamb::thread_communicator base, wire_log& log) : base_(std::move(base)), log_(&log) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) { base_.all_reduce_sum(values, stream); }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    log_->sent.assign(send.begin(), send.end());
    base_.all_to_all(send, receive, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    base_.all_gather(mine, all, stream);
    log_->said.assign(all.begin(), all.end());
  }

 private:
  slamb::thread_communicator base_;
  wire_log* log_;
};

/// The inputs of an exchange: tensors, ranks, gradients.
struct exchange_setup {
  model tensors;
  std::vector<float> variance{};  // [n] variance for zero-aware coding; empty: 1 everywhere
  int world = 1;
  bool on_single_rank = false;
  unsigned ways = 1;  // threads of the host; grids and orders of threads of the emulator
  std::vector<std::vector<std::vector<float>>> gradients{};  // [exchange][rank][n]
};

/// One exchange, as one rank saw it.
struct exchange_record {
  bool done = false;                // false: the exchange was skipped
  bool intact = false;              // true: only the allowed memory was written
  std::vector<float> result;        // [n]; `unwritten` where nothing was written
  std::vector<float> worker_error;  // [n], or empty
  std::vector<float> server_error;  // [codes] of this rank's chunk, or empty
  std::vector<std::byte> state;     // all bytes of the errors
  wire_log wire;
  slamb::traffic_counts traffic;
  std::uint64_t declared_bytes = 0;                           // of each phase
  std::vector<slamb::statistics::compression_type> measured;  // [groups]
  std::vector<double> worker_norm;                            // [groups]
};

using exchange_history = std::vector<std::vector<exchange_record>>;  // [exchange][rank]

inline constexpr float unwritten = -12345.5F;

/// Reads floats that were stored as float or as bfloat16.
template <class Storage>
std::vector<float> stored_floats(std::span<const std::byte> bytes) {
  std::vector<Storage> stored(bytes.size() / sizeof(Storage));
  if (!bytes.empty()) std::memcpy(stored.data(), bytes.data(), bytes.size());
  std::vector<float> values;
  values.reserve(stored.size());
  for (const Storage x : stored) {
    if constexpr (sizeof(Storage) == 2)
      values.push_back(slamb::detail::to_float(x));
    else
      values.push_back(x);
  }
  return values;
}

/// An exchange of some quantizer and error feedback, with `keep_the_mean`. Only this part of the rig is compiled for each
/// combination.
template <class Backend = eager_backend>
class any_exchange {
 public:
  using context_type = slamb::detail::optimizer_context<Backend>;

  any_exchange() = default;
  any_exchange(const any_exchange&) = delete;
  any_exchange& operator=(const any_exchange&) = delete;
  virtual ~any_exchange() = default;

  virtual void plan(context_type& base) = 0;
  virtual std::uint64_t buffer_bytes() const = 0;
  virtual void start(context_type& base, float* variance) = 0;
  virtual void find_active(context_type& base, float* variance) = 0;
  virtual void clear_errors(context_type& base) const = 0;
  /// Begins a step and sends. The exchange is measured.
  virtual void send(context_type& base, std::span<std::byte> buffer) = 0;
  virtual void receive(context_type& base, std::span<std::byte> buffer, slamb::detail::tile_range part) const = 0;
  virtual std::uint64_t declared_bytes(const context_type& base) const = 0;
  virtual const std::vector<slamb::statistics::compression_type>& measured() const = 0;
  virtual std::vector<double> worker_error(const context_type& base) const = 0;
  virtual void visit_state(const context_type& base, const slamb::detail::state_visitor& part) const = 0;
  virtual bool errors_are_narrow() const = 0;
};

template <class Quantizer, class ErrorFeedback, class Backend = eager_backend>
class exchange_of final : public any_exchange<Backend> {
 public:
  using typename any_exchange<Backend>::context_type;

  exchange_of(const Quantizer& quantizer, bool on_single_rank) : exchange_(quantizer, on_single_rank) {}

  void plan(context_type& base) override { exchange_.plan(base); }
  std::uint64_t buffer_bytes() const override { return exchange_.buffer_bytes(); }
  void start(context_type& base, float* variance) override { exchange_.start(base, with(variance), variance_type()); }
  void find_active(context_type& base, float* variance) override {
    exchange_.find_active(base, with(variance), variance_type());
  }
  void clear_errors(context_type& base) const override { exchange_.clear_errors(base); }
  void send(context_type& base, std::span<std::byte> buffer) override {
    exchange_.measure_next();
    base.invoke(slamb::detail::begin_step{base.record(), 1.0}, exchange_.message_initializer(base, buffer));
    exchange_.send(keep_the_mean{}, base, base.view(), buffer);
  }
  void receive(context_type& base, std::span<std::byte> buffer, slamb::detail::tile_range part) const override {
    exchange_.receive(keep_the_mean{}, base, base.view(), buffer, part);
  }
  std::uint64_t declared_bytes(const context_type& base) const override {
    return exchange_.is_active(base) ? exchange_.wire().all_message_bytes() : 0;
  }
  const std::vector<slamb::statistics::compression_type>& measured() const override { return exchange_.measured(); }
  std::vector<double> worker_error(const context_type& base) const override { return exchange_.worker_error(base); }
  void visit_state(const context_type& base, const slamb::detail::state_visitor& part) const override {
    exchange_.visit_state(base, part);
  }
  bool errors_are_narrow() const override {
    return sizeof(typename slamb::detail::error_storage<ErrorFeedback>::type) == sizeof(slamb::bfloat16);
  }

 private:
  using variance_type = slamb::detail::array::variance;
  static slamb::detail::state_view<slamb::detail::view_in<>, slamb::detail::arrays<variance_type>> with(
      float* variance) {
    return {{}, {variance}};
  }

  slamb::detail::quantized_exchange<Quantizer, ErrorFeedback, context_type> exchange_;
};

/// One rank of the exchange.
template <class Backend = eager_backend>
class exchanging_rank {
 public:
  exchanging_rank(const exchange_setup& setup, std::unique_ptr<any_exchange<Backend>> exchange,
                  slamb::thread_communicator communicator)
      : mine_(setup.tensors, std::vector<float>(total_size(setup.tensors), unwritten)),
        base_(mine_.parameters(), 0.0, 0,
              slamb::any_communicator<>(wire_tapping_communicator(std::move(communicator), log_)), backend(setup), {}),
        exchange_(std::move(exchange)) {
    plan_guard();
    exchange_->plan(base_);
    plan_guard();
    base_.plan_sums(2);
    base_.allocate(slamb::detail::consistency_check("exchanging_rank", setup.tensors.size()));
    for (const auto guard : guards_) std::ranges::fill(base_.memory.view(guard), mark);
    buffer_ = std::make_unique<guarded_bytes>(exchange_->buffer_bytes());
    set_variance(setup.variance);
    exchange_->start(base_, variance_.data());
  }

  exchange_record exchange(std::span<const float> gradient) {
    exchange_record now;
    mine_.set_values(std::vector<float>(gradient.size(), unwritten));
    mine_.set_gradient(gradient);
    std::ranges::fill(buffer_->bytes(), std::byte{0xFF});  // 0xFF…: NaN
    log_ = {};
    const slamb::traffic_counts before = base_.ranks.counts();
    base_.record()->taken = exchanges_++;  // skipped exchanges count as well
    exchange_->send(base_, buffer_->bytes());
    now.done = base_.record()->skip == 0;
    if (now.done) {
      const std::size_t tiles = base_.all_tiles().last;
      for (const slamb::detail::tile_range part :
           {slamb::detail::tile_range{0, tiles / 2}, slamb::detail::tile_range{tiles / 2, tiles}})
        exchange_->receive(base_, buffer_->bytes(), part);
    }
    base_.end_step();
    now.intact = is_intact();
    now.result = mine_.values();
    read_state(now);
    now.wire = std::move(log_);
    now.traffic = base_.ranks.counts() - before;
    now.declared_bytes = exchange_->declared_bytes(base_);
    now.measured = exchange_->measured();
    now.worker_norm = exchange_->worker_error(base_);
    return now;
  }

  /// Forgets the errors.
  void clear_errors() { exchange_->clear_errors(base_); }

  /// [n] sets the variance that zero-aware coding uses from now on.
  void change_variance(const std::vector<float>& variance) {
    set_variance(variance);
    exchange_->find_active(base_, variance_.data());
  }

  /// All memory of this rank with its guards. A test that corrupts it expects `intact` to become false.
  std::span<std::byte> raw_buffer() { return buffer_->bytes(); }
  std::span<std::byte> raw_memory() { return base_.memory.bytes(); }
  std::vector<std::span<std::byte>> raw_guards() {
    std::vector<std::span<std::byte>> all;
    for (const auto guard : guards_) all.push_back(base_.memory.view(guard));
    return all;
  }

  bool is_intact() {
    const auto is_marked = [](std::byte b) { return b == mark; };
    return mine_.intact() && buffer_->intact() && arena_->intact() &&
           std::ranges::all_of(guards_, [&](auto g) { return std::ranges::all_of(base_.memory.view(g), is_marked); });
  }

 private:
  static constexpr std::byte mark{0x5A};

  Backend backend(const exchange_setup& setup) {
    Backend made;
    made.spread(setup.ways);
    made.memory.allocate = [this](std::size_t bytes) {
      arena_ = std::make_unique<guarded_bytes>(bytes);
      return arena_->bytes().data();
    };
    made.memory.deallocate = [](void*, std::size_t) {};
    return made;
  }

  void plan_guard() { guards_.push_back(base_.memory.template plan<std::byte>("guard", 512)); }

  void set_variance(const std::vector<float>& variance) {
    variance_.resize(base_.tensors.state_elements());
    const std::span<const slamb::detail::segment> segments = std::as_const(base_.tensors).segments();
    for (const slamb::detail::segment& s : segments)
      for (std::uint64_t i = 0; i < s.size; ++i)
        variance_[s.state + i] = variance.empty() ? 1.0F : variance[s.first + i];
  }

  // Worker errors are at the places of their tensors' state, with zeros between tensors; otherwise `intact` becomes false.
  void read_state(exchange_record& now) {
    exchange_->visit_state(base_, [&](std::string_view name, std::span<std::byte> bytes, auto...) {
      if (name != "worker error" && name != "server error") return;
      now.state.insert(now.state.end(), bytes.begin(), bytes.end());
      std::vector<float> values =
          exchange_->errors_are_narrow() ? stored_floats<slamb::bfloat16>(bytes) : stored_floats<float>(bytes);
      if (name == "server error") now.server_error = std::move(values);
      if (name != "worker error" || bytes.empty()) return;
      for (const slamb::detail::segment& s : std::as_const(base_.tensors).segments()) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(s.state);
        now.worker_error.insert(now.worker_error.end(), first, first + static_cast<std::ptrdiff_t>(s.size));
        std::fill_n(first, s.size, 0.0F);
      }
      now.intact = now.intact && std::ranges::all_of(values, [](float x) { return x == 0.0F; });
    });
  }

  replica mine_;
  wire_log log_;
  std::unique_ptr<guarded_bytes> arena_;  // declared before the arena, so that it outlives it
  typename any_exchange<Backend>::context_type base_;
  std::vector<float> variance_;  // [state elements]
  std::unique_ptr<any_exchange<Backend>> exchange_;
  std::vector<slamb::detail::region<std::byte>> guards_;
  std::unique_ptr<guarded_bytes> buffer_;
  std::uint64_t exchanges_ = 0;
};

/// Runs all exchanges of a setup in order, on all ranks; make() constructs the exchange of each rank.
template <class Backend>
exchange_history run_exchanges(const exchange_setup& setup,
                               const std::function<std::unique_ptr<any_exchange<Backend>>()>& make) {
  exchange_history history(setup.gradients.size(), std::vector<exchange_record>(static_cast<std::size_t>(setup.world)));
  slamb::run_ranks(setup.world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    exchanging_rank<Backend> mine(setup, make(), std::move(communicator));
    for (std::size_t t = 0; t < history.size(); ++t) history[t][rank] = mine.exchange(setup.gradients[t][rank]);
  });
  return history;
}

}  // namespace test_support
