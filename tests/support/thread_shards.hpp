// Shard groups whose ranks are threads, models that are cut into shards, and their training.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace test_support {

using shards_of_threads = slamb::sharded_communicator<slamb::thread_communicator, slamb::thread_communicator>;

/// The place of a rank: its shard group, which is its rank among those that hold the same shard, and its shard.
struct shard_place {
  std::size_t replica = 0;
  std::size_t shard = 0;
};

/// The thread groups of several shard groups: one for each of them, and one for each shard across those that have it.
class thread_shards {
 public:
  /// @param sizes  [replicas] the number of ranks of each shard group
  explicit thread_shards(std::vector<int> sizes,
                         slamb::thread_options in_shards = {.timeout = std::chrono::seconds(60)},
                         slamb::thread_options between = {.timeout = std::chrono::seconds(60)})
      : sizes_(std::move(sizes)) {
    for (std::size_t replica = 0; replica < sizes_.size(); ++replica) {
      groups_.emplace_back(sizes_[replica], in_shards);
      for (int shard = 0; shard < sizes_[replica]; ++shard)
        places_.push_back({replica, static_cast<std::size_t>(shard)});
    }
    for (int shard = 0; shard < *std::max_element(sizes_.begin(), sizes_.end()); ++shard)
      exchanges_.emplace_back(replicas_with(shard, sizes_.size()), between);
  }
  /// `replicas` shard groups of `shards` ranks each.
  thread_shards(std::size_t shards, int replicas)
      : thread_shards(std::vector<int>(static_cast<std::size_t>(replicas), static_cast<int>(shards))) {}

  slamb::thread_group& shard_group(std::size_t replica) { return groups_[replica]; }
  slamb::thread_group& exchange(std::size_t shard) { return exchanges_[shard]; }
  std::size_t ranks() const { return places_.size(); }

  /// Calls body(communicator, place) on a thread for each rank; rethrows the first exception.
  template <class F>
  void run(const F& body) {
    slamb::run_ranks(static_cast<int>(places_.size()), [&](const slamb::thread_communicator& thread) {
      const shard_place at = places_[static_cast<std::size_t>(thread.rank())];
      const int shard = static_cast<int>(at.shard);
      body(shards_of_threads(exchanges_[at.shard].communicator(replicas_with(shard, at.replica)),
                             groups_[at.replica].communicator(shard)),
           at);
    });
  }

 private:
  /// The number of the first `replicas` shard groups that have this shard.
  int replicas_with(int shard, std::size_t replicas) const {
    return static_cast<int>(std::count_if(sizes_.begin(), sizes_.begin() + static_cast<std::ptrdiff_t>(replicas),
                                          [shard](int size) { return size > shard; }));
  }

  std::vector<int> sizes_;
  std::vector<shard_place> places_;
  std::deque<slamb::thread_group> groups_;     // [replicas]
  std::deque<slamb::thread_group> exchanges_;  // [shards]
};

/// The part of a tensor that one rank of a shard group holds: elements begin … end − 1.
struct held_part {
  std::size_t begin = 0;
  std::size_t end = 0;
  int shard = -1;  ///< as in slamb::parameter
};

using parts_of_tensor = std::vector<held_part>;  // [shards]
using cut_model = std::vector<parts_of_tensor>;  // [tensors]

/// Cuts a tensor at these places: rank s holds the elements from ends[s − 1], or 0, to ends[s] − 1.
inline parts_of_tensor cut_at(const std::vector<std::size_t>& ends) {
  parts_of_tensor parts;
  for (const std::size_t end : ends) parts.push_back({parts.empty() ? 0 : parts.back().end, end});
  return parts;
}

/// Each rank has the whole tensor.
inline parts_of_tensor replicated(std::size_t size, std::size_t shards) {
  return parts_of_tensor(shards, held_part{0, size, 0});
}

/// The tensor is cut into `parts` parts of about one size. Consecutive ranks hold copies of a part.
inline parts_of_tensor with_copies(std::size_t size, std::size_t shards, std::size_t parts) {
  parts_of_tensor all;
  for (std::size_t s = 0; s < shards; ++s) {
    const std::size_t part = s * parts / shards;
    all.push_back({size * part / parts, size * (part + 1) / parts, static_cast<int>(part)});
  }
  return all;
}

