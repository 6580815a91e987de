// The optimizers by name, with options as text. Names and options are those of the Python package (examples/pytorch).
#pragma once

#include <functional>
#include <slamb/core/parameter.hpp>
#include <slamb/optimizer/optimizer.hpp>
#include <span>
#include <string>

#include "device.hpp"

namespace many_ranks {

/// Makes the optimizer of one rank, over that rank's tensors. Each rank calls it on its own thread. The device must outlive it.
using optimizer_maker =
    std::function<slamb::optimizer(std::span<const slamb::parameter>, slamb::thread_communicator, const rank_device&)>;

/// @param name     such as "one_bit_lamb"
/// @param options  such as "warm_up_steps=20 update_bound=off"; update_bound is "adam", "off" or a number > 0
/// @throws std::invalid_argument for an unknown name, option or value; it says which are known
optimizer_maker maker_of(const std::string& name, const std::string& options);

}  // namespace many_ranks
