// The common interface of all optimizers: the one type that a framework stores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/core/detail/call_scope.hpp"
#include "slamb/core/detail/process.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/learning_rates.hpp"

namespace slamb {

namespace detail {

/// The running call of an optimizer, if there is one. A second call at the same time would find tensors and buffers half written.
class running_call {
 public:
  /// @param call  a literal; its pointer is kept
  /// @throws std::logic_error while another call is running; nothing has changed then
  void begin(const char* call) {
    const char* other = nullptr;
    if (!name_.compare_exchange_strong(other, call, std::memory_order_acquire, std::memory_order_relaxed))
      reject(call, other);
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void end() noexcept {
    thread_.store(std::thread::id(), std::memory_order_relaxed);  // first: reject() must find no id of an ended call
    name_.store(nullptr, std::memory_order_release);
  }

 private:
  [[noreturn]] void reject(const char* call, const std::string& other) const {
    const std::string its = "slamb: " + std::string(call) + " was called ";
    if (thread_.load(std::memory_order_relaxed) == std::this_thread::get_id())
      throw std::logic_error(its + "within " + other +
                             " of the same optimizer, by a function that it calls, such as a collective of its "
                             "Communicator; call it when " +
                             other + " has returned");
    throw std::logic_error(its + "while " + other +
                           " of the same optimizer was running in another thread; "
                           "an optimizer takes one call at a time: wait until " +
                           other + " has returned");
  }

  std::atomic<const char*> name_{nullptr};
  std::atomic<std::thread::id> thread_{std::thread::id()};  // the thread of the running call
};

/// Options that may change between steps. Unset: as they are.
struct option_changes {
  std::optional<double> beta1{};    ///< in [0, 1)
  std::optional<double> beta2{};    ///< in [0, 1)
  std::optional<double> epsilon{};  ///< > 0
  std::span<const double>
      weight_decay{};  ///< [tensors] λ ≥ 0 of each tensor, in host memory, not kept; empty: as they are
};

/// The moments of one tensor, in the backend's memory.
struct tensor_moments {
  std::span<float> momentum{};        ///< [size] m
  std::span<float> variance{};        ///< [size] v
  std::span<float> fresh_variance{};  ///< [size] v_f of 1-bit LAMB; empty in the others
};

/// 1-bit LAMB's numbers of one tensor, besides its moments.
struct frozen_ratio {
  double mean_ratio = 0.0;    ///< c̄ ≥ 0: the average of the warm-up
  double factor = 1.0;        ///< f > 0 of the last compressed step
  double signal_scale = 1.0;  ///< z > 0
};

/// The states of 0/1 Adam's schedules exponential_variance_interval and doubling_local_interval.
struct past_intervals {
  std::uint64_t variance = 1;     ///< V
  std::uint64_t refreshes = 0;    ///< of v, since V was last doubled
  std::uint64_t local = 1;        ///< L
  std::uint64_t local_steps = 0;  ///< since L was last doubled
};

/// Steps that another program has taken.
struct past_steps {
  std::uint64_t taken = 0;  ///< steps in all
  /// 1-bit: v was frozen after so many steps, and what follows is compressed. Unset: the warm-up's schedule decides
  std::optional<std::uint64_t> warm_up{};
  std::span<const frozen_ratio>
      ratios{};  ///< [tensors] of 1-bit LAMB, in host memory, not kept; empty: of a new training
  std::optional<past_intervals> intervals{};  ///< of 0/1 Adam. Unset: those after `taken` steps from the start
};

/// The type-erased recipe that an `optimizer` holds.
class recipe : public bound_to_process {
 public:
  recipe() = default;
  recipe(const recipe&) = delete;
  recipe& operator=(const recipe&) = delete;
  virtual ~recipe() = default;

  /// A scope that must be alive in a thread that calls or destroys the recipe.
  virtual call_scope enter() const noexcept = 0;

