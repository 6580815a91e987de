"""For trainings that come from DeepSpeed: its configuration of an optimizer, and its checkpoints.

DeepSpeed had 1-bit Adam, 1-bit LAMB and 0/1 Adam up to version 0.19.6.
"""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch

from slamb.torch import _arguments as check
from slamb.torch._optimizer import Optimizer
from slamb.torch._optimizers import AdamW, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam

Config = Union[str, "os.PathLike[str]", dict[str, Any]]
Checkpoint = Union[str, "os.PathLike[str]", dict[str, Any]]

_COMMON = {"lr": "lr", "betas": "betas", "eps": "eps", "weight_decay": "weight_decay", "max_grad_norm": "max_gradient_norm"}
_CLAMP = {"max_coeff": "trust_ratio_upper", "min_coeff": "trust_ratio_lower"}
_FROZEN_RATIO = {
    **_CLAMP,
    "coeff_beta": "trust_ratio_average",
    "factor_max": "trust_ratio_factor_upper",
    "factor_min": "trust_ratio_factor_lower",
    "factor_threshold": "trust_ratio_factor_change",
}
_INTERVALS = {
    "var_freeze_step": "variance_freeze_step",
    "var_update_scaler": "variance_update_scaler",
    "local_step_scaler": "local_interval_scaler",
    "local_step_clipper": "local_interval_clipper",
}
_BACKEND = "ranks exchange over the process group of torch.distributed"
_NEVER_USED = "DeepSpeed's optimizer has never used it"
# Options without a meaning here, why, and the values with which they may stand in a configuration.
_WITHOUT_MEANING: dict[str, tuple[str, tuple[Any, ...]]] = {
    "cuda_aware": (_BACKEND, ()),
    "comm_backend_name": (_BACKEND, ()),
    "deepspeed": ("the optimizer needs no engine", (None,)),
    "amsgrad": ("there is no such variant of these optimizers", (False,)),
    "eps_inside_sqrt": ("eps is added to the square root", (False,)),
    "torch_adam": ("there is one implementation", ()),
    "adam_w_mode": ("weight decay is decoupled, as with True", (True,)),
    "fp32_optimizer_states": ("moments are float32, or as the argument moments says", (True,)),
}


class _Kind(NamedTuple):
    """An optimizer of DeepSpeed."""

    name: str
    own: type[Optimizer]
    options: dict[str, str]  # its names and ours
    defaults: dict[str, Any]  # by its names, where they differ from ours
    corrects_bias: bool  # bias_correction has a meaning


_KINDS = {
    "onebitadam": _Kind("OneBitAdam", OneBitAdam, {**_COMMON, "freeze_step": "warm_up_steps"}, {"freeze_step": 100000}, False),
    "onebitlamb": _Kind(
        "OneBitLamb", OneBitLamb, {**_COMMON, "freeze_step": "warm_up_steps", **_FROZEN_RATIO}, {"freeze_step": 100000}, False
    ),
    "zerooneadam": _Kind("ZeroOneAdam", ZeroOneAdam, {**_COMMON, **_INTERVALS}, {"var_freeze_step": 100000}, False),
    "lamb": _Kind("Lamb", Lamb, {**_COMMON, **_CLAMP}, {"eps": 1e-8, "max_coeff": 10.0, "min_coeff": 0.01}, True),
    "adam": _Kind("Adam", AdamW, _COMMON, {}, True),
    "adamw": _Kind("AdamW", AdamW, _COMMON, {}, True),
}


