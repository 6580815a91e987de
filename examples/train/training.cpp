#include "training.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <slamb/threads.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "checkpoints.hpp"
#include "network.hpp"
#include "stored_tensors.hpp"

namespace train {

namespace {

// FNV-1a over the bytes of all parameters, as they are stored.
std::uint64_t hash_of(std::span<const slamb::parameter> parameters) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const slamb::parameter& p : parameters) {
    const std::size_t width = p.data.type() == slamb::parameter::float32 ? sizeof(float) : 2;
    for (const std::byte byte : std::span(static_cast<const std::byte*>(p.data.address()), p.size * width)) {
      hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3U;
    }
  }
  return hash;
}

evaluation evaluate(network& model, const digits& set) {
  using matrix = network::matrix;
  const auto rows = static_cast<Eigen::Index>(set.rows());
  return model.evaluate(Eigen::Map<const matrix>(set.pixels.data(), rows, pixels_per_image), set.labels);
}

// One rank's part of the batches: rows of its shard, copied into matrices of a fixed size.
class batches {
 public:
  batches(const task& work, std::size_t rank)
      : set_(work.data.training), sampler_(make_sampler(work, rank)), labels_(share(work.chosen.batch, work, rank)) {
    images_.resize(static_cast<Eigen::Index>(labels_.size()), pixels_per_image);
  }

  void next() {
    for (std::size_t i = 0; i < labels_.size(); ++i) {
      const std::size_t row = sampler_.next();
      std::ranges::copy(set_.image(row), images_.row(static_cast<Eigen::Index>(i)).data());
      labels_[i] = set_.labels[row];
    }
  }

  const network::matrix& images() const { return images_; }
  std::span<const int> labels() const { return labels_; }

 private:
  static std::size_t share(std::size_t count, const task& work, std::size_t rank) {
    const auto ranks = static_cast<std::size_t>(work.chosen.ranks);
    return first_of_rank(count, rank + 1, ranks) - first_of_rank(count, rank, ranks);
  }

  static batch_sampler make_sampler(const task& work, std::size_t rank) {
    const auto ranks = static_cast<std::size_t>(work.chosen.ranks);
    const std::size_t rows = work.data.training.rows();
    return {first_of_rank(rows, rank, ranks), first_of_rank(rows, rank + 1, ranks), engine_for(work.seed, 1 + rank)};
  }

  const digits& set_;
  batch_sampler sampler_;
  std::vector<int> labels_;
  network::matrix images_;
};

// Runs one rank to its end. The losses in its curve are this rank's share of the batch losses.
outcome train_rank(const task& work, const optimizer_maker& make_optimizer, rank_communicator communicator) {
  using clock = std::chrono::steady_clock;
  const auto rank = static_cast<std::size_t>(communicator.rank());
  network model(layer_widths, engine_for(work.seed, 0));  // equal on all ranks
  const std::unique_ptr<stored_tensors> stored = store(model, work.chosen);
  const float loss_scale = work.chosen.scale_of_loss();
  const std::unique_ptr<rank_optimizer> optimizer = make_optimizer(stored->parameters(), std::move(communicator));
  if (loss_scale != 1.0F) optimizer->set_loss_scale(&loss_scale);
  stored->load_parameters();
  const schedule_function learning_rate = make_schedule(work.chosen, work.learning_rate);
  batches own(work, rank);
  // The optimizer averages over ranks. With this divisor the result is the mean over the batch, however it is split.
  const double divisor = static_cast<double>(work.chosen.batch) / work.chosen.ranks;

  outcome result;
  if (rank == 0) result.untrained_loss = evaluate(model, work.data.training).loss;
  std::optional<rank_checkpoints> kept;
  if (!work.checkpoints.empty()) kept.emplace(work.checkpoints, static_cast<int>(rank), work.chosen.ranks);
  const auto say = rank == 0 ? work.say : nullptr;
  const std::uint64_t steps_before = kept && work.chosen.resume ? kept->go_on(*optimizer, result, say) : 0;
  stored->load_parameters();
  const slamb::statistics before = result.statistics;
  for (std::uint64_t step = 1; step <= steps_before; ++step) {
    own.next();  // repeats the draws of the steps before the checkpoint
    if (rank == 0) work.progress(step);
  }
  std::size_t phase = joined(before, optimizer->statistics()).phases.size() - 1;
  const double seconds_before = result.seconds;
  const auto start = clock::now();
  const auto seconds = [&] { return seconds_before + std::chrono::duration<double>(clock::now() - start).count(); };
  for (std::uint64_t step = steps_before + 1; step <= work.chosen.steps; ++step) {
    own.next();
    const double scaled_loss = model.compute_gradients(own.images(), own.labels(), divisor / loss_scale);
    stored->store_gradients();
    optimizer->step(learning_rate(step));
    stored->load_parameters();
    result.statistics = joined(before, optimizer->statistics());
    const slamb::traffic sent = result.statistics.traffic.total();
    result.curve.push_back({scaled_loss / loss_scale / work.chosen.ranks, sent.sent_bytes, sent.rounds, phase});
    phase = result.statistics.phases.size() - 1;  // of the next step
    if (kept && (step % work.chosen.checkpoint_interval() == 0 || step == work.chosen.steps)) {
      result.seconds = seconds();
      kept->keep(step, *optimizer, result);
    }
    if (rank == 0) work.progress(step);
  }
  optimizer->with_averaged_parameters([&] {
    result.seconds = seconds();
    stored->load_parameters();
    result.parameter_hash = hash_of(stored->parameters());
    if (rank != 0) return;
    result.final_loss = evaluate(model, work.data.training).loss;
    result.test_accuracy = evaluate(model, work.data.test).accuracy;
  });
  result.statistics = joined(before, optimizer->statistics());
  result.curve.back().sent_bytes = result.statistics.traffic.total().sent_bytes;
  result.curve.back().rounds = result.statistics.traffic.total().rounds;
  return result;
}

// Rank 0's outcome with the losses of all ranks added.
outcome combine(std::vector<outcome> ranks) {
  outcome& result = ranks.front();
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].parameter_hash != result.parameter_hash) {
      throw std::runtime_error("the ranks ended with different parameters");
    }
    for (std::size_t i = 0; i < result.curve.size(); ++i) result.curve[i].loss += ranks[rank].curve[i].loss;
  }
  return std::move(result);
}

}  // namespace

std::vector<outcome> run_threads(int ranks, const rank_body& body) {
  std::vector<outcome> outcomes(static_cast<std::size_t>(ranks));
  slamb::run_ranks(ranks, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    outcomes[rank] = body(rank_communicator(std::move(communicator)));
  });
  return outcomes;
}

outcome train(const task& work, const optimizer_maker& make_optimizer, const rank_runner& run_ranks) {
  outcome result = combine(run_ranks(work.chosen.ranks, [&](rank_communicator communicator) {
    return train_rank(work, make_optimizer, std::move(communicator));
  }));
  result.seed = work.seed;
  result.learning_rate = work.learning_rate;
  return result;
}

}  // namespace train
