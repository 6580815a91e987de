// The error that names the difference between ranks, after their fingerprints have shown that there is one. A part of
// rank_agreement.ipp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"
#include "slamb/optimizer/detail/rank_agreement.hpp"

namespace slamb::detail {

/// This rank's state as it was when ranks were found to differ. Its parts are compared in an order in which each comparison makes
/// sense after the ones before it.
class difference_of_ranks {
 public:
  /// @param has_equal_parameters  true if all ranks must have the same parameters
  /// @param anchor                [state elements]; null: there is none
  difference_of_ranks(const optimizer_core& core, comparing_call call, bool has_equal_parameters, float* anchor)
      : core_(core),
        call_(call),
        has_equal_parameters_(has_equal_parameters),
        anchor_(anchor),
        record_(core.read(core.record())) {}

  /// Finds the first part in which ranks differ.
  /// @param has_half_step  becomes true if ranks had other values in a step that has been taken
  /// @throws rank_mismatch_error, on every rank; communicator_error, on every rank, if no part differs
  [[noreturn]] void find(const host_ranks& ranks, bool compares_parameters, bool& has_half_step) const {
    const summing_ranks all = ranks.all();
    require(all, &difference_of_ranks::describe_call);
    require_equal_gradients_of_copies(all);
    require_equal_local_steps(all, has_half_step);
    if (call_ == comparing_call::step) require(all, &difference_of_ranks::describe_rates);  // others have no rates
    if (call_ == comparing_call::step) {
      require(all, &difference_of_ranks::describe_gradients);
      require_gradients_of_parts(all);
    }
    require(all, &difference_of_ranks::describe_options);
    if (compares_parameters) {
      if (core_.ranks.local_size() > 1) require_equal_in_nodes(hashes_of_parameters(), ranks.in_node(), all);
      if (has_equal_parameters_) require(all, &difference_of_ranks::describe_parameters);
      if (core_.shards.has_equal_copies()) require_equal_copies(all);
    }
    require(all, &difference_of_ranks::describe_run);
    if (compares_parameters && anchor_ != nullptr) require(all, &difference_of_ranks::describe_anchor);
    require(all, &difference_of_ranks::describe_selection);
    require(all, &difference_of_ranks::describe_payload);
    require(all, &difference_of_ranks::describe_difference);
    throw communicator_error(
        "slamb: the states of all ranks agree, but the fingerprints that the Communicator returned do not: its "
        "collectives change the values that they carry");
  }

 private:
  static constexpr const char* of_one_run =
      "load states that were saved after the same step of the same run, on all ranks or on none";
  static constexpr const char* of_same_calls = "all ranks must make the same calls in the same order";
  static constexpr const char* of_collectives =
      "a collective of the Communicator has returned other bits on one rank than on another";
  static constexpr auto of_shard = consistency_check::among::same_shard;

  void require(const summing_ranks& ranks, void (difference_of_ranks::*describe)(consistency_check&) const) const {
    consistency_check fields("", 0);
    (this->*describe)(fields);
    fields.require(ranks);
  }

