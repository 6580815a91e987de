// 0/1 Adam with every quantizer.
#include <array>
#include <slamb/one_bit.hpp>

#include "one_bit.hpp"

namespace binding {

namespace {

template <class Options>
void read_zero_one_options(Options& o, settings& s) {
  read_zero_aware(o, s);
  s.take("variance_freeze_step", o.variance_schedule.freeze_step);
  s.take("variance_update_scaler", o.variance_schedule.update_scaler);
  s.take("local_interval_scaler", o.local_schedule.scaler);
  s.take("local_interval_clipper", o.local_schedule.clipper);
}

template <class Compressor>
slamb::optimizer make_zero_one(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                               const machine& m) {
  using optimizer = slamb::zero_one_adam<rank_communicator, Compressor, backend<>>;
  return make<optimizer, read_zero_one_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
}

}  // namespace

std::span<const combination> zero_one_adam_combinations() {
  static constexpr std::array<combination, 6> all{{{"sign", "float32", make_zero_one<slamb::sign>},
                                                   {"int8", "float32", make_zero_one<slamb::int8>},
                                                   {"int4", "float32", make_zero_one<slamb::int4>},
                                                   {"natural", "float32", make_zero_one<slamb::natural>},
                                                   {"bf16", "float32", make_zero_one<slamb::bf16>},
                                                   {"fp16", "float32", make_zero_one<slamb::fp16>}}};
  return all;
}

}  // namespace binding