def from_deepspeed(params: Iterable[Any], config: Config, **arguments: Any) -> Optimizer:
    """Makes the optimizer of a DeepSpeed configuration: OneBitAdam (OnebitAdam), OneBitLamb (OnebitLamb), ZeroOneAdam, Lamb
    (FusedLamb), Adam or AdamW (FusedAdam).

        optimizer = slamb.torch.from_deepspeed(model.parameters(), "ds_config.json")
        optimizer = slamb.torch.from_deepspeed(model.parameters(), {"type": "OneBitLamb", "params": {"lr": 1e-3, "freeze_step": 1000}})

    Options that are left out have DeepSpeed's defaults. 1-bit Adam and 0/1 Adam have a scale for each tensor, as there. Different from
    DeepSpeed, updates are bounded; update_bound=None switches this off. Other parts of the configuration are not read, such as
    gradient_clipping, the scheduler and batch sizes.

    :param config: the configuration, its part "optimizer", or a file of JSON
    :param arguments: further arguments of the class, as compressor or process_group; they replace those of the configuration
    :raises ValueError: names each option that has no meaning here, and the reason; for ZeRO, and for fp16 and bf16, which need a model of
        that type, or autocast
    """
    whole = config if isinstance(config, dict) else json.loads(Path(config).read_text())
    _require_no_wrapper(whole)
    section = whole.get("optimizer", whole)
    kind = _kind_of(section.get("type"))
    given = dict(section.get("params") or {})
    _require_meaning(kind, given)
    own: dict[str, Any] = {"weight_decay": 0.0}
    for name, value in {**kind.defaults, **given}.items():
        if name in kind.options and not (name == "max_grad_norm" and value == 0):
            own[kind.options[name]] = value
    if kind.corrects_bias and "bias_correction" in given:
        own["bias_correction"] = given["bias_correction"]
    if kind.own in (OneBitAdam, ZeroOneAdam) and arguments.get("compressor", "sign") == "sign":
        own["scales"] = "per_tensor"
    return kind.own(params, **{**own, **arguments})


def load_deepspeed(
    checkpoint: Checkpoint,
    model: Optional[torch.nn.Module],
    optimizer: Optimizer,
    *,
    tag: Optional[str] = None,
    from_other_ranks: bool = False,
) -> dict[str, Any]:
    """Continues a training from a checkpoint that DeepSpeed has saved without ZeRO. Collective: all ranks load the same one.

        rest = slamb.torch.load_deepspeed("checkpoints", model, optimizer)
        scheduler.load_state_dict(rest["lr_scheduler"])

    The optimizer must be that of the training: `from_deepspeed` makes it. Compression errors start at zero, as when DeepSpeed
    loads a checkpoint, which has those of one rank alone. With fp16 or bf16 of DeepSpeed, the float32 copies become the
    parameters. Parameters are found by their order in the parameter groups.

    :param checkpoint: DeepSpeed's folder, the folder or file of one step, or what torch.load() has returned
    :param model: takes over the parameters and buffers. None: it has them already
    :param tag: the name of the step's folder. None: that of the file "latest"
    :param from_other_ranks: continues with another number of ranks than the training had. The variance was frozen with the gradients of
        a whole batch, so keep its size
    :return: what else is in the checkpoint: global_steps, lr_scheduler, and what the program has added
    :raises FileNotFoundError: names the file that is missing
    :raises ValueError: for a checkpoint of ZeRO, of several parts of a model, of another optimizer, other options, or other tensors, and
        for one of 0/1 Adam between two exchanges; nothing has changed then
    """
    found = dict(checkpoint) if isinstance(checkpoint, dict) else _read(Path(checkpoint), tag)
    _require_readable(found)
    if not isinstance(optimizer, Optimizer) or optimizer._recipe == "slamb":
        raise ValueError(
            f"slamb: load_deepspeed() was given a {type(optimizer).__name__}, but DeepSpeed has no such optimizer; make that of the "
            f"checkpoint by from_deepspeed()"
        )
    if optimizer._shared.ranks.shards is not None:
        raise ValueError(
            "slamb: load_deepspeed() was given an optimizer whose parameters are shards, but the checkpoint has whole tensors; "
            "load it without sharding, save the model, and begin with that"
        )
    _require_number_of_ranks(found, optimizer, from_other_ranks)
    kind = _kind_of_checkpoint(found)
    state, masters = _without_wrapper(found["optimizer"])
    entries, values = _by_parameter(optimizer, state, masters)
    import_it = _importer(optimizer, entries, found, kind)
    if model is not None:
        _require_module(model, found["module"])
        model.load_state_dict(found["module"])
    with torch.no_grad():
        for p, value in zip(optimizer._parameters(), values):
            if value is not None:
                p.copy_(value)
    import_it()
    optimizer._set_masters(values)
    return {key: value for key, value in found.items() if key not in ("module", "optimizer")}


