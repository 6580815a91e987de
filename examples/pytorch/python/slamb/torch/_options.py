"""The options of parameter groups: how they are read and checked."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from slamb.torch import _arguments as check

# Keys of parameter groups that torch's own optimizers have, and the values with which this one works. The first is the default.
FIXED_KEYS = {
    "maximize": (False,),
    "foreach": (None, False, True),
    "fused": (None, False, True),
    "capturable": (False, True),
    "differentiable": (False,),
}


class GroupOptions(NamedTuple):
    """The options of a parameter group, besides the learning rate."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    adapt: bool
    compress: bool
    dimensions: Optional[int]  # of the whole parameters; None: as their shapes say
    fixed: tuple[Any, ...]  # the values of FIXED_KEYS

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """β1, β2 and ε."""
        return self[:3]


def options_of(group: dict[str, Any]) -> GroupOptions:
    """As they are, without a check.

    :raises KeyError, TypeError, ValueError: for a group that `checked_options` rejects
    """
    beta1, beta2 = group["betas"]
    return GroupOptions(
        float(beta1),
        float(beta2),
        float(group["eps"]),
        float(group["weight_decay"]),
        group["adapt"],
        group["compress"],
        group.get("dimensions"),
        tuple(group.get(key) for key in FIXED_KEYS),
    )


def require_fixed_keys(where: str, values: dict[str, Any]) -> None:
    """
    :param where: begins the message
    :raises ValueError: names the key
    """
    for key, possible in FIXED_KEYS.items():
        if values.get(key, possible[0]) not in possible:
            raise ValueError(f"slamb: {where}{key} = {values[key]!r}, which slamb's optimizers do not support; leave it out")


def checked_options(number: int, group: dict[str, Any]) -> GroupOptions:
    """
    :raises ValueError: names the parameter group and the key
    """
    for key in ("lr", "betas", "eps", "weight_decay", "adapt", "compress"):
        if key not in group:
            raise ValueError(f"slamb: parameter group {number} has no {key!r}")
    where = f"of parameter group {number}"
    check.rate(f"lr {where}", group["lr"])
    check.pair(f"betas {where}", group["betas"])
    check.number(f"eps {where}", group["eps"])
    check.decay(f"weight_decay {where}", group["weight_decay"])
    check.truth(f"adapt {where}", group["adapt"])
    check.truth(f"compress {where}", group["compress"])
    if group.get("dimensions") is not None:
        check.count(f"dimensions {where}", group["dimensions"], 0)
    require_fixed_keys(f"parameter group {number} has ", group)
    return options_of(group)


def are_options(group: dict[str, Any], known: GroupOptions) -> bool:
    """True if the group has these options."""
    try:
        return options_of(group) == known
    except (KeyError, TypeError, ValueError):
        return False  # which a check will explain
