// How kernels run on GPUs: the threads of a block, and the fewest blocks of a multiprocessor. Chosen by the registers that ptxas 13.0
// reports and by measurements on sm_80 and sm_90.
#pragma once

#include "slamb/detail/kernel/active.hpp"
#include "slamb/detail/kernel/choose.hpp"
#include "slamb/detail/kernel/parts.hpp"
#include "slamb/detail/kernel/place_payload.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/run_selected.hpp"
#include "slamb/detail/kernel/scales.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/kernel/two_phase.hpp"

namespace slamb::detail::cuda {

/// @tparam Threads       of a block: a multiple of 32, at most 1024
/// @tparam BlocksAtOnce  the fewest blocks that a multiprocessor must hold at once, which limits the registers of a thread; 0: the
///                       compiler chooses
template <unsigned Threads, unsigned BlocksAtOnce = 0>
struct tuned {
  static constexpr unsigned threads = Threads;
  static constexpr unsigned blocks_at_once = BlocksAtOnce;
};

template <class Kernel>
struct tuning : tuned<256> {};

/// With an array of bfloat16, ptxas takes up to 116 registers by itself, and a multiprocessor then holds one block; 2 blocks allow 64.
template <class Pass, class Precision>
struct tuning<run_pass<Pass, Precision>> : tuned<512, Precision::arrays::has_sixteen_bits ? 2 : 0> {};
/// As receive_mean, whose work it does with one rank. With 512 threads ptxas aims at 64 registers for sm_80, and spills.
template <class Pass, class Precision>
struct tuning<run_pass<pass_with_own_signal<Pass>, Precision>> : tuned<256, 3> {};

/// 4 blocks allow 64 registers a thread. Without a limit, ptxas spills for sm_100; with 48, for sm_80.
template <class Pass, class Selection, class Precision>
struct tuning<run_selected<Pass, Selection, Precision>> : tuned<256, 4> {};

template <encode_mode Work, class Storage, class Pass, class Quantizer, class Precision>
struct tuning<send_signal<Work, Storage, Pass, Quantizer, Precision>> : tuned<512> {};
/// For a mean with scales of blocks, and for signals with announcements, ptxas aims at three blocks of threads, and spills; two
/// allow 64 registers.
template <encode_mode Work, class Storage, class Quantizers>
struct tuning<average_signals<Work, Storage, Quantizers>>
    : tuned<512, scale_traits<mean_quantizer_t<Quantizers>>::has_blocks || can_announce<signal_quantizer_t<Quantizers>>
                     ? 2
                     : 0> {};
/// With 512 threads, ptxas spills for sm_80. 3 blocks allow 85 registers a thread. Without a limit ptxas aims at 64 for sm_80, and
/// spills.
template <class Storage, class ServerStorage, class Pass, class Quantizers, class Precision>
struct tuning<receive_mean<Storage, ServerStorage, Pass, Quantizers, Precision>> : tuned<256, 3> {};
/// 2 blocks allow 128 registers a thread. By itself ptxas aims at fewer for sm_90, and spills.
template <class Storage, class Pass, class Quantizer, class Precision>
struct tuning<measure_error<Storage, Pass, Quantizer, Precision>> : tuned<256, 2> {};

template <class Quantizer>
struct tuning<average_parts<Quantizer>> : tuned<256, 2> {};
template <class Storage, class Pass, class Quantizer, class Precision>
struct tuning<keep_worker_error<Storage, Pass, Quantizer, Precision>> : tuned<256, 2> {};

template <class Selection>
struct tuning<place_tiles_directly<Selection>> : tuned<place_tiles_directly<Selection>::tiles_of_team> {};
template <>
struct tuning<add_up_counts> : tuned<1024> {};
template <class Quantizer>
struct tuning<finish_scales<Quantizer>> : tuned<512> {};
template <int Sums, int Maxima, class Finish>
struct tuning<finish_segments<Sums, Maxima, Finish>> : tuned<128> {};
template <>
struct tuning<add_up> : tuned<512> {};
template <class Call>
struct tuning<invoke_functions<Call>> : tuned<32> {};

}  // namespace slamb::detail::cuda