# ------------------------------------------------------------------------------------------------------------- Configurations


def _kind_of(type_name: Any) -> _Kind:
    kind = _KINDS.get(str(type_name).lower())
    if kind is None:
        names = ", ".join(one.name for one in _KINDS.values())
        raise ValueError(f"slamb: there is no optimizer of DeepSpeed's type {type_name!r} here; there are {names}")
    return kind


def _require_no_wrapper(config: dict[str, Any]) -> None:
    stage = (config.get("zero_optimization") or {}).get("stage", 0)
    if stage:
        raise ValueError(
            f"slamb: the configuration has ZeRO stage {stage}, whose gradients and states are partitioned; set "
            f"zero_optimization.stage to 0, or use fully_shard in place of ZeRO (docs/how-to/sharded.md)"
        )
    for name in ("fp16", "bf16"):
        if (config.get(name) or {}).get("enabled"):
            raise ValueError(
                f"slamb: the configuration has {name}, which keeps the parameters in copies of its own; leave {name} out, and use "
                f"torch_autocast, or convert the model to that type: the optimizer has the float32 copies"
            )


def _require_meaning(kind: _Kind, given: dict[str, Any]) -> None:
    said: list[str] = []
    for name, value in given.items():
        if name in kind.options or (name == "bias_correction" and kind.corrects_bias):
            continue
        reason, harmless = _WITHOUT_MEANING.get(name, ("it is no option of this optimizer", ()))
        if name == "bias_correction":
            reason, harmless = _NEVER_USED, (True, False)
        if value not in harmless:
            said.append(f"{name} = {value!r} ({reason})")
    if said:
        raise ValueError(f"slamb: options of DeepSpeed's {kind.name} have no meaning here: {', '.join(said)}; leave them out")


# ---------------------------------------------------------------------------------------------------------------- Checkpoints


def _read(place: Path, tag: Optional[str]) -> dict[str, Any]:
    """What the file of a checkpoint has."""
    file = place
    if place.is_dir() or tag is not None:
        if tag is None and (place / "latest").is_file():
            tag = (place / "latest").read_text().strip()
        folder = place if tag is None else place / tag
        if any(folder.glob("*zero_pp_rank_*")):
            raise _of_zero()
        if any(folder.glob("layer_*-model_*states.pt")) or len(list(folder.glob("mp_rank_*_model_states.pt"))) > 1:
            raise _of_parts()
        file = folder / "mp_rank_00_model_states.pt"
    if not file.is_file():
        raise FileNotFoundError(
            f"slamb: load_deepspeed() looked for {file}, and there is none; give the folder that save_checkpoint() was given, "
            f"and the tag if it has no file 'latest'"
        )
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as failure:
        raise ValueError(
            f"slamb: {file} has objects besides tensors and numbers; if you trust it, pass torch.load(file, map_location='cpu', "
            f"weights_only=False) in place of its name ({str(failure).splitlines()[0]})"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"slamb: {file} has a {type(found).__name__}, but a checkpoint of DeepSpeed is a dictionary")
    return found


def _of_zero() -> ValueError:
    return ValueError(
        "slamb: this is a checkpoint of DeepSpeed with ZeRO, whose optimizer state is partitioned over the ranks; continue with its "
        "weights alone (zero_to_fp32.py beside it collects them), and a new optimizer"
    )


