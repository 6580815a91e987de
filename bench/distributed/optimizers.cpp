#include "optimizers.hpp"

#include "../../examples/common/usage_error.hpp"

namespace bench::distributed {

std::vector<measured_optimizer> all_optimizers() {
  std::vector<measured_optimizer> all;
  for (const auto part : {optimizers_of_floats(), optimizers_of_codes()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<std::string_view> optimizer_names() { return programs::names_of(all_optimizers()); }

measurement measure_optimizer(const scene& at, const std::string& name) {
  for (const measured_optimizer& each : all_optimizers())
    if (each.name == name) return each.measure(at, name);
  throw std::invalid_argument("no optimizer is named '" + name + "'");
}

}  // namespace bench::distributed