  virtual void step(std::span<const double> rates_by_group) = 0;
  virtual void step(const device_learning_rates& rates) = 0;
  virtual void begin_step(std::span<const double> rates_by_group) = 0;
  virtual void begin_step(const device_learning_rates& rates) = 0;
  virtual void gradient_ready(std::size_t first, std::size_t count) = 0;
  virtual void finish_step() = 0;
  virtual void abandon_step() noexcept = 0;
  virtual void synchronize_parameters() = 0;
  virtual void broadcast_parameters(int root) = 0;
  virtual void compare_ranks() = 0;
  virtual void with_averaged_parameters(const std::function<void()>& evaluate) = 0;
  virtual void measure_next_step() {}
  virtual statistics report(bool with_norms) = 0;  // not const: a recipe may find the outcome of its last step first
  virtual memory_report memory() const = 0;
  virtual void save_state(const byte_sink& to, const save_options& options) = 0;
  virtual void load_state(const byte_source& from, const restore_options& options) = 0;
  virtual void set_gradient_scaling(const gradient_scaling& scaling) = 0;
  virtual tensor_moments moments(std::size_t tensor) const = 0;
  virtual void set_steps(const past_steps& past) = 0;
  virtual void set_options(const option_changes& changes) = 0;
  virtual void reload_parameters() = 0;
  virtual void set_parameters(std::span<const parameter::data_pointer> data,
                              std::optional<std::span<const parameter::gradient_pointer>> gradients) = 0;
  virtual void set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) = 0;
  virtual void set_gradients(std::span<const parameter::gradient_pointer> gradients) = 0;

 private:
  friend class recipe_call;
  running_call running_;
};

/// One call of a recipe. *Cost*: an atomic exchange.
class recipe_call {
  struct turn {
    running_call& running;

    turn(running_call& its, const char* call) : running(its) { running.begin(call); }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() { running.end(); }
  };

 public:
  /// @throws std::logic_error while another call is running; nothing has changed then
  recipe_call(recipe& its, const char* call) : turn_(its.running_, call), scope_(its.enter()), called_(&its) {}
  recipe* operator->() const noexcept { return called_; }

 private:
  turn turn_;  // first, so that it ends last
  call_scope scope_;
  recipe* called_;
};

}  // namespace detail

/// One rank's optimizer over its tensors. `lamb<>`, `slamb<>`, `one_bit_adam<>`, … derive from it, and can be moved into one by
/// programs that choose at run time: `slamb::optimizer any = slamb::lamb<>(parameters);`.
///
/// Movable; the state keeps its address. An optimizer that was moved from can be assigned to or destroyed; other calls throw
/// std::logic_error.
///
/// One call at a time, from any thread. A call during another one, from another thread or by a Communicator within the first,
/// throws std::logic_error that names both; nothing has changed then, and the first call continues. This includes `statistics`,
/// `memory`, `save_state` and `measure_next_step`. `options()`, `communicator()` and `compressor()` only return references, and
/// do not check. Moves, assignments and the destructor do not check either: as with any object, the caller must ensure that no
/// call is running.
///
/// It belongs to the process that constructed it. In a process that is forked from that one, all calls throw std::logic_error,
/// because threads and connections do not follow a fork. The destructor and assignments end at once there, without a wait, and
/// never free the memory of the copy.
///
/// On GPUs each call, and the destructor, makes the device of the construction current, and restores the caller's.
/// *Cost* of a call: an atomic exchange, and a look at the number of the process.
class optimizer {
 public:
  using gradient_scaling = detail::gradient_scaling;
  using option_changes = detail::option_changes;
  using tensor_moments = detail::tensor_moments;
  using frozen_ratio = detail::frozen_ratio;
  using past_intervals = detail::past_intervals;
  using past_steps = detail::past_steps;

  optimizer(optimizer&& other) noexcept : held_(std::move(other.held_)) { abandon_step(); }
  optimizer& operator=(optimizer&& other) noexcept {
    std::unique_ptr<detail::recipe> own = std::move(other.held_);  // first, for the other may be this one
    release();
    held_ = std::move(own);
    abandon_step();
    return *this;
  }
  virtual ~optimizer() { release(); }

  /// One step with one learning rate.
  /// @throws std::invalid_argument for a rate that is negative or not finite; std::logic_error between begin_step and
  ///         finish_step, or while another call is running; rank_mismatch_error, on every rank, if they have diverged;
  ///         communicator_error: with all state as it was, or, if an averaging of parameters failed, with the step taken and the
  ///         parameters averaged in part or not at all; if a norm over shards or the copies of a tensor failed, every
  ///         later call asks for a saved state
  void step(double learning_rate) { step(std::span<const double>(&learning_rate, 1)); }

  /// One step with a learning rate for each group. *Stream*: synchronous on the host.
  void step(std::span<const double> rates_by_group) { lock_call("step()")->step(rates_by_group); }

  /// One step with rates that are read from the backend's memory when the step runs. *Stream*: see `device_learning_rates`.
  /// @throws also std::logic_error from 0/1 Adam, whose schedules need the rates on the host
  void step(const device_learning_rates& rates) { lock_call("step()")->step(rates); }

