// The mean of gradients over ranks, by every compressor, without an update: for a framework's own optimizers. It is a recipe whose
// parameters are the place of the mean.
#include <array>
#include <slamb/compressed_lamb.hpp>
#include <slamb/kit.hpp>

#include "read.hpp"

namespace binding {

namespace {

namespace kit = slamb::kit;

template <class Compressor>
struct mean_options {
  double weight_decay = 0.0;  ///< unused
  bool skip_non_finite = true;
  bool compress_single_rank = false;
  slamb::rank_options ranks{.compare_every = 0};  ///< the place of the mean is no parameter, and may differ at first
  Compressor compressor{};
};

/// p ← the mean.
struct store_mean : kit::pass_without_constants {
  using reads = kit::arrays<kit::gradient>;
  using writes = kit::arrays<kit::parameter>;
  static constexpr int sums = 0;
  static constexpr bool follows_gradient = true;

  float scale;  ///< makes the gradient the mean

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& /*constants*/, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.parameter = e.gradient * Real(scale);
  }
};

template <class Compressor, class Backend>
class mean_recipe final : public kit::recipe_with_state<Backend, mean_options<Compressor>> {
  using base = kit::recipe_with_state<Backend, mean_options<Compressor>>;
  using base::context_, base::options_;

 public:
  using typename base::options_type;
  static constexpr const char* recipe_name = "mean of gradients";

  mean_recipe(std::span<const slamb::parameter> parameters, const options_type& options,
              typename base::ranks_type ranks, Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)),
        exchange_(options.compressor,
                  {.skip_non_finite = options.skip_non_finite, .on_single_rank = options.compress_single_rank}) {
    exchange_.plan(context_);
    context_.plan_sums(1);
    context_.allocate(kit::consistency_of(recipe_name, options, parameters.size()),
                      kit::byte_collectives_of<Compressor>);
    exchange_.start(context_);
    context_.enter_phase("mean");
  }

  slamb::statistics report(bool with_norms) override {
    slamb::statistics all = context_.report();
    exchange_.report(context_, with_norms, all);
    return all;
  }

 private:
  void begin() override { context_.begin_step(exchange_.scale(context_)); }
  bool exchange(const kit::gradient_bucket& bucket) override { return exchange_.exchange(bucket, context_); }
  void finish() override {
    if (!context_.is_skipped_on_host()) {
      const auto g = exchange_.receive(context_);
      context_.run(store_mean{{}, static_cast<float>(exchange_.scale(context_))}, g, context_.all_tiles());
    }
    context_.end_step();
  }

  kit::state_kind kind() const noexcept override { return kit::kind_of<mean_recipe>(); }
  void visit_state(const kit::state_visitor& part) override {
    base::visit_state(part);
    exchange_.visit_state(context_, part);
  }

  kit::gradient_exchange<Compressor, kit::feedback_for<Compressor>, kit::optimizer_context<Backend>> exchange_;
};

template <class Compressor>
slamb::optimizer make_mean(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                           const machine& m) {
  using optimizer = kit::optimizer_over<mean_recipe<Compressor, backend<>>, rank_communicator>;
  mean_options<Compressor> options;
  s.take("skip_non_finite", options.skip_non_finite);
  s.take("compress_single_rank", options.compress_single_rank);
  read_into(options.compressor, s);
  s.require_all_taken();
  return optimizer(tensors, options, std::move(ranks), backend<>{plain_backend_for(m), {.seed = m.seed}});
}

}  // namespace

std::span<const combination> mean_combinations() {
  static constexpr std::array<combination, 12> all{{{"none", "float32", make_mean<slamb::no_compressor>},
                                                    {"sign", "float32", make_mean<slamb::sign>},
                                                    {"four_levels", "float32", make_mean<slamb::four_levels>},
                                                    {"int8", "float32", make_mean<slamb::int8>},
                                                    {"int4", "float32", make_mean<slamb::int4>},
                                                    {"natural", "float32", make_mean<slamb::natural>},
                                                    {"bf16", "float32", make_mean<slamb::bf16>},
                                                    {"fp16", "float32", make_mean<slamb::fp16>},
                                                    {"random_k", "float32", make_mean<slamb::random_k<>>},
                                                    {"top_k", "float32", make_mean<slamb::top_k>},
                                                    {"random_k+int8", "float32", make_mean<random_k_int8>},
                                                    {"random_k+int4", "float32", make_mean<random_k_int4>}}};
  return all;
}

}  // namespace binding
