// A note that slamb_train and slamb_plan print if a warm-up lasts as long as the training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace programs {

/// A sentence that names the 1-bit optimizers among `optimizers`, if none of their steps is compressed. Empty if there are no
/// 1-bit optimizers, or if some steps are compressed.
///
/// @param warm_up  steps of their warm-up, as set by the option named `option`
inline std::string warm_up_note(const std::vector<std::string>& optimizers, std::uint64_t warm_up,
                                std::string_view option, std::uint64_t steps) {
  if (warm_up < steps) return "";
  std::string names;
  for (const std::string& name : optimizers)
    if (name.starts_with("one_bit_")) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return "";
  return names + ": nothing will be compressed, because the warm-up of " + std::to_string(warm_up) + " steps (" +
         std::string(option) + ") is not shorter than the training of " + std::to_string(steps) +
         " (--steps); choose a shorter warm-up or a longer training";
}

}  // namespace programs