  void describe_call(consistency_check& fields) const {
    fields.add_word("the number of their step", record_.taken + 1, of_one_run);
    fields.add_hash("the call that they make", static_cast<std::uint64_t>(call_), of_same_calls);
    fields.add_hash("whether all ranks must have the same parameters now", has_equal_parameters_ ? 1 : 0,
                    of_same_calls);
  }
  void describe_rates(consistency_check& fields) const {
    const std::vector<double> of_group = core_.rates.read(core_.on(), core_.ranks);
    for (std::size_t i = 0; i < of_group.size(); ++i)
      if (core_.rates.has_tensors(i))
        fields.add_float("the learning rate of group " + std::to_string(i), static_cast<float>(of_group[i]),
                         "step() must be given the same learning rates on all ranks");
  }
  void describe_gradients(consistency_check& fields) const {
    for (std::size_t i = 0; i < core_.tensors.segments().size(); ++i) {
      const segment& s = std::as_const(core_.tensors).segments()[i];
      fields.add_word("the number of gradients of tensor " + std::to_string(i), s.has_gradient ? 1 : 0,
                      "a gradient must be null on all ranks or on none",
                      s.is_everywhere ? consistency_check::among::all_ranks : of_shard);
    }
  }
  void describe_options(consistency_check& fields) const {
    constexpr const char* remedy = "all ranks must change their options alike";
    for (const auto& [name, value] : core_.coefficients()) fields.add(name, value, remedy);
    for (std::size_t i = 0; i < core_.tensors.segments().size(); ++i)
      fields.add_float("the weight decay of tensor " + std::to_string(i),
                       std::as_const(core_.tensors).segments()[i].weight_decay, remedy);
  }
  void describe_parameters(consistency_check& fields) const {
    const std::vector<std::uint64_t> of_tensor = hashes_of_parameters();
    for (std::size_t i = 0; i < of_tensor.size(); ++i)
      fields.add_hash("the parameters of tensor " + std::to_string(i), of_tensor[i],
                      "start all ranks with the same parameters, for example by broadcast_parameters()", of_shard);
  }
  void describe_anchor(consistency_check& fields) const {
    const std::vector<std::uint64_t> of_tensor = hashes(fingerprint_of_anchor{});
    for (std::size_t i = 0; i < of_tensor.size(); ++i)
      fields.add_hash("the parameters of tensor " + std::to_string(i) + " after their last exchange", of_tensor[i],
                      of_collectives, of_shard);
  }
  void describe_selection(consistency_check& fields) const {
    const bool has_been_noted = record_.agreement.of(hashed_values::selection).is_of(record_.taken + 1);
    fields.add_hash(
        "the elements that the compressor selects",
        has_been_noted ? record_.agreement.of(hashed_values::selection).word : 0,
        "set the same mask for explicit_mask on all ranks; a sparsifier's selection must not depend on the rank",
        of_shard);
  }
  void describe_payload(consistency_check& fields) const {
    const bool has_been_noted = record_.agreement.of(hashed_values::payload).is_of(record_.taken);
    fields.add_hash("the values that they received in step " + std::to_string(record_.taken),
                    has_been_noted ? record_.agreement.of(hashed_values::payload).word : 0, of_collectives, of_shard);
  }
  void describe_run(consistency_check& fields) const {
    fields.add_hash("the history of their earlier steps", record_.agreement.run_hash,
                    "load states that were saved after the same step of the same run; if no state was loaded, a "
                    "collective of the Communicator has returned other bits on one rank than on another",
                    of_shard);
  }
  // For a step that a device has skipped some steps ago.
  void describe_difference(consistency_check& fields) const {
    fields.add_hash("the learning rates or the parameters of step " + std::to_string(record_.taken + 1) +
                        ", which has not been taken",
                    record_.agreement.diverged_fingerprint, "step() must be given the same learning rates on all ranks",
                    of_shard);
    fields.add_hash(
        "the learning rates or the options of step " + std::to_string(record_.taken + 1) + ", which has not been taken",
        record_.agreement.diverged_shard_hash, "step() must be given the same learning rates on all ranks");
  }

  // Of steps without an exchange, in which a shard group could not tell the others that its ranks differ.
  void require_equal_local_steps(const summing_ranks& all, bool& has_half_step) const {
    if (!core_.shards.exists()) return;
    const std::array<std::uint64_t, 2> own{record_.agreement.local_step, record_.agreement.diverged_shard_hash};
    const rank_table of_ranks(all, own);
    const auto shards = static_cast<std::size_t>(all.shards);
    for (std::size_t first = 0; first < static_cast<std::size_t>(all.size); first += shards) {
      const std::uint64_t step = of_ranks.sent_word(first, 0);
      if (step == 0) continue;
      has_half_step = true;
      std::size_t other = first;
      while (other < first + shards && of_ranks.sent_word(other, 1) == of_ranks.sent_word(first, 1)) ++other;
      synchronize_before_throwing(all);
      throw rank_mismatch_error(
          "slamb: ranks differ in the " +
          (other < first + shards ? "learning rates or the options of step " + std::to_string(step) + " (" +
                                        all.name_of(first) + " and " + all.name_of(other) + ")"
                                  : "gradients or the copies of tensors of step " + std::to_string(step) +
                                        " (those of " + all.name_of(first) + " and its shard group)") +
          ", a local step, which has been taken; give step() the same on all ranks, and load a saved state");
    }
  }

