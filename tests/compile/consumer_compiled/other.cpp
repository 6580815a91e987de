#include <slamb/lamb.hpp>

slamb::optimizer made_elsewhere(std::span<const slamb::parameter> tensors);

slamb::optimizer made_elsewhere(std::span<const slamb::parameter> tensors) { return slamb::lamb<>(tensors); }
