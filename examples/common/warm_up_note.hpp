// What slamb_train and slamb_plan say of a warm-up that lasts as long as the training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace programs {

/// A sentence that names the 1-bit optimizers among these, none of whose steps is compressed; empty if there are none, or if some
/// steps are compressed.
///
/// @param warm_up  steps of their warm-up, as the option of that name sets it
inline std::string warm_up_note(const std::vector<std::string>& optimizers, std::uint64_t warm_up,
                                std::string_view option, std::uint64_t steps) {
  if (warm_up < steps) return "";
  std::string names;
  for (const std::string& name : optimizers)
    if (name.starts_with("one_bit_")) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return "";
  return names + ": nothing will be compressed, for the warm-up of " + std::to_string(warm_up) + " steps (" +
         std::string(option) + ") is not shorter than the training of " + std::to_string(steps) +
         " (--steps); choose a shorter warm-up or a longer training";
}

}  // namespace programs
