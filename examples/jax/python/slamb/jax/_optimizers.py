"""The optimizers, with their options."""

from __future__ import annotations

import math
from typing import Callable, Literal, Optional, Union

import jax
import numpy as np

from slamb.jax._step import Learning, Mask, Optimizer, Settings, integer_in

Bound = Union[None, float, Literal["adam"]]
FLOAT32 = np.finfo(np.float32)
COMPRESSORS = (None, "sign", "int8", "int4")


def adamw(
    learning_rate: Learning,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    weight_decay: float = 0.01,
    mask: Mask = None,
    compressor: Optional[str] = None,
    axis_name: Optional[str] = "ranks",
    compress: Mask = None,
    max_gradient_norm: Optional[float] = None,
    seed: int = 0,
    threads: int = 1,
) -> Optimizer:
    """AdamW, for ranks that exchange their gradients dense or compressed.

    :param learning_rate: a number, an array of one, or a function of the number of steps so far, as the schedules of optax are
    :param weight_decay: decoupled; optax has 1e-4 for AdamW and 0 for LAMB
    :param mask: which tensors have weight decay: a tree of bools like the parameters, or a function of the parameters that returns
        one; None: all
    :param compressor: "sign" (1 bit an element), "int4", "int8", or None for floats. A single rank compresses nothing
    :param axis_name: the axis of the mesh whose devices are the ranks; None: one rank, without `jax.shard_map`
    :param compress: which tensors are compressed, like `mask`; the others are exchanged as floats
    :param max_gradient_norm: gradients are scaled down to this norm of their mean over ranks; None: not at all
    :param seed: of the stochastic rounding of int8 and int4
    :param threads: threads of each rank
    :raises ValueError, TypeError: names the argument, and what would be right
    """
    return _make("adamw", locals())


def lamb(
    learning_rate: Learning,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    *,
    weight_decay: float = 0.01,
    mask: Mask = None,
    compressor: Optional[str] = None,
    axis_name: Optional[str] = "ranks",
    adapt: Mask = None,
    compress: Mask = None,
    max_gradient_norm: Optional[float] = None,
    seed: int = 0,
    threads: int = 1,
) -> Optimizer:
    """LAMB, for ranks that exchange their gradients dense or compressed. The arguments are those of `adamw`, and

    :param adapt: which tensors have a trust ratio, like `mask`; of the others it is 1
    """
    return _make("lamb", locals())


def one_bit_adam(
    learning_rate: Learning,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    weight_decay: float = 0.01,
    mask: Mask = None,
    warm_up_steps: int,
    axis_name: Optional[str] = "ranks",
    compress: Mask = None,
    update_bound: Bound = "adam",
    threads: int = 1,
) -> Optimizer:
    """1-bit Adam: dense gradients in the warm-up; then the variance is frozen, and ranks exchange the signs of their momenta. There is no
    bias correction. The arguments are those of `adamw`, and

    :param warm_up_steps: steps of the warm-up, usually 15 to 25 % of all
    :param update_bound: the largest update of an element in one step, in learning rates, before weight decay and the trust ratio;
        "adam": the largest that Adam could make; None: no bound
    """
    return _make("one_bit_adam", locals())


def one_bit_lamb(
    learning_rate: Learning,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    weight_decay: float = 0.01,
    mask: Mask = None,
    warm_up_steps: int,
    axis_name: Optional[str] = "ranks",
    adapt: Mask = None,
    compress: Mask = None,
    update_bound: Bound = "adam",
    threads: int = 1,
) -> Optimizer:
    """1-bit LAMB: 1-bit Adam with a trust ratio, which is frozen after the warm-up and corrected by a fresh variance. The arguments are
    those of `one_bit_adam` and `adapt` of `lamb`."""
    return _make("one_bit_lamb", locals())


def _make(recipe: str, arguments: dict) -> Optimizer:
    compressor = arguments.get("compressor", "sign")
    if compressor not in COMPRESSORS:
        raise ValueError(f"compressor is {compressor!r}, but it must be one of {COMPRESSORS}")
    learning_rate = arguments["learning_rate"]
    if not callable(learning_rate) and not isinstance(learning_rate, jax.Array):
        _require("learning_rate", learning_rate, "a finite float32 ≥ 0, or a function of the number of steps", lambda x: x >= 0)
    for name in ("b1", "b2"):
        _require(name, arguments[name], "in [0, 1)", lambda x: 0 <= x < 1)
    _require("eps", arguments["eps"], "a float32 of at least 1.2e-38", lambda x: x >= FLOAT32.tiny)
    _require("weight_decay", arguments["weight_decay"], "a finite float32 ≥ 0", lambda x: x >= 0)
    norm = arguments.get("max_gradient_norm")
    if norm is not None:
        _require("max_gradient_norm", norm, "a finite float32 > 0, or None for no clipping", lambda x: x > 0)
    bound = arguments.get("update_bound")
    if bound is not None and bound != "adam":
        _require("update_bound", bound, "a finite float32 > 0, or 'adam', or None for no bound", lambda x: x > 0)
    axis_name = arguments["axis_name"]
    if axis_name is not None and not isinstance(axis_name, str):
        raise TypeError(f"axis_name is {axis_name!r}, but it must be the name of one axis, or None for a single rank")
    settings = Settings(
        recipe=recipe,
        compressor=compressor,
        b1=float(arguments["b1"]),
        b2=float(arguments["b2"]),
        eps=float(arguments["eps"]),
        weight_decay=float(arguments["weight_decay"]),
        max_gradient_norm=math.inf if norm is None else float(norm),
        seed=integer_in("seed", arguments.get("seed", 0), 0, 2**64 - 1),
        threads=integer_in("threads", arguments["threads"], 1, 4096),
        warm_up_steps=integer_in("warm_up_steps", arguments.get("warm_up_steps", 1), 1, 2**31 - 1),
        update_bound=math.inf if bound is None else 0.0 if bound == "adam" else float(bound),
    )
    masks = {name: arguments.get(name) for name in ("mask", "adapt", "compress")}
    return Optimizer(settings, learning_rate, axis_name, masks)


def _require(name: str, value: object, right: str, is_right: Callable[[float], bool]) -> None:
    try:
        math.isfinite(value)  # of text, float() would be a number
        number = float(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, but it must be {right}") from None
    if not (abs(number) <= float(FLOAT32.max) and is_right(number)):
        raise ValueError(f"{name} is {value!r}, but it must be {right}")
