"""The optimizers, with their options."""

from __future__ import annotations

import math
import operator
from typing import Optional

from slamb.jax._step import Learning, Mask, Optimizer, Settings

COMPRESSORS = (None, "sign", "int8", "int4")


def adamw(
    learning_rate: Learning,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    mask: Mask = None,
    *,
    compressor: Optional[str] = None,
    axis_name: Optional[str] = "ranks",
    compress: Mask = None,
    max_gradient_norm: Optional[float] = None,
    seed: int = 0,
    threads: int = 1,
) -> Optimizer:
    """AdamW, for ranks that exchange their gradients dense or compressed.

    :param learning_rate: a number, or a function of the number of steps so far, as the schedules of optax are
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
    weight_decay: float = 0.01,
    mask: Mask = None,
    *,
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


def _make(recipe: str, arguments: dict) -> Optimizer:
    if arguments["compressor"] not in COMPRESSORS:
        raise ValueError(f"compressor is {arguments['compressor']!r}, but it must be one of {COMPRESSORS}")
    learning_rate = arguments["learning_rate"]
    if not callable(learning_rate):
        _require_number("learning_rate", learning_rate)
    for name in ("b1", "b2", "eps", "weight_decay"):
        _require_number(name, arguments[name])
    norm = arguments["max_gradient_norm"]
    if norm is not None:
        _require_number("max_gradient_norm", norm)
    axis_name = arguments["axis_name"]
    if axis_name is not None and not isinstance(axis_name, str):
        raise TypeError(f"axis_name is {axis_name!r}, but it must be the name of one axis, or None for a single rank")
    settings = Settings(
        recipe=recipe,
        compressor=arguments["compressor"],
        b1=float(arguments["b1"]),
        b2=float(arguments["b2"]),
        eps=float(arguments["eps"]),
        weight_decay=float(arguments["weight_decay"]),
        max_gradient_norm=math.inf if norm is None else float(norm),
        seed=_integer("seed", arguments["seed"], 0, 2**64 - 1),
        threads=_integer("threads", arguments["threads"], 1, 4096),
    )
    masks = {name: arguments.get(name) for name in ("mask", "adapt", "compress")}
    return Optimizer(settings, learning_rate, axis_name, masks)


def _require_number(name: str, value: object) -> None:
    try:
        is_number = math.isfinite(value) and value >= 0
    except TypeError:
        raise TypeError(f"{name} is {value!r}, but it must be a number") from None
    if not is_number:
        raise ValueError(f"{name} is {value!r}, but it must be a finite number ≥ 0")


def _integer(name: str, value: object, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, but it must be an integer") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, but it must be in [{least}, {most}]")
    return number
