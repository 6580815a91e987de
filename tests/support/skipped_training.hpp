// Trainings by any recipe on either backend, with skipped steps or failing communicators. Each recipe is compiled once, behind
// one interface.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace test_support {

/// The call of a collective that fails, counted from the next one on.
struct failing_call {
  static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t number = none;
  bool has_sent = false;  ///< true: it fails after it has done its work
};

/// The calls of a rank so far, and the one that fails.
class planned_failure {
 public:
  void plan(const failing_call& next) {
    next_ = next;
    since_ = calls_;
  }
  void cancel() { next_ = {}; }

  std::uint64_t calls() const { return calls_; }
  /// True if the planned call has been made.
  bool has_failed() const { return next_.number != failing_call::none && calls_ - since_ > next_.number; }

  /// Makes a call.
  template <class Collective>
  void call(const Collective& collective) {
    const bool fails = next_.number != failing_call::none && calls_ - since_ == next_.number;
    ++calls_;
    if (!fails || next_.has_sent) collective();
    if (fails) throw slamb::communicator_error("failing_communicator: as it was told");
  }

 private:
  failing_call next_;
  std::uint64_t calls_ = 0;
  std::uint64_t since_ = 0;
};

/// Fails in the given call, on all ranks with the same setting, and works again afterwards.
class failing_communicator {
 public:
  failing_communicator(slamb::thread_communicator base, planned_failure& failing)
      : base_(std::move(base)), failing_(&failing) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }

  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    failing_->call([&] { base_.all_reduce_sum(values, stream); });
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    failing_->call([&] { base_.all_to_all(send, receive, stream); });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    failing_->call([&] { base_.all_gather(mine, all, stream); });
  }
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream stream) {
    failing_->call([&] { base_.broadcast(values, root, stream); });
  }

 private:
  slamb::thread_communicator base_;
  planned_failure* failing_;
};

using run_maker = std::function<made_optimizer(std::span<const slamb::parameter>, failing_communicator)>;

template <class Optimizer, class Backend>
run_maker run_maker_of(const typename Optimizer::options_type& options, const Backend& backend) {
  return [options, backend](std::span<const slamb::parameter> parameters, failing_communicator communicator) {
    return made_optimizer(Optimizer(parameters, options, std::move(communicator), backend));
  };
}

/// A recipe with its settings, on both backends.
struct skipping_recipe {
  std::string name;
  run_maker on_host;
  run_maker emulated;
  std::vector<std::size_t> silent_steps{};  ///< from 0: steps that call no collective, if there are several ranks
  bool keeps_part = false;             ///< a step that fails after its first collective has updated a part of the model
  bool averages = false;               ///< its steps may average parameters afterwards
  bool exchanges_differences = false;  ///< its steps exchange differences of parameters afterwards

  bool is_silent(std::size_t t, int world) const {
    return world > 1 && std::find(silent_steps.begin(), silent_steps.end(), t) != silent_steps.end();
  }
};

/// Bytes of a bucket of one tensor or a few, in steps in parts.
constexpr std::uint64_t small_bucket = 1000;

/// @tparam Optimizer  a template of the backend
template <template <class> class Optimizer>
skipping_recipe on_both(std::string name, const typename Optimizer<slamb::host_backend>::options_type& options) {
  static_assert(std::is_same_v<typename Optimizer<slamb::host_backend>::options_type,
                               typename Optimizer<slamb::emulated_backend>::options_type>);
  return {std::move(name), run_maker_of<Optimizer<slamb::host_backend>>(options, one_thread()),
          run_maker_of<Optimizer<slamb::emulated_backend>>(options, slamb::emulated_backend{})};
}

std::vector<skipping_recipe> skipping_lamb();
std::vector<skipping_recipe> skipping_slamb();
std::vector<skipping_recipe> skipping_one_bit();

inline std::vector<skipping_recipe> skipping_recipes() {
  std::vector<skipping_recipe> all = skipping_lamb();
  for (skipping_recipe& r : skipping_slamb()) all.push_back(std::move(r));
  for (skipping_recipe& r : skipping_one_bit()) all.push_back(std::move(r));
  return all;
}

/// Collects faults from the ranks' threads.
class complaints {
 public:
  void require(bool holds, const std::string& what) {
    if (holds) return;
    const std::lock_guard lock(mutex_);
    if (count_++ < 8) text_ += what + "; ";
  }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
  int count_ = 0;
};

/// One rank of a training, as passed to hooks.
struct rank_of_run {
  const experiment& e;
  std::size_t rank;
  replica& mine;
  made_optimizer& run;
  planned_failure& failing;
  complaints& wrong;
  slamb::thread_group& group;
  bool has_left = false;  ///< to be set by a rank that does not go on