def _of_parts() -> ValueError:
    return ValueError(
        "slamb: this is a checkpoint of DeepSpeed of a model in several parts, by tensor or pipeline parallelism; load the file "
        "mp_rank_…_model_states.pt of each part into an optimizer of its own, by its name"
    )


def _require_readable(found: dict[str, Any]) -> None:
    lacking = [key for key in ("module", "optimizer") if key not in found]
    if lacking:
        raise ValueError(
            f"slamb: load_deepspeed() was given a dictionary without {' and '.join(map(repr, lacking))}, which is no checkpoint of "
            f"DeepSpeed; give what save_checkpoint() has written"
        )
    if found["optimizer"] is None:
        raise _of_zero()


def _require_number_of_ranks(found: dict[str, Any], optimizer: Optimizer, from_other_ranks: bool) -> None:
    exchange = optimizer._shared.ranks.exchange
    now = 1 if exchange is None else exchange.size
    then = found.get("dp_world_size", now)
    if then != now and not from_other_ranks:
        raise ValueError(
            f"slamb: the checkpoint is that of a training on {then} ranks, but now there are {now}; to continue with the same total "
            f"batch, pass from_other_ranks=True on all ranks"
        )


def _kind_of_checkpoint(found: dict[str, Any]) -> Optional[_Kind]:
    """The optimizer that the configuration in the checkpoint names; None if it names none."""
    config = found.get("ds_config")
    section = config.get("optimizer") if isinstance(config, dict) else None
    return _KINDS.get(str(section.get("type")).lower()) if isinstance(section, dict) else None


def _without_wrapper(saved: dict[str, Any]) -> tuple[dict[str, Any], Optional[list[Any]]]:
    """The state of the optimizer itself, and the float32 copies that fp16 or bf16 of DeepSpeed have, by parameter group."""
    if "optimizer_state_dict" not in saved:
        return saved, None
    masters = saved.get("fp32_groups", saved.get("fp32_groups_flat"))
    return saved["optimizer_state_dict"], masters


def _by_parameter(
    optimizer: Optimizer, state: dict[str, Any], masters: Optional[list[Any]]
) -> tuple[list[Optional[dict[str, Any]]], list[Optional[torch.Tensor]]]:
    """The entry and the float32 copy of each parameter. fp16 lays the parameters of a group end to end.

    :raises ValueError: if they do not fit
    """
    theirs, own = state["param_groups"], optimizer.param_groups
    if len(theirs) != len(own):
        raise ValueError(
            f"slamb: the checkpoint has {len(theirs)} parameter groups, but this optimizer has {len(own)}; give it the groups that "
            f"the training had"
        )
    entries: list[Optional[dict[str, Any]]] = []
    values: list[Optional[torch.Tensor]] = []
    number = 0
    for place, (saved_group, group) in enumerate(zip(theirs, own)):
        parameters = [p for p in group["params"] if p.requires_grad] if masters is not None else group["params"]
        keys, copies = saved_group["params"], None if masters is None else masters[place]
        is_flat = isinstance(copies, torch.Tensor)
        if len(keys) != (1 if is_flat else len(parameters)):
            raise ValueError(
                f"slamb: the checkpoint has {len(keys)} parameters in group {place}, but this optimizer has {len(parameters)} there"
            )
        of_group = [
            {"step": saved_group["step"], **entry} if "step" in saved_group and "step" not in entry else entry
            for entry in (dict(state["state"].get(key) or {}) for key in keys)
        ]
        if is_flat:
            sizes = [p.numel() for p in parameters]
            if copies.numel() != sum(sizes):
                raise ValueError(
                    f"slamb: the checkpoint has {copies.numel()} elements in group {place}, but this optimizer has {sum(sizes)} there"
                )
            of_group = [_cut(of_group[0], sum(sizes[:i]), p) for i, p in enumerate(parameters)]
            copies = [piece.view(p.shape) for piece, p in zip(copies.detach().split(sizes), parameters)]
        of_parameter = {id(p): i for i, p in enumerate(parameters)}
        for p in group["params"]:
            i = of_parameter.get(id(p))
            entry = None if i is None else of_group[i] or None
            value = None if i is None or copies is None else copies[i].detach()
            _require_shapes(number, p, entry, value)
            entries.append(entry)
            values.append(value)
            number += 1
    return entries, values


