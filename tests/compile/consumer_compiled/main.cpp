// A program of two sources on slamb::compiled.
#include <slamb/slamb.hpp>

#include <vector>

slamb::optimizer made_elsewhere(std::span<const slamb::parameter> tensors);

int main() {
  std::vector<float> here(100, 1.0F), there(100, 1.0F), gradient(100, 0.5F);
  const slamb::parameter own{.data = here.data(), .gradient = gradient.data(), .size = here.size()};
  const slamb::parameter other{.data = there.data(), .gradient = gradient.data(), .size = there.size()};
  slamb::optimizer first = slamb::lamb<>({&own, 1});
  slamb::optimizer second = made_elsewhere({&other, 1});
  for (int t = 0; t < 10; ++t) {
    first.step(0.01);
    second.step(0.01);
  }
  return here == there && here[0] < 1.0F ? 0 : 1;
}