  /// Begins a step in parts, for overlap with the computation of gradients:
  ///
  ///     optimizer.begin_step(learning_rate);
  ///     for (std::size_t tensor = tensors; tensor-- > 0;) {
  ///       compute_gradient_of(tensor);
  ///       optimizer.gradient_ready(tensor, 1);
  ///     }
  ///     optimizer.finish_step();
  ///
  /// All ranks must take a step in parts, or none, because `step` makes other collectives. Ready gradients must not change until
  /// finish_step has returned, which may read them again.
  ///
  /// The result has the bits of `step`, if the communicator's sums do not depend on the division of a payload. This holds for all
  /// communicators of this library except NCCL's. Tensors are exchanged in buckets of `ranks.bucket_bytes` of gradients, from the last
  /// tensor to the first, as soon as all gradients from there on are ready. This applies to dense gradients, and to SLAMB's
  /// selected momentum on the host. Quantized signals and data-dependent selections need all gradients first, so finish_step
  /// exchanges them, and also everything between nodes of several ranks.
  ///
  /// On the host the collectives run on a second thread, which the communicator must allow: MPI needs MPI_THREAD_MULTIPLE, or
  /// MPI_THREAD_SERIALIZED if nothing else calls it until finish_step. On CUDA they run on a second stream; cuda_mpi_communicator
  /// waits for its sends in gradient_ready. The first call makes this thread or stream. Moving or destroying an optimizer with an
  /// open step abandons the step, with all state as it was, and waits for its exchanges, at most as long as the communicator
  /// waits for peers.
  ///
  /// @throws as `step`, before any work; std::system_error if no thread can be started
  void begin_step(double learning_rate) { begin_step(std::span<const double>(&learning_rate, 1)); }
  void begin_step(std::span<const double> rates_by_group) { lock_call("begin_step()")->begin_step(rates_by_group); }
  void begin_step(const device_learning_rates& rates) { lock_call("begin_step()")->begin_step(rates); }

  /// Marks the gradients of tensors first … first + count − 1 as ready: computed, or on CUDA enqueued on the optimizer's stream.
  /// They must not change until finish_step has returned (on CUDA: until the stream has done the step). The order may differ
  /// between ranks.
  /// @throws std::logic_error without begin_step; std::invalid_argument for tensors that do not exist, or have been
  ///         ready before: nothing has changed then; communicator_error: the step is over, with all state as it was
  void gradient_ready(std::size_t first, std::size_t count) {
    lock_call("gradient_ready()")->gradient_ready(first, count);
  }

  /// Marks all remaining gradients as ready, and takes the step.
  /// @throws std::logic_error without begin_step; else as `step`: the step is over then
  void finish_step() { lock_call("finish_step()")->finish_step(); }

  /// Replaces parameters that differ between ranks by their mean: with SLAMB between averagings, where training continues from
  /// the mean, and in the local steps of 0/1 Adam, where the next step starts from this rank's parameters again. Otherwise it
  /// does nothing. For an evaluation during a training use with_averaged_parameters(), which changes nothing. Collective: every
  /// rank must call it. If parameters may differ, ranks first compare their steps.
  /// @throws rank_mismatch_error, on every rank, if they have diverged; communicator_error; std::logic_error after a load_state()
  ///         that has failed halfway
  void synchronize_parameters() { lock_call("synchronize_parameters()")->synchronize_parameters(); }

  /// Calls `evaluate` with the parameters of synchronize_parameters(), and then restores this rank's parameters, to the bit. So
  /// an evaluation does not change a training. If parameters are equal on all ranks, it only calls `evaluate`. Collective: every
  /// rank must call it. `evaluate` may read parameters; if they differ between ranks, its writes are lost. It must not call this
  /// optimizer (std::logic_error).
  ///
  /// @throws rank_mismatch_error, on every rank, if they have diverged: `evaluate` has not been called;
  ///         communicator_error, and the exceptions of `evaluate`: the rank's own parameters are restored then too;
  ///         out_of_memory, and communicator_error on all other ranks: all can continue; std::logic_error between begin_step and
  ///         finish_step, and while steps are captured
  /// *Memory*: if parameters may differ, 4 bytes a parameter from the backend's allocator, for the time of the call.
  /// *Cost*: the traffic of synchronize_parameters(), which is counted; before it, not counted, a sum of 16 floats by which ranks
  /// compare themselves, and a sum of one float for each rank, by which ranks tell each other that they have the memory.
  /// *Stream*: on a device `evaluate` is called before the mean is computed. It must enqueue its work behind it, on the
  /// optimizer's stream. Work that it enqueues elsewhere must be done when it returns.
  void with_averaged_parameters(const std::function<void()>& evaluate) {
    lock_call("with_averaged_parameters()")->with_averaged_parameters(evaluate);
  }