_ARRAYS = ("exp_avg", "exp_avg_sq", "exp_avg_sq_fresh", "momentum_accumulator")


def _cut(entry: dict[str, Any], first: int, p: torch.Tensor) -> dict[str, Any]:
    """What the entry of parameters that lie end to end has of one of them."""
    cut = {key: entry[key].view(-1)[first : first + p.numel()].view(p.shape) for key in _ARRAYS if key in entry}
    return {**entry, **cut}


def _require_shapes(number: int, p: torch.Tensor, entry: Optional[dict[str, Any]], value: Optional[torch.Tensor]) -> None:
    arrays = {key: one for key, one in (entry or {}).items() if key in _ARRAYS}
    if value is not None:
        arrays["the float32 copy"] = value
    for key, one in arrays.items():
        if tuple(one.shape) != tuple(p.shape):
            raise ValueError(
                f"slamb: {key} of parameter {number} in the checkpoint has the shape {tuple(one.shape)}, but the parameter has "
                f"{tuple(p.shape)}"
            )


def _require_module(model: torch.nn.Module, saved: dict[str, Any]) -> None:
    """
    :raises ValueError: if the model has other tensors
    """
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if missing or unknown:
        names = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}"
        raise ValueError(f"slamb: the model in the checkpoint {names}, but model {'has it' if missing else 'has not'}; give the same model")
    for name, value in own.items():
        if isinstance(value, torch.Tensor) and value.shape != saved[name].shape:
            raise ValueError(
                f"slamb: {name!r} in the checkpoint has the shape {tuple(saved[name].shape)}, but {tuple(value.shape)} in the model"
            )


# ------------------------------------------------------------------------------------------------------------------- States


def _importer(optimizer: Optimizer, entries: Sequence[Optional[dict[str, Any]]], found: dict[str, Any], kind: Optional[_Kind]) -> Any:
    """What makes the optimizer continue from these entries, all of which have been checked."""
    keys = {key for entry in entries for key in (entry or {})}
    recipe = optimizer._recipe
    saved_by = kind.name if kind is not None else _recognized(keys)
    is_same = kind.own._recipe == recipe if kind is not None else saved_by == _NAMES[recipe]
    if not is_same:
        raise ValueError(
            f"slamb: the checkpoint is that of DeepSpeed's {saved_by or 'own optimizer, which has taken no step'}, but this optimizer "
            f"is {type(optimizer).__name__}; make that of the checkpoint by from_deepspeed()"
        )
    steps = {int(check.number("step", entry["step"])) for entry in entries if entry and "step" in entry}
    if len(steps) != 1:
        raise ValueError(
            f"slamb: the parameters in the checkpoint have taken {sorted(steps) or 'no'} steps; {type(optimizer).__name__} needs one "
            f"number"
        )
    (taken,) = steps
    if recipe in ("adamw", "lamb"):
        optimizer._require_open_moments("load_deepspeed")
        packed = optimizer.state_dict()["param_groups"]
        kept = ("step", "exp_avg", "exp_avg_sq")
        state = {i: {key: entry[key] for key in kept} for i, entry in enumerate(entries) if entry}
        return lambda: optimizer.import_state({"state": state, "param_groups": [{"params": one["params"]} for one in packed]})
    if recipe == "zero_one_adam":
        intervals = _intervals(entries)
        return lambda: optimizer._import_frozen(entries, taken - 1, 0, intervals)  # its first step only allocates
    warm_up = _warm_up(optimizer, keys, taken, found)
    own = [_with_ratio(number, entry) for number, entry in enumerate(entries)] if recipe == "one_bit_lamb" else entries
    is_at_end = recipe == "one_bit_lamb" and warm_up > 0 and "scaling_coeff" not in keys
    return lambda: optimizer._import_frozen(own, taken, 0 if is_at_end else warm_up, ())


