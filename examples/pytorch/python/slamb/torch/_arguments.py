"""Checks of arguments, and the names of settings."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Sequence
from typing import Any, Union

import torch

Setting = Union[bool, int, float, str]

# The names of other libraries for settings, and ours.
_ALIASES = {
    "eps": "epsilon",
    "max_grad_norm": "max_gradient_norm",
    "freeze_step": "warm_up_steps",
    "var_freeze_step": "variance_freeze_step",
    "var_update_scaler": "variance_update_scaler",
    "local_step_scaler": "local_interval_scaler",
    "local_step_clipper": "local_interval_clipper",
    "max_coeff": "trust_ratio_upper",
    "min_coeff": "trust_ratio_lower",
    "coeff_beta": "trust_ratio_average",
    "factor_max": "trust_ratio_factor_upper",
    "factor_min": "trust_ratio_factor_lower",
    "factor_threshold": "trust_ratio_factor_change",
}
# The named arguments of a constructor that stand for settings of other names.
_ARGUMENT_FOR = {"epsilon": "eps", "beta1": "betas", "beta2": "betas"}


def number(name: str, value: Any) -> float:
    """The value as a float. A tensor with one element is a number too.

    :raises ValueError: names what is wrong
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"slamb: {name} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"slamb: {name} must be a number below 1.8e308") from None


def rate(name: str, value: Any) -> None:
    """Requires a learning rate, which is read at each step."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type != "cpu":
        return  # it may change until the step runs, and reading it would wait
    as_float = number(name, value)
    if not (math.isfinite(as_float) and as_float >= 0.0):
        raise ValueError(f"slamb: {name} = {value!r}, but it must be a finite number >= 0")


def decay(name: str, value: Any) -> None:
    """Requires a weight decay."""
    if not 0.0 <= number(name, value) < math.inf:
        raise ValueError(f"slamb: {name} = {value!r}, but it must be in [0, inf)")


def pair(name: str, value: Any) -> tuple[float, float]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError(f"slamb: {name} must be a pair of numbers in [0, 1), not {value!r}")
    return number(f"{name}[0]", value[0]), number(f"{name}[1]", value[1])


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"slamb: {name} must be True or False, not {value!r}")
    return value


def count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise ValueError(f"slamb: {name} = {value!r}, but it must be an integer >= {least}")
    return int(value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"slamb: {name} must be a text, not {value!r}")
    return value


def bound(name: str, value: Any) -> float:
    """A bound of updates as the compiled module takes it: 0 for "adam", and infinity for None."""
    if value is None:
        return math.inf
    if isinstance(value, str) and value == "adam":
        return 0.0
    try:
        as_float = number(name, value)
    except ValueError:
        as_float = math.nan
    if not as_float > 0.0:
        raise ValueError(f"slamb: {name} = {value!r}, but it must be 'adam', a number > 0, or None")
    return as_float


def setting(name: str, value: Any) -> Setting:
    """A value as the compiled module takes it."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise ValueError(f"slamb: {name} must be a number, True, False or a text, not {value!r}")


def own_name(name: str) -> str:
    """The name of an argument here, for one of another library."""
    return name if name == "eps" else _ALIASES.get(name, name)


def settings_by_own_names(constructor: Any, arguments: dict[str, Any], others: dict[str, Any]) -> dict[str, Setting]:
    """All settings, by the names of the compiled module.

    :param constructor: the function whose named arguments were given
    :param arguments: the values of those that are settings, or pairs of settings
    :param others: further settings, by our names or by those of other libraries; None stands for the default
    :raises ValueError: if one setting was given by two names
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(constructor).parameters.items()}
    beta1, beta2 = pair("betas", arguments["betas"])
    found: dict[str, Setting] = {"beta1": beta1, "beta2": beta2, "epsilon": number("eps", arguments["eps"])}
    for name, value in arguments.items():
        if name not in ("betas", "eps") and value is not None:
            found[name] = setting(name, value)
    given: dict[str, str] = {}
    for name, value in others.items():
        if value is None:
            continue
        own = _ALIASES.get(name, name)
        argument = _ARGUMENT_FOR.get(own, own)
        other = given.get(own)
        if other is None and argument in arguments and arguments[argument] != defaults.get(argument):
            other = argument
        if other is not None:
            raise ValueError(f"slamb: {other} and {name} were both given, but they are one setting; give one")
        given[own] = name
        found[own] = number(name, value) if own in _ARGUMENT_FOR else setting(name, value)
    return found