  /// Gives all ranks the parameters of rank `root`; with nodes, of the node's local rank 0. For use before the first step, if
  /// ranks have started from different parameters or one rank has read them from a file. The rest of the state stays as it is;
  /// local steps of 0/1 Adam continue from these parameters as their anchor. Collective: every rank must call it. Allocates up to
  /// 4 MiB of the backend's memory during the call. *Wire*: two short sums that compare the root, and a sum of one float per rank
  /// that confirms the memory; then one broadcast of all parameters. Without a broadcast of the Communicator: a sum over ranks,
  /// in pieces, in which −0 becomes 0.
  /// @throws std::invalid_argument, before any work, if there is no such rank; rank_mismatch_error, on every rank, if they name
  ///         different ones; std::logic_error between begin_step and finish_step
  ///         and while steps are captured; out_of_memory, and communicator_error on all other ranks: nothing has changed then;
  ///         communicator_error: parameters may have been replaced in part
  void broadcast_parameters(int root = 0) { lock_call("broadcast_parameters()")->broadcast_parameters(root); }

  /// Compares the ranks now, for any `ranks.compare_every`: their steps so far, and the parameters if the algorithm keeps them equal.
  /// For use before a checkpoint or at the end of a training. Collective: every rank must call it.
  /// @throws rank_mismatch_error, on every rank, that names the difference; communicator_error; std::logic_error between
  ///         begin_step and finish_step and while steps are captured
  /// *Cost*: a sum of 16 floats, and a pass over the parameters. Waits.
  void compare_ranks() { lock_call("compare_ranks()")->compare_ranks(); }

  /// Returns the statistics so far.
  /// @param with_norms  also computes the norms, at the cost of one pass over the model
  /// @throws on a device, the exceptions of the Communicator's `wait`, if a peer does not come; std::logic_error while steps are
  ///         captured
  ::slamb::statistics statistics(bool with_norms = false) const {
    return lock_call("statistics()")->report(with_norms);
  }
  /// Returns the optimizer's memory, by purpose.
  memory_report memory() const { return lock_call("memory()")->memory(); }

  /// Returns this rank's state for a checkpoint, without the parameters.
  /// @throws as `statistics`
  std::vector<std::byte> save_state() const {
    std::vector<std::byte> all;
    save_state(detail::appending_to(all));
    return all;
  }

  /// Passes the bytes of the state to `to` in pieces of at most 4 MiB, without a copy of all of them. `save_options` can add the
  /// parameters. `save_checkpoint` (slamb/checkpoint.hpp) writes a file.
  /// @throws the exceptions of `to`, and as `statistics`
  void save_state(const byte_sink& to, const save_options& options = {}) const {
    lock_call("save_state()")->save_state(to, options);
  }

  /// Continues from a saved state, with the parameters that belong to it. Options may differ; tensors and policies must be equal.
  /// Restores parameters that were saved with the state.
  /// @throws std::invalid_argument that names the mismatch, and as `statistics`; nothing has changed then
  void load_state(std::span<const std::byte> saved, const restore_options& options = {}) {
    load_state(detail::source_in(saved), options);
  }

  /// Restores in pieces: `from` is read twice, to check all of it before anything changes. `load_checkpoint` reads a file.
  /// @throws also the exceptions of `from`. If one occurs in the second reading, or bytes have changed since the first (error), a
  ///         part has been restored. Then steps, save_state(), synchronize_parameters(), with_averaged_parameters(),
  ///         broadcast_parameters(), compare_ranks() and set_steps() throw std::logic_error until a state has been loaded
  void load_state(const byte_source& from, const restore_options& options = {}) {
    lock_call("load_state()")->load_state(from, options);
  }