_NAMES = {"adamw": "Adam", "lamb": "Adam", "one_bit_adam": "Adam", "one_bit_lamb": "OneBitLamb", "zero_one_adam": "ZeroOneAdam"}


def _recognized(keys: set[str]) -> Optional[str]:
    """The optimizer that leaves such keys. Those of 1-bit Adam and of Adam can be the same."""
    if "lamb_coeff_freeze" in keys:
        return "OneBitLamb"
    if "var_interval" in keys:
        return "ZeroOneAdam"
    return "Adam" if "exp_avg" in keys else None


def _warm_up(optimizer: Optimizer, keys: set[str], taken: int, found: dict[str, Any]) -> int:
    """The number of steps after which the variance was frozen; 0: it was not.

    :raises ValueError: if the optimizer has another one
    """
    settings = optimizer._arguments["settings"]
    own = int(settings.get("warm_up_steps", 1000))
    config = found.get("ds_config")
    section = (config.get("optimizer") or {}) if isinstance(config, dict) else {}
    theirs = (section.get("params") or {}).get("freeze_step")
    if theirs is None:
        is_frozen = not keys.isdisjoint(("worker_error", "scaling_coeff"))
        if is_frozen and taken < own or "lamb_coeff_freeze" in keys and not is_frozen and taken > own:
            raise ValueError(
                f"slamb: at step {taken} of the checkpoint the variance is {'' if is_frozen else 'not '}frozen, but this optimizer has "
                f"warm_up_steps = {own}; construct it with the freeze_step of the training"
            )
    elif int(theirs) != own:
        raise ValueError(
            f"slamb: the checkpoint was saved with freeze_step = {theirs}, but this optimizer has warm_up_steps = {own}; construct it "
            f"with warm_up_steps={theirs}"
        )
    return own if taken >= own else 0


def _with_ratio(number: int, entry: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """The entry of 1-bit LAMB, with its numbers as a ratio."""
    if entry is None:
        return None
    usual = {"lamb_coeff_freeze": 0.0, "last_factor": 1.0, "scaling_coeff": 1.0}
    mean, factor, scale = (float(entry.get(key, value)) for key, value in usual.items())
    if not (math.isfinite(mean) and mean >= 0.0 and math.isfinite(factor) and factor > 0.0 and math.isfinite(scale) and scale > 0.0):
        raise ValueError(
            f"slamb: parameter {number} in the checkpoint has lamb_coeff_freeze = {mean}, last_factor = {factor} and scaling_coeff = "
            f"{scale}, which must be finite numbers > 0; the training has diverged, so go back to an earlier checkpoint"
        )
    return {**entry, "ratio": (mean, factor, scale)}


def _intervals(entries: Sequence[Optional[dict[str, Any]]]) -> tuple[int, ...]:
    """The intervals of 0/1 Adam.

    :raises ValueError: between two exchanges
    """
    names = ("var_interval", "var_counter", "local_step_interval", "local_step_counter")
    seen = {tuple(int(entry[name]) for name in names) for entry in entries if entry and names[0] in entry}
    if len(seen) != 1:
        raise ValueError("slamb: the parameters in the checkpoint have different intervals, which 0/1 Adam of one training never has")
    for entry in entries:
        accumulated = (entry or {}).get("momentum_accumulator")
        if entry and (float(entry.get("lrs", 0.0)) != 0.0 or accumulated is not None and bool(accumulated.any())):
            raise ValueError(
                f"slamb: the checkpoint was saved between two exchanges of 0/1 Adam, when each rank had parameters of its own, and it "
                f"has those of one rank; load one whose step is a multiple of local_step_interval = {next(iter(seen))[2]}"
            )
    return next(iter(seen))
