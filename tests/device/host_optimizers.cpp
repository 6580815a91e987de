// The recipes on the host backend, not compiled by nvcc.
#include "adapter.hpp"

namespace device_tests {
namespace {

using ranks = slamb::thread_communicator;

template <class Optimizer>
std::unique_ptr<optimizer> on_host(ingredients from) {
  typename Optimizer::backend_type backend{};
  backend.threads = 1;
  return std::make_unique<adapter<Optimizer>>(from.tensors, from.is_captured, std::get<ranks>(std::move(from.ranks)),
                                              backend);
}

}  // namespace

std::unique_ptr<optimizer> adamw_on_host(ingredients from) { return on_host<slamb::adamw<ranks>>(std::move(from)); }
std::unique_ptr<optimizer> lamb_on_host(ingredients from) { return on_host<slamb::lamb<ranks>>(std::move(from)); }
std::unique_ptr<optimizer> slamb_on_host(ingredients from) { return on_host<slamb::slamb<ranks>>(std::move(from)); }
std::unique_ptr<optimizer> slamb_int8_on_host(ingredients from) {
  return on_host<slamb::slamb<ranks, slamb::chain<slamb::random_k<>, slamb::int8>>>(std::move(from));
}
std::unique_ptr<optimizer> slamb_top_k_on_host(ingredients from) {
  return on_host<slamb::slamb<ranks, slamb::top_k>>(std::move(from));
}
std::unique_ptr<optimizer> slamb_by_differences_on_host(ingredients from) {
  return on_host<slamb::slamb_by_differences<ranks>>(std::move(from));
}
std::unique_ptr<optimizer> one_bit_adam_on_host(ingredients from) {
  return on_host<slamb::one_bit_adam<ranks>>(std::move(from));
}
std::unique_ptr<optimizer> one_bit_lamb_on_host(ingredients from) {
  return on_host<slamb::one_bit_lamb<ranks>>(std::move(from));
}
std::unique_ptr<optimizer> zero_one_adam_on_host(ingredients from) {
  return on_host<slamb::zero_one_adam<ranks>>(std::move(from));
}
std::unique_ptr<optimizer> lamb_in_eight_bits_on_host(ingredients from) {
  return on_host<lamb_in_eight_bits<ranks, slamb::host_backend>>(std::move(from));
}
std::unique_ptr<optimizer> one_bit_adam_from_bf16_on_host(ingredients from) {
  return on_host<one_bit_adam_from_bf16<ranks, slamb::host_backend>>(std::move(from));
}

}  // namespace device_tests
