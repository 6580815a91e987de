"""The ways to train that are compared: an optimizer of slamb, or torch's AdamW with one of the hooks of DistributedDataParallel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

# slamb.torch is imported where it is called: examples/many_ranks has the methods of OWN without this package.
WEIGHT_DECAY = 0.01
NOT_SAVED = object()  # in place of what has a state


class Setup(NamedTuple):
    """What a method gets."""

    model: nn.Module
    lr: float
    steps: int  # of the whole training
    options: dict[str, Any]  # that replace those of the method


class Method:
    """A training's optimizer, and the module to call for the forward pass.

    :param saved: what has a state besides the optimizer, by state_dict() and load_state_dict(). NOT_SAVED: it cannot be saved
    :param sent_bytes: those that this rank has sent, as a bandwidth-optimal collective sends them
    """

    def __init__(
        self, forward: nn.Module, optimizer: torch.optim.Optimizer, sent_bytes: Callable[[int], float], saved: Optional[Any] = None
    ) -> None:
        self.forward = forward
        self.optimizer = optimizer
        self.sent_bytes = sent_bytes
        self.can_be_saved = saved is not NOT_SAVED
        self.saved = saved if self.can_be_saved else None

    def with_common_parameters(self, function: Callable[[], Any]) -> Any:
        """The function's result, with parameters that are equal on all ranks."""
        averaged = getattr(self.optimizer, "with_averaged_parameters", None)
        return averaged(function) if averaged is not None else function()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices, which decay, and vectors, which do not."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]


def _own(kind: str, settings: Callable[[int], dict[str, Any]], setup: Setup) -> Method:
    """An optimizer of slamb, which exchanges by itself."""
    import slamb.torch

    optimizer = getattr(slamb.torch, kind)(groups_of(setup.model), lr=setup.lr, **{**settings(setup.steps), **setup.options})
    return Method(setup.model, optimizer, lambda step: optimizer.statistics()["sent_bytes"])


def _ddp(
    average: Callable[[DistributedDataParallel, Setup], tuple[Any, Callable[[int], float]]],
    setup: Setup,
    bucket_cap_mb: Optional[int] = None,
) -> Method:
    """torch.optim.AdamW, whose gradients DistributedDataParallel averages.

    :param average: prepares the averaging; returns what has a state, and the bytes after a number of steps
    """
    options = {} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}
    # Buffers are constants here, and would be broadcast in every step.
    model = DistributedDataParallel(setup.model, broadcast_buffers=False, **options)
    hook, sent_bytes = average(model, setup)
    return Method(model, torch.optim.AdamW(groups_of(setup.model), lr=setup.lr, foreach=False), sent_bytes, hook)


def _ring_bytes(elements: float, size: int) -> float:
    """What a rank sends to average so many elements."""
    ranks = dist.get_world_size()
    return 2 * size * elements * (ranks - 1) / ranks


def _elements(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _dense(model: DistributedDataParallel, setup: Setup) -> tuple[Any, Callable[[int], float]]:
    _refuse_options(setup)
    return None, lambda step: step * _ring_bytes(_elements(model), 4)


def _fp16(model: DistributedDataParallel, setup: Setup) -> tuple[Any, Callable[[int], float]]:
    _refuse_options(setup)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return None, lambda step: step * _ring_bytes(_elements(model), 2)


def _refuse_options(setup: Setup) -> None:
    if setup.options:
        raise ValueError(f"--set: this method has no options, but {', '.join(setup.options)} was given")


def _power_sgd(model: DistributedDataParallel, setup: Setup) -> tuple[Any, Callable[[int], float]]:
    """Of rank 4, after dense gradients in a tenth of the steps.

    Its errors have the order of parameters in a bucket, which DistributedDataParallel changes after its first step. So they do not
    fit a training that continues. With Gloo, torch's hook fails if a model has several buckets, because ranks start the collectives
    of their buckets in different orders.
    """
    options = {"matrix_approximation_rank": 4, "start_powerSGD_iter": max(2, setup.steps // 10), **setup.options}
    state = powerSGD_hook.PowerSGDState(None, **options)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def sent_bytes(step: int) -> float:
        dense_steps = min(step, state.start_powerSGD_iter)
        _, _, compressed = state.compression_stats()
        return dense_steps * _ring_bytes(_elements(model), 4) + _ring_bytes(compressed, 4)

    return NOT_SAVED, sent_bytes


def _slamb_hook(model: DistributedDataParallel, setup: Setup) -> tuple[Any, Callable[[int], float]]:
    import slamb.torch

    hook = slamb.torch.compression_hook(**{"compressor": "int8", **setup.options})
    model.register_comm_hook(None, hook)
    return hook, lambda step: hook.statistics()["sent_bytes"]


def _warm_up(steps: int) -> int:
    return max(1, steps // 5)


def _dense_settings(steps: int) -> dict[str, Any]:
    return {}


def _slamb_settings(compressor: str, steps: int) -> dict[str, Any]:
    return {"compressor": compressor, "local_steps": 50}


def _slamb_by_differences_settings(steps: int) -> dict[str, Any]:
    return {"compressor": "random_k+int8", "parameter_sync": "four_levels"}


def _one_bit_adam_settings(steps: int) -> dict[str, Any]:
    return {"warm_up_steps": _warm_up(steps)}


def _one_bit_lamb_settings(steps: int) -> dict[str, Any]:
    return {"warm_up_steps": _warm_up(steps), "eps": 1e-6}


def _zero_one_adam_settings(steps: int) -> dict[str, Any]:
    """The variance is frozen when those of the 1-bit optimizers are. Intervals grow in proportion to the paper's training."""
    return {"variance_freeze_step": _warm_up(steps), "local_interval_scaler": math.ceil(steps * 32678 / 118000)}


# The methods by an optimizer of slamb: its class, and its settings in a training of so many steps.
OWN: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "adamw": ("AdamW", _dense_settings),
    "lamb": ("Lamb", _dense_settings),
    "slamb": ("Slamb", functools.partial(_slamb_settings, "random_k")),
    "slamb+int8": ("Slamb", functools.partial(_slamb_settings, "random_k+int8")),
    "slamb_by_differences": ("Slamb", _slamb_by_differences_settings),
    "one_bit_adam": ("OneBitAdam", _one_bit_adam_settings),
    "one_bit_lamb": ("OneBitLamb", _one_bit_lamb_settings),
    "zero_one_adam": ("ZeroOneAdam", _zero_one_adam_settings),
}
METHODS: dict[str, Callable[[Setup], Method]] = {
    "ddp": functools.partial(_ddp, _dense),
    "ddp+fp16": functools.partial(_ddp, _fp16),
    "ddp+powersgd": functools.partial(_ddp, _power_sgd, bucket_cap_mb=1000),
    "ddp+int8": functools.partial(_ddp, _slamb_hook),
    **{name: functools.partial(_own, *own) for name, own in OWN.items()},
}