  /// Sets the inputs of step t, from 0.
  void prepare(std::size_t t) {
    mine.set_gradient(e.gradients[t][rank]);
    run.set_mask(e.masks[t]);
  }
  /// Moves the optimizer to another address.
  void move_run() {
    made_optimizer elsewhere(std::move(run));
    run = std::move(elsewhere);
  }
  double rate(std::size_t t) const { return e.rates[t][0]; }
};

/// The result of a training.
struct outcome {
  trajectory values;
  std::vector<std::vector<std::byte>> states;  // [rank]
  std::vector<slamb::statistics> said;         // [rank], with norms
};

using rank_hook = std::function<void(rank_of_run& r, std::size_t t)>;

/// Trains. Calls `before` on each rank before each step. If `take` is given, it is called in place of the step.
inline outcome run_all(const experiment& e, const run_maker& make, complaints& wrong, const rank_hook& before = {},
                       const rank_hook& take = {}, const slamb::thread_options& threads = {}) {
  const auto ranks = static_cast<std::size_t>(e.world);
  outcome all{.values = trajectory(e.steps(), std::vector<std::vector<float>>(ranks)),
              .states = std::vector<std::vector<std::byte>>(ranks),
              .said = std::vector<slamb::statistics>(ranks)};
  slamb::thread_group group(e.world, threads);
  slamb::run_ranks(group, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    planned_failure failing;
    replica mine(e.tensors, e.start);
    made_optimizer run = make(mine.parameters(), failing_communicator(std::move(communicator), failing));
    rank_of_run r{e, rank, mine, run, failing, wrong, group};
    for (std::size_t t = 0; t < e.steps(); ++t) {
      if (before) before(r, t);
      r.prepare(t);
      if (take)
        take(r, t);
      else
        run.step(r.rate(t));
      if (r.has_left) return;
      all.values[t][rank] = mine.values();
      wrong.require(mine.intact(), "memory beside the parameters was written");
    }
    all.states[rank] = run.save_state();
    all.said[rank] = run.statistics(true);
  });
  return all;
}

/// Sets gradients and mask of another step than t, with a value on one rank that is not usable. In skipping_model() it is, over
/// several calls, in tensors that are compressed, exchanged dense, and of one element.
inline void set_overflow(rank_of_run& r, std::size_t t, std::size_t number) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr std::array unusable{std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 1e30F, -1e30F};
  constexpr std::size_t dense = 17 + 8193 + 33;  // the first element of the tensor that is not compressed
  const auto ranks = static_cast<std::size_t>(r.e.world);
  const std::size_t other = (t + 1) % r.e.steps();
  std::vector<float> gradient = r.e.gradients[other][r.rank];
  const std::array places{gradient.size() / 2, std::size_t{0}, dense + 5,
                          std::size_t{16},     dense + 15,     gradient.size() - 1};
  if (r.rank == (t + number) % ranks)
    gradient[places[(t + number) % places.size()] % gradient.size()] =
        unusable[(2 * t + number + ranks) % unusable.size()];
  r.mine.set_gradient(gradient);
  r.run.set_mask(r.e.masks[other]);
}

/// Calls a step that all ranks skip, with another rate than the step t.
inline void call_skipped_step(rank_of_run& r, std::size_t t, std::size_t number) {
  set_overflow(r, t, number);
  r.run.step(2.0 * r.rate(t));
}

/// A saved state without its hash and with the count of skipped steps cleared.
inline std::vector<std::byte> without_skips(std::vector<std::byte> state) {
  state.resize(state.size() - slamb::detail::state_hash_bytes);
  for (std::size_t at = slamb::detail::state_text_bytes + sizeof(slamb::detail::state_header); at < state.size();) {
    slamb::detail::part_header part;
    std::memcpy(&part, state.data() + at, sizeof(part));
    at += sizeof(part);
    if (part.name == slamb::detail::hash_of("skipped steps")) std::memset(state.data() + at, 0, part.bytes);
    at += slamb::detail::padded(part.bytes);
  }
  return state;
}

/// Tensors around the ends of tiles, small enough to be emulated often.
inline model skipping_model() {
  static constexpr std::uint8_t rows[] = {1, 0, 1, 1};
  model tensors{{17}, {0}, {8193}, {33, 1}, {15}, {1}, {40}};
  tensors[4].options.compress = false;
  tensors[6].options.rows = rows;
  return tensors;
}

}  // namespace test_support