/// Cuts each tensor at random places, of which several may be one, so that shards are uneven and some are empty. Where `copies` is
/// set, every third tensor is replicated, and if there are four ranks some tensors have two copies of each half.
inline cut_model cut_anywhere(const model& tensors, std::size_t shards, std::uint64_t seed, bool copies = true) {
  random_source source(seed, 0xC7, shards);
  cut_model all;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    const std::size_t size = tensors[l].size;
    const std::uint64_t kind = source.below(6);
    if (copies && l % 3 == 2) {
      all.push_back(shards == 4 && l % 2 == 0 ? with_copies(size, shards, 2) : replicated(size, shards));
    } else if (kind == 0) {  // all of it on one rank
      const std::uint64_t owner = source.below(shards);
      std::vector<std::size_t> ends(shards, size);
      std::fill_n(ends.begin(), owner, std::size_t{0});
      all.push_back(cut_at(ends));
    } else {
      std::vector<std::size_t> ends;
      for (std::size_t s = 0; s + 1 < shards; ++s) ends.push_back(source.below(size + 1));
      ends.push_back(size);
      std::sort(ends.begin(), ends.end());
      all.push_back(cut_at(ends));
    }
  }
  return all;
}

inline std::size_t shards_of(const cut_model& cuts) { return cuts.at(0).size(); }

/// True if another rank holds the same part of the tensor.
inline bool has_copies(const parts_of_tensor& parts) {
  for (std::size_t s = 0; s < parts.size(); ++s)
    for (std::size_t other = 0; other < s; ++other)
      if (parts[s].shard >= 0 && parts[s].shard == parts[other].shard) return true;
  return false;
}

/// The tensors of one shard.
inline model shard_of(const model& tensors, const cut_model& cuts, std::size_t shard) {
  model its = tensors;
  for (std::size_t l = 0; l < its.size(); ++l) {
    its[l].size = cuts[l][shard].end - cuts[l][shard].begin;
    its[l].shard = cuts[l][shard].shard;
  }
  return its;
}

/// [n] the numbers of the elements of one shard, among all tensors end to end.
inline std::vector<std::size_t> elements_of(const model& tensors, const cut_model& cuts, std::size_t shard) {
  std::vector<std::size_t> all;
  std::size_t first = 0;
  for (std::size_t l = 0; l < tensors.size(); first += tensors[l++].size)
    for (std::size_t i = cuts[l][shard].begin; i < cuts[l][shard].end; ++i) all.push_back(first + i);
  return all;
}

/// [n] the values of these elements.
template <class T>
std::vector<T> taken(const std::vector<T>& values, const std::vector<std::size_t>& elements) {
  std::vector<T> all;
  if (values.empty()) return all;
  for (const std::size_t j : elements) all.push_back(values[j]);
  return all;
}

/// The experiment of the ranks that hold one shard, as if it were a model of its own. Tensors with copies are exchanged dense.
inline experiment alone(const experiment& e, const cut_model& cuts, std::size_t shard) {
  const std::vector<std::size_t> elements = elements_of(e.tensors, cuts, shard);
  experiment its = e;
  its.tensors = shard_of(e.tensors, cuts, shard);
  for (std::size_t l = 0; l < cuts.size(); ++l) {
    its.tensors[l].shard = -1;
    if (has_copies(cuts[l])) its.tensors[l].options.compress = false;
  }
  its.start = taken(e.start, elements);
  for (auto& ranks : its.gradients)
    for (std::vector<float>& gradient : ranks) gradient = taken(gradient, elements);
  for (std::vector<std::uint8_t>& mask : its.masks) mask = taken(mask, elements);
  return its;
}

/// One rank of a training in shards, as passed to hooks.
struct shard_rank {
  const experiment& e;
  shard_place at;
  const std::vector<std::size_t>& elements;  // [n] of this rank
  replica& mine;
  made_optimizer& run;
  std::vector<std::uint8_t> mask{};  // of the next step

  /// [n] this rank's part of its gradient.
  std::vector<float> gradient(std::size_t t) const { return taken(e.gradients[t][at.replica], elements); }
  /// Sets gradient and mask of step t, from 0.
  void prepare(std::size_t t) {
    mine.set_gradient(gradient(t));
    if (t >= e.masks.size()) return;
    mask = taken(e.masks[t], elements);
    run.set_mask(mask);
  }
};

using shard_hook = std::function<void(shard_rank& r, std::size_t t)>;

inline void take_step(shard_rank& r, std::size_t t) {
  r.prepare(t);
  r.run.step(r.e.rates[t]);
}

/// The parameters of each rank of a training in shards. Each rank has an array of its own.
class sharded_trajectory {
 public:
  sharded_trajectory(const experiment& e, const cut_model& cuts)
      : size_(total_size(e.tensors)), of_shard_(shards_of(cuts), place_of(e)) {
    for (std::size_t s = 0; s < of_shard_.size(); ++s) elements_.push_back(elements_of(e.tensors, cuts, s));
  }

  std::vector<float>& at(std::size_t t, shard_place place) { return of_shard_[place.shard][t][place.replica]; }
  trajectory& of_shard(std::size_t shard) { return of_shard_[shard]; }