  // Of tensors of which some ranks have no elements, and do not know if others have a gradient.
  void require_gradients_of_parts(const summing_ranks& all) const {
    constexpr std::uint64_t has_none = 0, has_one = 1, has_no_elements = 2;
    std::vector<std::uint64_t> own;
    for (const std::size_t i : core_.shards.partly_held()) {
      const segment& s = std::as_const(core_.tensors).segments()[i];
      own.push_back(s.size == 0 ? has_no_elements : s.has_gradient ? has_one : has_none);
    }
    if (own.empty()) return;  // on all ranks
    const rank_table of_ranks(all, own, 1);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto first = [&](std::uint64_t word) {
        std::size_t r = 0;
        while (r < static_cast<std::size_t>(all.size) && of_ranks.sent_word(r, i) != word) ++r;
        return r;
      };
      const std::size_t with = first(has_one), without = first(has_none), none = static_cast<std::size_t>(all.size);
      if (with == none || without == none) continue;
      synchronize_before_throwing(all);
      throw rank_mismatch_error("slamb: ranks differ in the number of gradients of tensor " +
                                std::to_string(core_.shards.partly_held()[i]) + ": 1 on " + all.name_of(with) +
                                ", 0 on " + all.name_of(without) + "; a gradient must be null on all ranks or on none");
    }
  }

  // Of a step before this one.
  void require_equal_gradients_of_copies(const summing_ranks& all) const {
    if (!core_.shards.exists()) return;
    const std::uint64_t own = record_.agreement.other_gradient;
    const rank_table of_ranks(all, std::span(&own, 1), 2);
    const auto shards = static_cast<std::size_t>(all.shards);
    for (std::size_t r = 0; r < static_cast<std::size_t>(all.size); ++r) {
      const std::uint64_t found = of_ranks.sent_word(r, 0);
      if (found == 0) continue;
      const auto tensor = static_cast<std::size_t>(found - 1);
      synchronize_before_throwing(all);
      throw rank_mismatch_error("slamb: ranks differ in the gradient of tensor " + std::to_string(tensor) + " (" +
                                all.name_of(r / shards * shards + core_.shards.holder_of(r % shards, tensor)) +
                                " and " + all.name_of(r) +
                                "), although parameter::shard says that they have the same elements; add up the ranks' "
                                "parts of such a gradient before step()");
    }
  }

  // Tensors of which ranks of a shard group have the same elements.
  void require_equal_copies(const summing_ranks& all) const {
    const std::vector<std::uint64_t> own = hashes_of_parameters();
    const rank_table of_ranks(all, own);
    const auto shards = static_cast<std::size_t>(all.shards);
    for (std::size_t i = 0; i < own.size(); ++i)
      for (std::size_t r = 0; r < static_cast<std::size_t>(all.size); ++r) {
        const std::size_t holder = r / shards * shards + core_.shards.holder_of(r % shards, i);
        if (of_ranks.sent_word(r, i) == of_ranks.sent_word(holder, i)) continue;
        synchronize_before_throwing(all);
        throw rank_mismatch_error("slamb: ranks differ in the parameters of tensor " + std::to_string(i) + " (" +
                                  all.name_of(holder) + " and " + all.name_of(r) +
                                  "), although parameter::shard says that they have the same elements; give them equal "
                                  "values, and gradients that are equal on all of them");
      }
  }

  std::vector<std::uint64_t> hashes_of_parameters() const { return hashes(fingerprint_of_parameters{}); }
  // [tensors]
  std::vector<std::uint64_t> hashes(const model_pass& fingerprint) const {
    any_view model = core_.unskipped_view();
    model.compared = anchor_;
    core_.on().run(fingerprint, model, core_.all_tiles(), core_.sums());
    std::vector<std::uint64_t> of_tensor;
    core_.visit_sums(1, [&of_tensor](std::size_t /*i*/, const double* sum) { of_tensor.push_back(bits_of(*sum)); });
    return of_tensor;
  }

  const optimizer_core& core_;
  comparing_call call_;
  bool has_equal_parameters_;
  float* anchor_;
  step_record record_;
};

}  // namespace slamb::detail
