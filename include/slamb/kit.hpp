// The parts of which the library's optimizers are built, for authors of other optimizers. docs/extend/optimizer.md builds one.
//
// These names are stable; the headers in detail/ folders, from which they come, are not.
#pragma once

#include "slamb/core/config.hpp"  // first: checks the compiler's settings

#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/detail/exchange/norms.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/optimizer_context.hpp"
#include "slamb/optimizer/detail/optimizer_over.hpp"
#include "slamb/optimizer/detail/overlap.hpp"
#include "slamb/optimizer/detail/recipe_base.hpp"
#include "slamb/optimizer/detail/roles.hpp"
#include "slamb/optimizer/detail/settings.hpp"
#include "slamb/optimizer/detail/state_arrays.hpp"
#include "slamb/optimizer/detail/trial.hpp"

/// The parts of which an optimizer of your own is built.
namespace slamb::kit {

// The optimizer: a recipe, and the class that holds it and is an `optimizer`.
using detail::gradient_bucket;
using detail::optimizer_context;
using detail::optimizer_over;
template <class Backend>
using recipe_base = detail::recipe_on<Backend>;
using detail::recipe_with_state;

// Its options: checks, and the comparison of ranks.
using detail::consistency_check;
using detail::consistency_of;
using detail::require_decay_rate;
using detail::require_in;
using detail::require_non_negative;
using detail::require_positive;
using detail::validate_settings;

// Its state: arrays with a value for each element, other memory, and the saved parts.
using detail::arrays;
using detail::kind_of;
using detail::region;
using detail::state_array;
using detail::state_arrays;
using detail::state_kind;
using detail::state_part;
using detail::state_visitor;
using detail::stored_array;
using detail::array::exchanged;
using detail::array::gradient;
using detail::array::momentum;
using detail::array::parameter;
using detail::array::variance;

// Its passes over all elements.
using detail::adam_update;
using detail::moved_towards;
using detail::pass_without_constants;
using detail::rate_tables;
using detail::tensor_rate;
using detail::tile_range;
using detail::update_momentum;
using detail::update_variance;

// Its exchange: quantized signals, dense gradients, or gradients by any Compressor (with slamb/compressed_lamb.hpp).
using detail::byte_collectives_of;
using detail::dense_mean;
using detail::exchange_dense_gradient;
using detail::feedback_for;
using detail::gradient_exchange;
using detail::gradient_settings;
using detail::quantized_exchange;

}  // namespace slamb::kit
