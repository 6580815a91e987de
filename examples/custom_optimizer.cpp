// An optimizer of one's own: Lion with a majority vote, one bit an element in each direction. arXiv 2404.00438, algorithm 1.
//
//     x_i = β1 m_i + (1−β1) g_i      Δ = sign(Σ_i sign(x_i))      p ← p − γ (Δ + λ p)      m_i ← β2 m_i + (1−β2) g_i
//
// docs/extend/optimizer.md walks through it. The vote is a quantizer, and m_i a state array that only this file knows.
//
//     cmake --preset examples && cmake --build --preset examples --target example_custom_optimizer
//     build/examples/bin/example_custom_optimizer
#include <slamb/kit.hpp>
#include <slamb/threads.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

namespace kit = slamb::kit;

/// A quantizer: a vote for + or −. The mean of the votes is encoded by the same rule: their majority; a tie is +.
struct vote {
  static constexpr int bits_per_element = 1;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::none;

  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    using slamb::select;
    using word = slamb::word_of<Real>;
    return select(x < Real(0.0F), word(0U), word(1U));
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& /*scale*/) const {
    using slamb::to_real;
    return to_real(code) * Real(2.0F) - Real(1.0F);
  }
};
static_assert(slamb::quantizer<vote>);

struct lion_options {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.0;  ///< in [0, 1), in [0, 1), ≥ 0
  slamb::rank_options ranks{};
  vote compressor{};
};

/// m_i: this rank's own momentum.
struct lion_momentum : kit::state_array {
  static constexpr const char* name = "lion momentum";
  template <class T>
  struct field {
    T lion_momentum;
  };
};

/// The pass around the exchange: it forms x_i, and then moves p and m_i.
struct lion_pass {
  using signal_reads = kit::arrays<kit::gradient, lion_momentum>;
  using reads = kit::arrays<kit::gradient, lion_momentum, kit::parameter>;
  using writes = kit::arrays<lion_momentum, kit::parameter>;
  static constexpr int sums = 0;
  static constexpr bool follows_gradient = true;  // leaves out tensors without a gradient

  kit::rate_tables tensors;
  float one_minus_beta1, one_minus_beta2;

  SLAMB_HOST_DEVICE kit::tensor_rate constants(std::uint32_t tensor) const { return tensors[tensor]; }

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, const kit::tensor_rate& /*tensor*/, Sums& results) const {
    results.check_finite(e.gradient);
    return kit::moved_towards(e.lion_momentum, e.gradient, one_minus_beta1);
  }
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const kit::tensor_rate& tensor, Sums& /*sums*/) const {
    using slamb::select;
    using Real = typename Element::real;
    const Real sign = select(e.exchanged < Real(0.0F), Real(-1.0F), Real(1.0F));
    e.parameter = e.parameter - Real(tensor.rate) * (sign + Real(tensor.weight_decay) * e.parameter);
    e.lion_momentum = kit::moved_towards(e.lion_momentum, e.gradient, one_minus_beta2);
  }
};

/// The recipe: the pass, before and after the exchange of the votes.
template <class Backend>
class lion_recipe final : public kit::recipe_with_state<Backend, lion_options, lion_momentum> {
  using base = kit::recipe_with_state<Backend, lion_options, lion_momentum>;
  using base::context_, base::options_, base::view;

 public:
  static constexpr const char* recipe_name = "lion";  // in saved states

  lion_recipe(std::span<const slamb::parameter> parameters, const lion_options& options,
              typename base::ranks_type ranks, Backend backend)
      : base(parameters, options, std::move(ranks), std::move(backend)), exchange_(options.compressor, false) {
    exchange_.plan(context_);
    buffer_ = context_.plan_buffer(exchange_.buffer_bytes());
    context_.allocate(kit::consistency_of(recipe_name, options, parameters.size()), kit::byte_collectives_of<vote>);
    exchange_.start(context_);
    context_.enter_phase("vote");
  }

 private:
  void begin() override { context_.begin_step(1.0, exchange_.message_initializer(context_, buffer())); }
  bool exchange(const kit::gradient_bucket& bucket) override {
    if (bucket.is_last) exchange_.send(pass(), context_, view(), buffer());
    return bucket.is_last;
  }
  void finish() override {
    if (!context_.is_skipped_on_host()) exchange_.receive(pass(), context_, view(), buffer(), context_.all_tiles());
    context_.end_step();
  }

  kit::state_kind kind() const noexcept override { return kit::kind_of<lion_recipe>(); }
  lion_pass pass() const {
    return {context_.tables(), static_cast<float>(1.0 - options_.beta1), static_cast<float>(1.0 - options_.beta2)};
  }
  std::span<std::byte> buffer() const { return context_.memory.view(buffer_); }

  kit::quantized_exchange<vote, slamb::no_error_feedback, kit::optimizer_context<Backend>> exchange_;
  kit::region<std::byte> buffer_;
};

template <class Communicator = slamb::self_communicator, class Backend = slamb::host_backend>
using lion = kit::optimizer_over<lion_recipe<Backend>, Communicator>;

#if !defined(__CUDACC__) && !defined(LION_WITHOUT_MAIN)
int main() {
  slamb::run_ranks(4, [](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::uint64_t>(ranks.rank());
    std::vector<float> w(10'000, 1.0F), g(w.size());
    const std::vector<slamb::parameter> tensors{{.data = w.data(), .gradient = g.data(), .size = w.size()}};
    lion<slamb::thread_communicator> optimizer(tensors, {}, std::move(ranks));
    for (std::uint64_t t = 1; t <= 400; ++t) {  // ½ ‖w‖², with noise in the gradients
      for (std::size_t i = 0; i < w.size(); ++i)
        g[i] = w[i] + static_cast<float>(slamb::philox(rank, t, i).word[0]) * 0x1p-31F - 1.0F;
      optimizer.step(1e-2 * (1.0 - static_cast<double>(t) / 400.0));
    }
    const auto bytes = static_cast<double>(optimizer.statistics().traffic.total().sent_bytes);
    if (rank == 0) std::printf("w[0] = %.3f, %.3f bytes per element and step\n", double{w[0]}, bytes / 4e6);
  });
}
#endif
