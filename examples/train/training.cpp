#include "training.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <slamb/communicator/sharded_communicator.hpp>
#include <slamb/threads.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "checkpoints.hpp"
#include "model_shard.hpp"
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

// The network of one rank, and what the optimizer gets of it: its tensors, or the parts of them that are this rank's shard.
class rank_model {
 public:
  rank_model(const task& work, const rank_communicator& rank) : network_(layer_widths, engine_for(work.seed, 0)) {
    if (rank.shard_size() > 1) shard_.emplace(network_, rank.shard_rank(), rank.shard_size());
    stored_ = store(shard_ ? shard_->parameters() : network_.parameters(), work.chosen);
  }

  train::network& network() { return network_; }
  std::span<const slamb::parameter> parameters() const { return stored_->parameters(); }

  // Stores the gradients that the network has computed. Collective with shards, as the next one.
  void store_gradients(rank_optimizer& optimizer) {
    if (shard_) shard_->average_gradients(optimizer);
    stored_->store_gradients();
  }
  // Gives the network the parameters that the optimizer has updated.
  void load_parameters(rank_optimizer& optimizer) {
    stored_->load_parameters();
    if (shard_) shard_->gather_parameters(optimizer);
  }
  // Of the whole parameters, as they are stored. They have been loaded.
  std::uint64_t hash(const settings& chosen) {
    return hash_of(shard_ ? store(network_.parameters(), chosen)->parameters() : stored_->parameters());
  }

 private:
  train::network network_;  // equal on all ranks
  std::optional<model_shard> shard_;
  std::unique_ptr<stored_tensors> stored_;
};

// Of one rank within its shard group, in all steps.
slamb::traffic traffic_of_model(const settings& chosen) {
  slamb::traffic all;
  if (chosen.shards == 1) return all;
  const slamb::traffic of_step = model_shard::traffic_of_step(parameters_of_network(), chosen.shards);
  for (std::uint64_t step = 0; step < chosen.steps; ++step) all = all + of_step;
  return all;
}

// One rank's part of the batches: rows of its part of the data, copied into matrices of a fixed size.
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
    const auto ranks = static_cast<std::size_t>(work.chosen.all_ranks());
    return first_of_rank(count, rank + 1, ranks) - first_of_rank(count, rank, ranks);
  }

  static batch_sampler make_sampler(const task& work, std::size_t rank) {
    const auto ranks = static_cast<std::size_t>(work.chosen.all_ranks());
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
  const auto rank = static_cast<std::size_t>(rank_grid::number_of(communicator));
  rank_model model(work, communicator);
  network& computed = model.network();
  const float loss_scale = work.chosen.scale_of_loss();
  const std::unique_ptr<rank_optimizer> optimizer = make_optimizer(model.parameters(), std::move(communicator));
  if (loss_scale != 1.0F) optimizer->set_loss_scale(&loss_scale);
  model.load_parameters(*optimizer);
  const schedule_function learning_rate = make_schedule(work.chosen, work.learning_rate);
  batches own(work, rank);
  // Means are taken over all ranks. With this divisor the result is the mean over the batch, however it is split.
  const double divisor = static_cast<double>(work.chosen.batch) / work.chosen.all_ranks();

  outcome result;
  if (rank == 0) result.untrained_loss = evaluate(computed, work.data.training).loss;
  std::optional<rank_checkpoints> kept;
  if (!work.checkpoints.empty()) kept.emplace(work.checkpoints, static_cast<int>(rank), work.chosen.all_ranks());
  const auto say = rank == 0 ? work.say : nullptr;
  const std::uint64_t steps_before = kept && work.chosen.resume ? kept->go_on(*optimizer, result, say) : 0;
  model.load_parameters(*optimizer);
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
    const double scaled_loss = computed.compute_gradients(own.images(), own.labels(), divisor / loss_scale);
    model.store_gradients(*optimizer);
    optimizer->step(learning_rate(step));
    model.load_parameters(*optimizer);
    result.statistics = joined(before, optimizer->statistics());
    const slamb::traffic sent = result.statistics.traffic.total();
    result.curve.push_back({scaled_loss / loss_scale / work.chosen.all_ranks(), sent.sent_bytes, sent.rounds, phase});
    phase = result.statistics.phases.size() - 1;  // of the next step
    if (kept && (step % work.chosen.checkpoint_interval() == 0 || step == work.chosen.steps)) {
      result.seconds = seconds();
      kept->keep(step, *optimizer, result);
    }
    if (rank == 0) work.progress(step);
  }
  optimizer->with_averaged_parameters([&] {
    result.seconds = seconds();
    model.load_parameters(*optimizer);
    result.parameter_hash = model.hash(work.chosen);
    if (rank != 0) return;
    result.final_loss = evaluate(computed, work.data.training).loss;
    result.test_accuracy = evaluate(computed, work.data.test).accuracy;
  });
  result.statistics = joined(before, optimizer->statistics());
  result.curve.back().sent_bytes = result.statistics.traffic.total().sent_bytes;
  result.curve.back().rounds = result.statistics.traffic.total().rounds;
  result.of_model = traffic_of_model(work.chosen);
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

// [ranks]
std::vector<rank_communicator> whole_models(const rank_grid& grid) {
  slamb::thread_group all(grid.ranks);
  std::vector<rank_communicator> communicators;
  for (int rank = 0; rank < grid.ranks; ++rank) communicators.emplace_back(all.communicator(rank));
  return communicators;
}

// [ranks × shards]
std::vector<rank_communicator> shards_of_models(const rank_grid& grid) {
  std::vector<slamb::thread_group> of_shard, of_model;
  for (int shard = 0; shard < grid.shards; ++shard) of_shard.emplace_back(grid.ranks);
  for (int rank = 0; rank < grid.ranks; ++rank) of_model.emplace_back(grid.shards);
  std::vector<rank_communicator> communicators;
  for (int rank = 0; rank < grid.ranks; ++rank)
    for (int shard = 0; shard < grid.shards; ++shard)
      communicators.emplace_back(
          slamb::sharded_communicator(of_shard[static_cast<std::size_t>(shard)].communicator(rank),
                                      of_model[static_cast<std::size_t>(rank)].communicator(shard)));
  return communicators;
}

}  // namespace

std::vector<outcome> run_threads(const rank_grid& grid, const rank_body& body) {
  std::vector<outcome> outcomes(static_cast<std::size_t>(grid.size()));
  std::vector<rank_communicator> communicators = grid.shards == 1 ? whole_models(grid) : shards_of_models(grid);
  std::vector<std::exception_ptr> lost(outcomes.size());
  slamb::run_ranks(grid.size(), [&](const slamb::thread_communicator& thread) {
    const auto rank = static_cast<std::size_t>(thread.rank());
    try {
      outcomes[rank] = body(std::move(communicators[rank]));
    } catch (const slamb::communicator_error&) {  // the exception of the peer that failed says more, if there is one
      lost[rank] = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : lost)
    if (failure) std::rethrow_exception(failure);
  return outcomes;
}

outcome train(const task& work, const optimizer_maker& make_optimizer, const rank_runner& run_ranks) {
  outcome result = combine(run_ranks({work.chosen.ranks, work.chosen.shards}, [&](rank_communicator communicator) {
    return train_rank(work, make_optimizer, std::move(communicator));
  }));
  result.seed = work.seed;
  result.learning_rate = work.learning_rate;
  return result;
}

}  // namespace train
