"""Saved states: what `state_dict` writes, and how `load_state_dict` reads it.

AdamW and LAMB that exchange dense gradients, with float32 moments, have the state of torch.optim.AdamW: for each parameter `step`,
`exp_avg` and `exp_avg_sq`, and `master_param` if it has sixteen bits and a float32 copy. It is the same on all ranks.

Moments of a DTensor are DTensors of the same placements. With a shard group the state dictionary has one more key, 'shard'.

The others have for each parameter `step`, its `number`, and `ranks`. That of one parameter of each part has the states of ranks as
bytes, by names as "rank0_of_2" or, of shards, "rank0_of_2_shard1_of_4", and what they need to be checked: the numbers of the parameters in the order of the compiled
optimizer, their shapes, and the order of their elements if it is not that of a contiguous tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import torch

from slamb.torch import _arguments as check
from slamb.torch._part import OWN_KEYS, Part
from slamb.torch._ranks import AllRanks
from slamb.torch._tensors import Strides, local_part

# What wrappers of modules put into the names of parameters.
_NAMES_OF_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class Opaque:
    """Hides a value from Optimizer.load_state_dict, which would convert it to the type of the parameter."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> "Opaque":
        return self


def with_opaque_values(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dictionary with the values of this library hidden."""
    state = {
        key: {name: Opaque(value) if name in OWN_KEYS else value for name, value in entry.items()}
        if isinstance(entry, dict)
        else entry
        for key, entry in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def reveal(state: dict[Any, Any]) -> None:
    """Undoes `with_opaque_values`, in a state by parameters."""
    for entry in state.values():
        if isinstance(entry, dict):
            for name, value in entry.items():
                if isinstance(value, Opaque):
                    entry[name] = value.value


# The key of a state dictionary that names the shard whose moments it has: its number, and of how many. States of ranks as bytes have it
# in their names. torch.distributed.checkpoint leaves the key out, and gives each rank its own shard.
SHARD = "shard"


def require_own_shard(state_dict: dict[str, Any], ranks: AllRanks) -> None:
    """
    :raises ValueError: if the state dictionary says that it has the moments of another shard
    """
    its = state_dict.get(SHARD)
    own = [0, 1] if ranks.shards is None else [ranks.shards.rank, ranks.shards.size]
    if its is not None and list(its) != own:
        here = "the parameters here are whole" if ranks.shards is None else f"this is shard {own[0]} of {own[1]}"
        raise ValueError(
            f"slamb: load_state_dict() was given the state of shard {its[0]} of {its[1]}, but {here}; give each rank the state that it "
            f"has saved itself. To change the number of shards, save by torch.distributed.checkpoint"
        )


# ---------------------------------------------------------------------------------------------------------------- By names


def _plain(name: str) -> str:
    """Without the names of wrappers."""
    return ".".join(one for one in name.split(".") if one not in _NAMES_OF_WRAPPERS)


def in_order_of_names(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state dictionary with its entries in the order of these parameter groups, if both have the names of parameters.

    :raises ValueError: if a group has other names than here
    """
    saved_groups = state_dict["param_groups"]
    if len(saved_groups) != len(groups):
        return state_dict  # torch says it
    state, ordered = dict(state_dict["state"]), []
    for number, (saved, own) in enumerate(zip(saved_groups, groups)):
        its, ours = saved.get("param_names"), own.get("param_names")
        if its is None or ours is None or list(its) == list(ours):
            ordered.append(saved)
            continue
        rule = str if set(its) == set(ours) else _plain
        places = {rule(name): key for name, key in zip(its, saved["params"])}
        wanted = [rule(name) for name in ours]
        if len(places) != len(wanted) or set(places) != set(wanted):
            missing = sorted(set(wanted) ^ set(places)) or sorted({name for name in its if name not in set(ours)})
            raise ValueError(
                f"slamb: load_state_dict() was given a state whose parameter group {number} has other parameters, by their names, "
                f"than here: {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''} is in only one of them. To load by the "
                f"order of the parameters, remove 'param_names' from the state's groups"
            )
        for key, name in zip(saved["params"], wanted):
            state.pop(key, None)
            if places[name] in state_dict["state"]:
                state[key] = state_dict["state"][places[name]]
        ordered.append({**saved, "param_names": list(ours)})
    return {**state_dict, "state": state, "param_groups": ordered}


def with_own_keys(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state dictionary, whose groups have the keys of these groups too: those of another library lack some.

    :raises ValueError: for options of another optimizer that this library does not have
    """
    saved_groups = []
    for number, saved in enumerate(state_dict["param_groups"]):
        where = f"slamb: load_state_dict() was given a state whose parameter group {number} has "
        if saved.get("amsgrad"):
            raise ValueError(f"{where}amsgrad = True, which slamb's optimizers do not have")
        if saved.get("decoupled_weight_decay") is False and float(saved["weight_decay"]) > 0.0:
            raise ValueError(
                f"{where}a weight decay that is added to the gradient, as Adam's, which slamb's optimizers do not have; "
                f"import_state() takes over its moments alone"
            )
        own = groups[number] if number < len(groups) else {}
        saved_groups.append({**{key: value for key, value in own.items() if key != "params"}, **saved})
    return {**state_dict, "param_groups": saved_groups}


# -------------------------------------------------------------------------------------------------------- Moments by names


class Moments(NamedTuple):
    """What a parameter's entry has in the format of torch.optim.AdamW, of this rank's part."""

    steps: int
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    master: Optional[torch.Tensor]


def read_moments(number: int, parameter: torch.Tensor, entry: Any) -> Optional[Moments]:
    """The moments of an entry; None if it has none.

    :raises ValueError: names the parameter and the key
    """
    keys = ("step", "exp_avg", "exp_avg_sq")
    if not isinstance(entry, dict) or not any(key in entry for key in keys):
        return None
    where = f"slamb: the state of parameter {number} has "
    for key in keys:
        if key not in entry:
            raise ValueError(f"{where}no '{key}', but it must have 'step', 'exp_avg' and 'exp_avg_sq', or none of them")
    if "max_exp_avg_sq" in entry:
        raise ValueError(f"{where}'max_exp_avg_sq', of amsgrad, which slamb's optimizers do not have")
    step = entry["step"]
    try:
        count = check.number("step", step)
    except (ValueError, RuntimeError):
        count = math.nan
    if not (0.0 <= count < 2.0**53 and count == int(count)):
        raise ValueError(f"{where}step = {step!r}, but it must be a whole number >= 0")
    master = entry.get("master_param")
    for key in ("exp_avg", "exp_avg_sq", "master_param"):
        value = entry.get(key)
        if key == "master_param" and value is None:
            continue
        if (
            not isinstance(value, torch.Tensor)
            or not value.is_floating_point()
            or value.shape != parameter.shape
            or value.layout != torch.strided
            or value.device.type == "meta"
            or local_part(value).shape != local_part(parameter).shape
            or getattr(value, "placements", None) != getattr(parameter, "placements", None)
        ):
            placements = getattr(parameter, "placements", None)
            if placements is not None:
                raise ValueError(
                    f"{where}'{key}' = {type(value).__name__}, but it must be a DTensor of floats with the parameter's placements "
                    f"{tuple(placements)} and shape {tuple(parameter.shape)}; torch.distributed.checkpoint makes such ones"
                )
            what = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(
                f"{where}'{key}' = {what}, but it must be a dense tensor of floats, of the parameter's shape "
                f"{tuple(parameter.shape)} and with values"
            )
    return Moments(
        int(count), local_part(entry["exp_avg"]), local_part(entry["exp_avg_sq"]), None if master is None else local_part(master)
    )


def without_aliases(
    found: Sequence[Optional[Moments]], parts: Sequence[Part], parameters: Sequence[torch.Tensor]
) -> list[Optional[Moments]]:
    """The moments, copied where they are in the memory of another parameter's, which may be overwritten before.

    :param parts: whose moments may be overwritten
    """
    owners: dict[int, torch.Tensor] = {}
    for part in parts:
        for i, p in enumerate(part.tensors.given):
            for one in part.moments(i) or ():
                if one.numel() > 0:
                    owners[one.data_ptr()] = p
            if i in part.tensors.masters:
                owners[part.tensors.masters[i].data_ptr()] = p

    def own(value: Optional[torch.Tensor], p: torch.Tensor, is_second: bool) -> Optional[torch.Tensor]:
        if value is None or value.device.type == "meta":
            return value
        owner = owners.get(value.data_ptr())
        return value.detach().clone() if owner is not None and (owner is not p or is_second) else value

    return [
        None
        if its is None
        else Moments(its.steps, own(its.exp_avg, p, False), own(its.exp_avg_sq, p, True), own(its.master, p, False))  # type: ignore[arg-type]
        for its, p in zip(found, parameters)
    ]


# ---------------------------------------------------------------------------------------------------------- Bytes by ranks


def has_bytes(entry: Any) -> bool:
    """True if an entry has what `saved_bytes` makes."""
    ranks = entry.get("ranks") if isinstance(entry, dict) else None
    return isinstance(ranks, dict) and bool(ranks)


def bytes_of(part: Part, key: str) -> dict[str, torch.Tensor]:
    """This rank's state of a part by its name, and the order of elements. That may differ between shards."""
    strides = {
        f"strides{number}{part.shard_name}": torch.tensor(of_parameter, device="cpu")
        for number, of_parameter in part.tensors.reordered().items()
    }
    return {**strides, key: part.save()}


# The name of the state of whole parameters.
WHOLE = "whole"


def whole_bytes_of(part: Part, ranks: AllRanks, to: int) -> dict[str, torch.Tensor]:
    """The state of whole parameters by its name, at rank `to` of the first shard; nothing at the others. Collective."""
    state = part.save(is_whole=True)
    is_here = (ranks.exchange is None or ranks.exchange.rank == to) and (ranks.shards is None or ranks.shards.rank == 0)
    return {WHOLE: state} if is_here else {}


def saved_bytes(part: Part, states: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What 'ranks' has of a part.

    :param states: of ranks, as `bytes_of` makes them
    """
    return {
        "members": torch.tensor(part.members, dtype=torch.int64, device="cpu"),
        "shapes": _numbers_of(piece.shape for piece in part.pieces),  # whole ones, which all ranks have
        **states,
    }


def _numbers_of(shapes: Iterable[Sequence[int]]) -> torch.Tensor:
    """For each shape the number of dimensions and then their sizes."""
    return torch.tensor([number for shape in shapes for number in (len(shape), *shape)], dtype=torch.int64, device="cpu")


class LoadedPart:
    """What `saved_bytes` has put together.

    :param saved: 'ranks' of a parameter's entry
    :param sizes: the numbers of parameters of the parameter groups
    :param shard: the end of this rank's name: see AllRanks.shard_name
    :raises ValueError: if it is not that
    """

    def __init__(self, saved: Any, sizes: Sequence[int], shard: str) -> None:
        if not isinstance(saved, dict) or not all(isinstance(one, torch.Tensor) for one in saved.values()):
            raise ValueError("slamb: load_state_dict() was given a state whose 'ranks' are not tensors by name")
        rest = dict(saved)
        members = rest.pop("members", None)
        groups = rest.pop("groups", None)  # of older versions: all parameters of the groups first … last − 1
        if members is not None:
            self.members = [int(one) for one in members.tolist()]
        elif groups is not None and groups.numel() == 2:
            first, last = (int(one) for one in groups.tolist())
            ends = [0, *itertools.accumulate(sizes)]
            if not 0 <= first <= last < len(ends):
                raise _other_optimizer(f"of the parameter groups {first} to {last - 1}")
            self.members = list(range(ends[first], ends[last]))
        else:
            raise ValueError("slamb: load_state_dict() was given a state whose 'ranks' have no 'members'")
        self._shapes = rest.pop("shapes", torch.tensor([], device="cpu"))
        self.strides: dict[int, Strides] = {}
        self.states: dict[str, torch.Tensor] = {}
        for name, value in rest.items():
            if name.startswith("strides"):
                number, underscore, its = name[len("strides") :].partition("_")
                if underscore + its == shard:
                    self.strides[int(number)] = tuple(value.tolist())
            elif value.dtype != torch.uint8:
                raise ValueError(f"slamb: load_state_dict() was given a state whose '{name}' is {value.dtype}, not torch.uint8")
            else:
                self.states[name] = value

    def renumber(self, now: dict[int, int]) -> None:
        """
        :param now: the present numbers of parameters, by their numbers when the state was saved
        :raises ValueError: if one does not exist
        """
        if any(one not in now for one in self.members) or len({now[one] for one in self.members}) < len(self.members):
            raise _other_optimizer("with other parameters")
        self.members = [now[one] for one in self.members]

    def require_shapes(self, shapes: list[tuple[int, ...]]) -> None:
        own = _numbers_of(shapes)
        if self._shapes.tolist() != own.tolist():
            raise ValueError(
                f"slamb: load_state_dict() was given the state of parameters of other shapes; those of this optimizer are "
                f"{shapes[:10]}{' …' if len(shapes) > 10 else ''}"
            )


def _other_optimizer(what: str) -> ValueError:
    return ValueError(f"slamb: load_state_dict() was given the state of another optimizer, {what}")