  /// The parameters of whole tensors, by shard group. Fails if copies differ.
  trajectory whole() const {
    trajectory all(of_shard_[0].size(), std::vector<std::vector<float>>(of_shard_[0].at(0).size()));
    bool copies_agree = true;
    for (std::size_t t = 0; t < all.size(); ++t)
      for (std::size_t replica = 0; replica < all[t].size(); ++replica) {
        std::vector<float>& values = all[t][replica];
        values.assign(size_, 0.0F);
        for (std::size_t s = 0; s < elements_.size(); ++s)
          for (std::size_t i = 0; i < elements_[s].size(); ++i)
            values[elements_[s][i]] = of_shard_[s][t][replica].at(i);
        for (std::size_t s = 0; s < elements_.size(); ++s)
          copies_agree =
              copies_agree && same_bits(std::span<const float>(taken(values, elements_[s])), of_shard_[s][t][replica]);
      }
    CHECK(copies_agree);
    return all;
  }

 private:
  std::size_t size_;
  std::vector<std::vector<std::size_t>> elements_;  // [shards][n]
  std::vector<trajectory> of_shard_;                // [shards]
};

/// Trains on e.world shard groups. `take` takes the steps of each rank; parameters are kept after each.
template <class Backend>
sharded_trajectory train_each_shard(const experiment& e, const cut_model& cuts, const maker_on<Backend>& make,
                                    const Backend& backend, const shard_hook& take = take_step) {
  sharded_trajectory reached(e, cuts);
  std::atomic<bool> intact{true};
  thread_shards(shards_of(cuts), e.world).run([&](shards_of_threads communicator, shard_place at) {
    const std::vector<std::size_t> elements = elements_of(e.tensors, cuts, at.shard);
    replica mine(shard_of(e.tensors, cuts, at.shard), taken(e.start, elements));
    using ranks = slamb::any_communicator<typename Backend::stream_type>;
    made_optimizer run = make(mine.parameters(), ranks(std::move(communicator)), backend);
    shard_rank r{e, at, elements, mine, run};
    for (std::size_t t = 0; t < e.steps(); ++t) {
      take(r, t);
      reached.at(t, at) = mine.values();
      if (!mine.intact()) intact = false;
    }
  });
  CHECK(intact);
  return reached;
}

/// As above; returns the parameters of whole tensors, [step][replica][n].
template <class Backend>
trajectory train_in_shards(const experiment& e, const cut_model& cuts, const maker_on<Backend>& make,
                           const Backend& backend, const shard_hook& take = take_step) {
  return train_each_shard(e, cuts, make, backend, take).whole();
}
inline trajectory train_in_shards(const experiment& e, const cut_model& cuts, const optimizer_maker& make,
                                  const shard_hook& take = take_step) {
  return train_in_shards<slamb::host_backend>(e, cuts, make, one_thread(), take);
}

/// Trains each shard as if it were a model of its own, without sums over shards.
inline trajectory train_shards_alone(const experiment& e, const cut_model& cuts, const optimizer_maker& make) {
  sharded_trajectory reached(e, cuts);
  for (std::size_t s = 0; s < shards_of(cuts); ++s) reached.of_shard(s) = train(alone(e, cuts, s), make);
  return reached.whole();
}

/// The largest max |a − b| / max |b| of all steps and ranks.
inline double largest_difference(const trajectory& a, const trajectory& b) {
  double worst = 0.0;
  for (std::size_t t = 0; t < b.size(); ++t)
    for (std::size_t rank = 0; rank < b[t].size(); ++rank)
      worst = std::max(worst, max_relative_error(a.at(t).at(rank), b[t][rank]));
  return worst;
}

/// Masks of each step from the compressor, by the index of an element in its shard.
template <class Compressor>
void take_masks_in_shards(experiment& e, const cut_model& cuts, const Compressor& compressor) {
  for (std::size_t t = 0; t < e.steps(); ++t)
    for (std::size_t s = 0; s < shards_of(cuts); ++s) {
      const std::vector<std::size_t> elements = elements_of(e.tensors, cuts, s);
      const std::vector<std::uint8_t> mask = mask_of(compressor.at(t + 1), shard_of(e.tensors, cuts, s));
      for (std::size_t i = 0; i < elements.size(); ++i) e.masks[t][elements[i]] = mask[i];
    }
}

/// The experiment as an oracle sees it: tensors with copies are exchanged dense.
inline experiment with_dense_copies(experiment e, const cut_model& cuts) {
  for (std::size_t l = 0; l < cuts.size(); ++l)
    if (has_copies(cuts[l])) e.tensors[l].options.compress = false;
  return e;
}

}  // namespace test_support
