"""The optimizers: the arguments and the descriptions of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional, Union

import torch

from slamb.torch import _arguments as check
from slamb.torch._arguments import Setting
from slamb.torch._optimizer import Optimizer


class AdamW(Optimizer):
    """AdamW. One pass over memory updates all parameters, on all cores. Several ranks average their gradients.

    In place of torch.optim.AdamW, FusedAdam (apex, DeepSpeed), and AdamW8bit (bitsandbytes; moments="8-bit").

    :param params: parameters, or parameter groups
    :param lr: learning rate
    :param betas: decay rates of the momentum and of the variance
    :param eps: added to the square root of the variance
    :param weight_decay: decoupled weight decay
    :param compressor: compresses the gradients that ranks exchange, with error feedback: "none", "bf16", "fp16", "int8", "int4",
        "four_levels", "sign", "natural", "random_k", "top_k", "random_k+int8" or "random_k+int4"
    :param process_group: the ranks that exchange. None: the default group of torch.distributed; a single rank if it is not
        initialized. With shards: the ranks that hold the same shard; None only if the shard group has all ranks
    :param shard_group: the ranks that hold one model together, each a part of it. None: found from the parameters; whole parameters
        need none
    :param exchange: False: ranks exchange nothing, because something else averages the gradients, such as
        DistributedDataParallel
    :param rounding: how parameters of 16 bits are updated: "nearest" updates a float32 copy and rounds it; "stochastic" keeps no
        copy and rounds at random
    :param moments: how momentum and variance are stored: "float32", "bf16-momentum" or "8-bit". The last two need
        compressor="none"
    :param threads: threads of a step. None: torch.get_num_threads()
    :param settings: less common arguments, with their defaults; None stands for the default:

        - max_gradient_norm (inf): clips by the norm of the mean gradient
        - skip_non_finite (True with several ranks, where it costs nothing; False for a single rank): all ranks skip a step if a
          gradient of any rank is not finite
        - bias_correction (True)
        - compare_every (100): steps between comparisons of the ranks' parameters; 0: never
        - check_gradients (True): the first step fails if all ranks have equal gradients
        - compress_single_rank (False): a single rank compresses too, to show the effect on a training
        - rounding_seed (0): of "stochastic"
        - of compressors: k, block and seed of random_k; k of top_k; seed and quantizer_block of int8 and int4; quantizer_block of
          four_levels; seed of natural; scales ("fused" or "per_tensor") of sign
    """

    _recipe = "adamw"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        compressor: str = "none",
        process_group: Optional["torch.distributed.ProcessGroup"] = None,
        shard_group: Optional["torch.distributed.ProcessGroup"] = None,
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, shard_group, exchange, rounding, moments, threads, {},
            settings,
        )


class Lamb(Optimizer):
    """LAMB: AdamW whose learning rate for each tensor is scaled by the trust ratio: the norm of the tensor over the norm of its
    update.

    In place of FusedLAMB (apex), FusedLamb (DeepSpeed), Lamb (timm), and LAMB8bit (bitsandbytes; moments="8-bit").
    docs/how-to/switch.md has their options.

    The arguments of `AdamW`, and these settings: trust_ratio_lower (0) and trust_ratio_upper (inf) bound the trust ratio;
    adapt_without_weight_decay (True): with False, tensors without weight decay have the trust ratio 1.

    Reference: arXiv 1904.00962
    """

    _recipe = "lamb"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        compressor: str = "none",
        process_group: Optional["torch.distributed.ProcessGroup"] = None,
        shard_group: Optional["torch.distributed.ProcessGroup"] = None,
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, shard_group, exchange, rounding, moments, threads, {},
            settings,
        )


class Slamb(Optimizer):
    """SLAMB: LAMB whose ranks exchange a part `k` of the momentum in each step. Elements that were not exchanged for longer move
    less.

    The arguments of `AdamW`, with these differences. compressor: "random_k", "top_k", "random_k+int8", "random_k+int4" or
    "random_k+sign". moments: other than "float32" only with "random_k".

    :param k: the part of the elements that ranks exchange in each step
    :param beta3: an element that was last exchanged a steps ago is discounted by beta3 ** a
    :param local_steps: ranks exchange their parameters every `local_steps` steps, and differ between; 0: never. None: 100, or 2
        if they exchange differences
    :param update_bound: the largest update of an element, in learning rates, before weight decay and the trust ratio. "adam": the
        largest that Adam could make, 7.27 after many steps. A number > 0. None: no bound, as in the paper; then an element moves
        far if other ranks have a gradient for it and this rank has had none, and the trust ratio stops the rest of its tensor
    :param settings: those of `AdamW` but skip_non_finite, which is always on; dense_below (9000): tensors with fewer elements,
        and all of one dimension, are exchanged completely; clip_locally (False): each rank clips by the norm of its own gradient;
        parameter_sync ("average"): how ranks keep their parameters together, see below; trust_ratio: "rescaled", the paper's, with
        "average", or "mean_step", LAMB's of the ranks' mean step, with differences; trust_ratio_lower (0.01; 0 with "mean_step")
        and trust_ratio_upper (1000; infinite with "mean_step")

    With parameter_sync="average" ranks exchange whole parameters. With "four_levels" they exchange differences from a common point,
    and their mean, in two bits each; with "int4" in four; with "sign" differences in one bit, and their mean in two. Then beta3 has
    no effect, unless trust_ratio="rescaled", which goes with "four_levels". Differences need compressor="random_k",
    "random_k+int8" or "random_k+int4", and float32 moments.

    Reference: PMLR 202:38801
    """

    _recipe = "slamb"
    _keeps_own_parameters = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        k: float = 0.1,
        beta3: float = 0.93,
        local_steps: Optional[int] = None,
        update_bound: Union[float, str, None] = "adam",
        compressor: str = "random_k",
        process_group: Optional["torch.distributed.ProcessGroup"] = None,
        shard_group: Optional["torch.distributed.ProcessGroup"] = None,
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        own: dict[str, Optional[Setting]] = {
            "k": k,
            "beta3": beta3,
            "local_steps": local_steps,
            "update_bound": check.bound("update_bound", update_bound),
        }
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, shard_group, exchange, rounding, moments, threads, own,
            settings,
        )


class OneBitAdam(Optimizer):
    """1-bit Adam: exchanges dense gradients during a warm-up; then freezes the variance and exchanges the momentum as signs and
    scales.

    In place of OnebitAdam of DeepSpeed, whose options are accepted; from_deepspeed() reads its configuration.

    The arguments of `AdamW`, with these differences. compressor: "sign", "int8", "int4", "natural", "bf16" or "fp16". moments:
    "float32".

    :param warm_up_steps: length of the warm-up; usually 15 to 25 % of a training. A variance that is frozen too early makes it
        diverge
    :param warm_up_threshold: in (0, 1]: ends the warm-up earlier: when the norm of the variance, divided by its norm
        `warm_up_interval` steps before, reaches this ratio, for example 0.96, but after more than `warm_up_least_steps`. None: only
        `warm_up_steps` counts
    :param update_bound: the largest update of an element, in learning rates, before weight decay and the trust ratio. "adam": the
        largest that Adam could make: 7.27 in the warm-up, and 7.27/sqrt(1 - beta2 ** T) after a warm-up of T steps. A number > 0.
        With a bound, an element that had no gradient in the warm-up begins a variance of its own at its first. None: no bound, as
        in the paper; then an element moves far if its gradients in the warm-up were zero or tiny
    :param settings: those of `AdamW` but skip_non_finite, which is always on, and bias_correction; zero_aware (True): signs leave
        out elements whose gradient was always zero in the warm-up; clip_locally (False): each rank clips by the norm of its own
        gradient; warm_up_least_steps (0); warm_up_interval (0: 1/(1 - beta2) steps)

    Reference: arXiv 2102.02888
    """

    _recipe = "one_bit_adam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        warm_up_steps: int = 1000,
        warm_up_threshold: Optional[float] = None,
        update_bound: Union[float, str, None] = "adam",
        compressor: str = "sign",
        process_group: Optional["torch.distributed.ProcessGroup"] = None,
        shard_group: Optional["torch.distributed.ProcessGroup"] = None,
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        own = {**_warm_up(warm_up_steps, warm_up_threshold), "update_bound": check.bound("update_bound", update_bound)}
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, shard_group, exchange, rounding, moments, threads, own,
            settings,
        )


class OneBitLamb(Optimizer):
    """1-bit LAMB: `OneBitAdam` whose learning rate for each tensor is scaled by a trust ratio, which is frozen with the variance.

    In place of OnebitLamb of DeepSpeed, whose options are accepted; from_deepspeed() reads its configuration.

    The arguments of `OneBitAdam`, and settings of the trust ratio: trust_ratio_lower (0.01), trust_ratio_upper (10),
    trust_ratio_average (0.9), trust_ratio_factor_lower (0.5), trust_ratio_factor_upper (4), trust_ratio_factor_change (0.1).

    Reference: arXiv 2104.06069
    """

    _recipe = "one_bit_lamb"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        warm_up_steps: int = 1000,
        warm_up_threshold: Optional[float] = None,
        update_bound: Union[float, str, None] = "adam",
        compressor: str = "sign",
        process_group: Optional["torch.distributed.ProcessGroup"] = None,
        shard_group: Optional["torch.distributed.ProcessGroup"] = None,
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        own = {**_warm_up(warm_up_steps, warm_up_threshold), "update_bound": check.bound("update_bound", update_bound)}
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, shard_group, exchange, rounding, moments, threads, own,
            settings,
        )


class ZeroOneAdam(Optimizer):
    """0/1 Adam: exchanges dense gradients in steps that become rarer, and signs in the others. After the variance is frozen, ranks
    take local steps, and exchange their sum as signs.

    In place of ZeroOneAdam of DeepSpeed, whose options are accepted; from_deepspeed() reads its configuration.

    The arguments of `OneBitAdam`, without the warm-up.

    :param variance_freeze_step: the variance is frozen after this step, and local steps begin
    :param variance_update_scaler: the interval between refreshes of the variance doubles after so many refreshes
    :param local_interval_scaler: the interval between exchanges doubles after so many steps
    :param local_interval_clipper: the largest interval between exchanges, in steps
    :param update_bound: as in `OneBitAdam`, with T the number of refreshes of the variance so far

    Reference: arXiv 2202.06009
    """

    _recipe = "zero_one_adam"
    _keeps_own_parameters = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        variance_freeze_step: int = 12500,
        variance_update_scaler: int = 16,
        local_interval_scaler: int = 32678,
        local_interval_clipper: int = 16,
        update_bound: Union[float, str, None] = "adam",
        compressor: str = "sign",
        process_group: Optional["torch.distributed.ProcessGroup"] = None,
        shard_group: Optional["torch.distributed.ProcessGroup"] = None,
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        own: dict[str, Optional[Setting]] = {
            "variance_freeze_step": variance_freeze_step,
            "variance_update_scaler": variance_update_scaler,
            "local_interval_scaler": local_interval_scaler,
            "local_interval_clipper": local_interval_clipper,
            "update_bound": check.bound("update_bound", update_bound),
        }
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, shard_group, exchange, rounding, moments, threads, own,
            settings,
        )


def _warm_up(steps: int, threshold: Optional[float]) -> dict[str, Optional[Setting]]:
    if threshold is not None and not 0.0 < check.number("warm_up_threshold", threshold) <= 1.0:
        raise ValueError(f"slamb: warm_up_threshold = {threshold!r}, but it must be in (0, 1], or None")
    return {"warm_up_steps": steps, "warm_up_threshold": threshold}