  /// Returns m and v of a tensor, its elements in their own order, and v_f of 1-bit LAMB. All are empty if the optimizer stores m
  /// or v in another type than float. A recipe that has only one of them returns the other one empty.
  ///
  /// They stay valid, at the same addresses, as long as the optimizer: also when it moves, and after load_state and
  /// set_parameters. Values that are written change the training from the next step on. So moments of another optimizer can be
  /// taken over, and its number of steps by set_steps():
  ///
  ///     std::ranges::copy(exp_avg, optimizer.moments(0).momentum.begin());
  ///     std::ranges::copy(exp_avg_sq, optimizer.moments(0).variance.begin());
  ///     optimizer.set_steps(steps);
  ///
  /// Write before set_steps: the 1-bit optimizers and 0/1 Adam find facts of a frozen variance only there and in load_state. Their
  /// v of an element that began late is stored as −v. All ranks must write the same values; only SLAMB has a v of each rank, and
  /// its m where it is not exchanged.
  /// @throws std::invalid_argument if there is no such tensor
  /// *Stream*: on a device the call does not wait. Read and write on the optimizer's stream, or when its steps are done.
  tensor_moments moments(std::size_t tensor) { return lock_call("moments()")->moments(tensor); }

  /// Continues as after `taken` steps, with the moments and the parameters as they are: bias corrections, schedules and the
  /// random numbers of the next step are those of step `taken` + 1. For moments that come from another optimizer.
  ///
  /// Continues as load_state does after it has restored a state. If fixed_warm_up is not longer than `taken`, compression
  /// begins at once, by the v that has been written. A warm-up that has ended does not begin again, nor does the first phase of
  /// 0/1 Adam. Local steps of 0/1 Adam begin at the present parameters if `taken` is beyond its first phase. 1-bit LAMB has no
  /// average of the trust ratio of steps that it has not taken itself. All ranks must make the same call; the next step compares
  /// them.
  /// @throws std::invalid_argument if `taken` is above 2^53; std::logic_error between begin_step and finish_step, while steps are
  ///         captured, or after a load_state() that failed halfway: nothing has changed then
  /// *Cost*: waits. 0/1 Adam follows its schedules from their start.
  void set_steps(std::uint64_t taken) { set_steps(past_steps{.taken = taken}); }

  /// Also continues with what 1-bit LAMB, 1-bit Adam or 0/1 Adam of another program has kept besides the moments. Write
  /// `moments().fresh_variance` before it, if `past.warm_up` and `past.ratios` are set; else v_f becomes v, and z follows from m.
  /// @throws also std::invalid_argument for a part that the optimizer does not have, or a value out of range: nothing has
  ///         changed then
  void set_steps(const past_steps& past) { lock_call("set_steps()")->set_steps(past); }

  /// Sets how the following steps scale gradients, until it is called again: g = factor · gradient / *loss_scale. Gradients are
  /// judged and clipped after they are scaled. Ranks may have different values.
  ///
  /// With torch.amp.GradScaler, `loss_scale` is its scale and `found_inf` is the cell in which it has counted overflows:
  ///
  ///     optimizer.set_gradient_scaling({.loss_scale = scale, .found_inf = found_inf});
  ///
  /// The pointers are in the backend's memory, and must stay valid until steps that use them are done; null: not used. A captured
  /// step reads the cells at each replay.
  /// @throws std::invalid_argument if `factor` is not a finite number > 0, or a cell is not memory of the optimizer's device;
  ///         std::logic_error in an open step: nothing has changed then
  void set_gradient_scaling(const gradient_scaling& scaling) {
    lock_call("set_gradient_scaling()")->set_gradient_scaling(scaling);
  }

  /// Changes options of the following steps, for schedules of β and of the weight decay. All ranks must make the same changes:
  /// the next step with an exchange finds a difference, as it does with learning rates.
  ///
  ///     optimizer.set_options({.beta1 = 0.85});
  ///
  /// The moments stay as they are. Bias corrections use the new β with the number of all steps, as torch.optim does.
  /// @throws std::invalid_argument for a value out of range, an option that the optimizer does not have, or weight decays and
  ///         tensors that differ in number; std::logic_error in an open step, or while steps are captured into a graph: nothing
  ///         has changed then
  /// *Stream*: β and ε act on the next call of a step, weight decays after all work that has been enqueued. Captured steps keep
  /// their β and ε.
  void set_options(const option_changes& changes) { lock_call("set_options()")->set_options(changes); }

  /// Takes over parameters of sixteen bits that something else than a step has written. Where the optimizer's own master copy,
  /// rounded, is not the parameter, the copy becomes the parameter; so do the exact parameters of sync::partition, of any type. Does
  /// nothing without such copies. The first step, the first after `load_state`, and `broadcast_parameters` do it themselves.
  /// @throws std::logic_error in an open step, while steps are captured into a graph, in the local steps of 0/1 Adam, or after a
  ///         step or a load_state() that failed halfway
  void reload_parameters() { lock_call("reload_parameters()")->reload_parameters(); }

  /// Sets the parameters of all tensors to other pointers, for frameworks that move them. The memory there must hold the
  /// parameters already. Master copies stay where they are.
  /// @param data  [tensors] pointers of the types that the tensors had, in the backend's memory; not kept
  /// @throws std::invalid_argument if they differ in number or type, are null or misaligned, or overlap other memory that steps
  ///         read or write; std::logic_error in an open step, or while steps are captured into a graph: nothing has changed then
  void set_parameters(std::span<const parameter::data_pointer> data) {
    lock_call("set_parameters()")->set_parameters(data, std::nullopt);
  }
  /// Sets the gradients too, for memory that parameters and gradients have exchanged.
  /// @param gradients  [tensors] as for `set_gradients`
  void set_parameters(std::span<const parameter::data_pointer> data,
                      std::span<const parameter::gradient_pointer> gradients) {
    lock_call("set_parameters()")->set_parameters(data, gradients);
  }

  /// Sets the gradient of a tensor to another pointer, in the backend's memory and of the tensor's size. With the Backend
  /// `precision::mixed` its type may change, also from step to step and on each rank: a float gradient of a tensor of sixteen bits
  /// is read as it is, and not rounded.
  /// Null: the following steps leave the tensor as it is, on all ranks: they must agree.
  /// @throws std::invalid_argument if there is no such tensor, or the gradient has a type that the Backend does not take, is
  ///         misaligned or overlaps memory that steps write; std::logic_error if the tensor is ready in an open step, or while
  ///         steps are captured into a graph: nothing has changed then
  void set_gradient(std::size_t tensor, const parameter::gradient_pointer& gradient) {
    lock_call("set_gradient()")->set_gradient(tensor, gradient);
  }

  /// Sets the gradients of all tensors, for frameworks that allocate gradients at each step. On CUDA this is one upload, instead
  /// of one for each tensor.
  ///
  /// It may be called while steps are captured into a graph. Steps that are captured after it read these gradients at each of
  /// their launches, whatever is set later. Later steps that are not captured read those of the last call, as ever. A tensor must
  /// have a gradient if it had one before the capture, and none if it had none.
  /// @param gradients  [tensors] pointers, in the order of the tensors; not kept
  /// @throws std::invalid_argument as `set_gradient`, also if gradients and tensors differ in number; std::logic_error if a tensor
  ///         is ready in an open step, and while steps are captured in an open step, for ranks in nodes, or for a tensor that had
  ///         a gradient before and has none now, or had none: nothing has changed then
  void set_gradients(std::span<const parameter::gradient_pointer> gradients) {
    lock_call("set_gradients()")->set_gradients(gradients);
  }
  void set_gradients(std::span<const float* const> gradients) {
    const std::vector<parameter::gradient_pointer> all(gradients.begin(), gradients.end());
    set_gradients(std::span<const parameter::gradient_pointer>(all));
  }

 protected:
  explicit optimizer(std::unique_ptr<detail::recipe> made) noexcept : held_(std::move(made)) {}

  /// @throws std::logic_error if it was moved from, or belongs to another process
  detail::recipe& recipe_or_throw(const char* call) const {
    if (held_ == nullptr)
      throw std::logic_error("slamb: " + std::string(call) +
                             " was called on an optimizer that was moved from; call the one that it was moved to");
    if (!held_->is_of_this_process())
      throw std::logic_error("slamb: " + std::string(call) +
                             " was called in a process that was forked from the one that constructed the optimizer; "
                             "the optimizer's threads and connections belong to that one: construct an optimizer in "
                             "this process, or start processes by spawn or exec");
    return *held_;
  }

  /// Begins a call, which ends with the returned object.
  /// @throws std::logic_error if it was moved from or belongs to another process, or while another call is running; nothing has
  ///         changed then
  detail::recipe_call lock_call(const char* call) const { return detail::recipe_call(recipe_or_throw(call), call); }

 private:
  void abandon_step() noexcept {
    if (held_ == nullptr || !held_->is_of_this_process()) return;
    const detail::call_scope scope = held_->enter();
    held_->abandon_step();
  }

  void release() noexcept {
    if (held_ == nullptr) return;
    if (!held_->is_of_this_process()) return held_.release()->abandon();
    const detail::call_scope scope = held_->enter();
    held_.reset();
  }

  std::unique_ptr<detail::recipe> held_;
};

}  // namespace slamb
