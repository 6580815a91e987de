"""For trainings that come from DeepSpeed: its configuration of an optimizer, and its checkpoints.

DeepSpeed had 1-bit Adam, 1-bit LAMB and 0/1 Adam up to version 0.19.6.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch

from slamb.torch import _arguments as check
from slamb.torch import _state as saved
from slamb.torch._optimizer import Optimizer
from slamb.torch._optimizers import AdamW, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam
from slamb.torch._options import checked_options

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
    "lamb": _Kind("Lamb", Lamb, {**_COMMON, **_CLAMP}, {"eps": 1e-8, "max_coeff": 10.0, "min_coeff": 0.01}, False),
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

    DeepSpeed's Lamb corrects the bias in the size of its steps, and not in the update: give its learning rate the factor
    sqrt(1 - beta2**t) / (1 - beta1**t) in step t. Without bias_correction=False in the configuration a RuntimeWarning says so.

    :param config: the configuration, its part "optimizer", or a file of JSON
    :param arguments: further arguments of the class, as compressor or process_group; they replace those of the configuration
    :raises ValueError: names each option that has no meaning here, and the reason; for ZeRO, and for fp16 and bf16, which need a model of
        that type, or autocast
    """
    whole = config if isinstance(config, dict) else _read_config(Path(config))
    _require_no_wrapper(whole)
    section = whole.get("optimizer", whole)
    if not isinstance(section, dict):
        raise ValueError(f"slamb: the configuration has optimizer = {section!r}, but it must have 'type' and 'params'")
    kind = _kind_of(section.get("type"))
    given = {name: value for name, value in (section.get("params") or {}).items() if value is not None}
    _require_meaning(kind, given)
    params = list(params)
    _require_group_keys(params)
    own: dict[str, Any] = {"weight_decay": 0.0}
    for name, value in {**kind.defaults, **given}.items():
        if name in kind.options and not (name == "max_grad_norm" and value == 0):
            own[kind.options[name]] = value
    if kind.corrects_bias and "bias_correction" in given:
        own["bias_correction"] = given["bias_correction"]
    if kind.own in (OneBitAdam, ZeroOneAdam) and arguments.get("compressor", "sign") == "sign":
        own["scales"] = "per_tensor"
    if kind.own is Lamb:
        own["bias_correction"] = False
        if given.get("bias_correction", True) and "bias_correction" not in arguments:
            warnings.warn(
                "slamb: DeepSpeed's Lamb corrects the bias in the size of its steps; multiply the learning rate by sqrt(1 - beta2**t) / "
                "(1 - beta1**t) in step t, which is nearly 1 after several times 1 / (1 - beta2) steps. To say that this is "
                "done, or not wanted, set bias_correction to false in the configuration",
                RuntimeWarning,
                stacklevel=2,
            )
    return kind.own(params, **{**own, **{check.own_name(name): value for name, value in arguments.items()}})


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
    parameters. Parameters are found by their order in the parameter groups, which take over lr, betas, eps and weight_decay.

    :param checkpoint: DeepSpeed's folder, the folder or file of one step (with PyTorch 2), or what torch.load() has returned
    :param model: has the optimizer's parameters, and takes over these and its buffers. None: it has them already
    :param tag: the name of the step's folder. None: that of the file "latest"
    :param from_other_ranks: continues with another number of ranks than the training had. The variance was frozen with the gradients of
        a whole batch, so keep its size
    :return: what else is in the checkpoint: global_steps, lr_scheduler, and what the program has added
    :raises FileNotFoundError: names the file that is missing
    :raises ValueError: for a checkpoint of ZeRO, of several parts of a model, of another optimizer, other lengths of its phases, or
        other tensors, and for one of 0/1 Adam between two exchanges; on all ranks, if it is so on one. Nothing has changed then
    """
    if not isinstance(optimizer, Optimizer) or optimizer._recipe == "slamb":
        raise ValueError(
            f"slamb: load_deepspeed() was given a {type(optimizer).__name__}, but DeepSpeed has no such optimizer; make that of the "
            f"checkpoint by from_deepspeed()"
        )
    optimizer._join_ranks()
    failure: Optional[Exception] = None
    try:
        found = dict(checkpoint) if isinstance(checkpoint, dict) else _read(Path(checkpoint), tag)
        import_it = _prepared_import(found, model, optimizer, from_other_ranks)
    except Exception as its_failure:
        failure = its_failure
    optimizer._shared.ranks.raise_on_all(failure, "load_deepspeed()")
    import_it()
    return {key: value for key, value in found.items() if key not in ("module", "optimizer")}


def _prepared_import(
    found: dict[str, Any], model: Optional[torch.nn.Module], optimizer: Optimizer, from_other_ranks: bool
) -> Callable[[], None]:
    """What continues from a checkpoint. All of it has been checked."""
    _require_readable(found)
    if optimizer._shared.ranks.shards is not None:
        raise ValueError(
            "slamb: load_deepspeed() was given an optimizer whose parameters are shards, but the checkpoint has whole tensors; "
            "load it without sharding, save the model, and begin with that"
        )
    kind = _kind_of_checkpoint(found)
    state, masters = _without_wrapper(found["optimizer"])
    entries, values = _by_parameter(optimizer, state, masters)
    take_over_state = _importer(optimizer, entries, found, kind)
    if optimizer._recipe not in ("adamw", "lamb"):  # whose state does not depend on the ranks
        _require_number_of_ranks(found, optimizer, from_other_ranks)
    while isinstance(model, torch.nn.parallel.DistributedDataParallel) or hasattr(model, "enable_backward_allreduce"):
        model = model.module  # type: ignore[union-attr]
    if model is not None:
        _require_module(model, found["module"], optimizer)
        # A parameter of 16 bits keeps the digits of a checkpoint in float32.
        names = {id(p): name for name, p in model.named_parameters()}
        for i, p in enumerate(optimizer._parameters()):
            if values[i] is None and p.dtype in (torch.bfloat16, torch.float16) and id(p) in names:
                values[i] = found["module"][names[id(p)]]
    options = _group_options(optimizer, state["param_groups"])

    def import_it() -> None:
        if model is not None:
            model.load_state_dict(found["module"])
        with torch.no_grad():
            for p, value in zip(optimizer._parameters(), values):
                if value is not None:
                    p.copy_(value)
        for group, its in zip(optimizer.param_groups, options):
            group.update(its)
        take_over_state()
        optimizer._set_masters(values)

    return import_it


# ------------------------------------------------------------------------------------------------------------- Configurations


def _kind_of(type_name: Any) -> _Kind:
    kind = _KINDS.get(str(type_name).lower())
    if kind is None:
        names = ", ".join(one.name for one in _KINDS.values())
        raise ValueError(f"slamb: there is no optimizer of DeepSpeed's type {type_name!r} here; there are {names}")
    return kind


def _read_config(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except json.JSONDecodeError as failure:
        raise ValueError(f"slamb: {file} is no JSON ({failure}); leave out comments, or pass a dictionary") from None
    if not isinstance(found, dict):
        raise ValueError(f"slamb: {file} has a {type(found).__name__}, but a configuration of DeepSpeed is a dictionary")
    return found


def _require_no_wrapper(config: dict[str, Any]) -> None:
    zero = config.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else int(zero is True)
    if stage not in (0, "0"):
        raise ValueError(
            f"slamb: the configuration has ZeRO stage {stage}, whose gradients and states are partitioned; set "
            f"zero_optimization.stage to 0, or use fully_shard in place of ZeRO (docs/how-to/sharded.md)"
        )
    for name in ("fp16", "bf16", "bfloat16", "amp"):
        its = config.get(name)
        is_enabled = its.get("enabled") if isinstance(its, dict) else its
        if is_enabled == "auto":
            raise ValueError(f"slamb: the configuration has {name}.enabled = 'auto'; put true or false in its place")
        if is_enabled not in (None, False, "false"):
            raise ValueError(
                f"slamb: the configuration has {name}, which keeps the parameters in copies of its own; leave {name} out, and use "
                f"torch_autocast, or convert the model to that type: the optimizer has the float32 copies"
            )


def _require_meaning(kind: _Kind, given: dict[str, Any]) -> None:
    said: list[str] = []
    unset = [name for name, value in given.items() if value == "auto"]
    if unset:
        raise ValueError(f"slamb: options of DeepSpeed's {kind.name} are 'auto': {', '.join(unset)}; put values in their place")
    for name, value in given.items():
        if name in kind.options or (name == "bias_correction" and (kind.corrects_bias or kind.own is Lamb)):
            continue
        reason, harmless = _WITHOUT_MEANING.get(name, ("it is no option of this optimizer", ()))
        if name == "bias_correction":
            reason, harmless = _NEVER_USED, (True, False)
        if value not in harmless:
            said.append(f"{name} = {value!r} ({reason})")
    if said:
        raise ValueError(f"slamb: options of DeepSpeed's {kind.name} have no meaning here: {', '.join(said)}; leave them out")


_OF_GROUPS = {
    "max_coeff": "give trust_ratio_upper to the optimizer, for all groups",
    "min_coeff": "give trust_ratio_lower to the optimizer, for all groups",
    "bias_correction": "give it to the optimizer, for all groups",
    "non_freeze": "set compress to False in the group",
    "exp_avg_mask": "leave it out: elements whose gradient was always 0 are found without it (zero_aware)",
}


def _require_group_keys(params: Sequence[Any]) -> None:
    for number, group in enumerate(params):
        for key in _OF_GROUPS if isinstance(group, dict) else ():
            if key in group:
                raise ValueError(f"slamb: parameter group {number} has {key!r}, an option of DeepSpeed; {_OF_GROUPS[key]}")


# ---------------------------------------------------------------------------------------------------------------- Checkpoints

_GROUP_KEYS = ("lr", "initial_lr", "betas", "eps", "weight_decay")


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
    if not isinstance(found["optimizer"], dict) or not isinstance(found["module"], dict):
        raise ValueError("slamb: the checkpoint has no dictionaries as 'optimizer' and 'module'; give what save_checkpoint() has written")


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


def _without_wrapper(packed: dict[str, Any]) -> tuple[dict[str, Any], Optional[list[Any]]]:
    """The state of the optimizer itself, and the float32 copies that fp16 or bf16 of DeepSpeed have, by parameter group."""
    state, masters = packed, None
    if "optimizer_state_dict" in packed:
        state, masters = packed["optimizer_state_dict"], packed.get("fp32_groups", packed.get("fp32_groups_flat"))
        if not isinstance(masters, (list, tuple)) or len(masters) != len(state.get("param_groups", ())):
            raise ValueError("slamb: the checkpoint has no float32 copies of each parameter group, which fp16 and bf16 of DeepSpeed save")
    if not {"state", "param_groups"} <= state.keys():
        raise ValueError("slamb: the checkpoint has no 'state' and 'param_groups' of an optimizer; give what save_checkpoint() has written")
    if any(isinstance(entry, dict) and "ranks" in entry for entry in state["state"].values()):
        raise ValueError(
            "slamb: the checkpoint has the state of an optimizer of slamb; load it by engine.load_checkpoint(), or by "
            "optimizer.load_state_dict(checkpoint['optimizer'])"
        )
    return state, None if masters is None else list(masters)


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
            {"step": saved_group["step"], **entry} if entry and "step" in saved_group else entry
            for entry in (dict(state["state"].get(key) or {}) for key in keys)
        ]
        if copies is not None and not is_flat and len(copies) != len(parameters):
            raise ValueError(
                f"slamb: the checkpoint has {len(copies)} float32 copies in group {place}, but this optimizer has {len(parameters)} "
                f"parameters there"
            )
        if is_flat:
            sizes = [p.numel() for p in parameters]
            if copies.numel() != sum(sizes):
                raise ValueError(
                    f"slamb: the checkpoint has {copies.numel()} elements in group {place}, but this optimizer has {sum(sizes)} there"
                )
            _require_flat(place, of_group[0], copies.numel())
            of_group = [_cut(of_group[0], sum(sizes[:i]), p) for i, p in enumerate(parameters)]
            copies = [piece.view(p.shape) for piece, p in zip(copies.detach().split(sizes), parameters)]
        of_parameter = {id(p): i for i, p in enumerate(parameters)}
        for p in group["params"]:
            i = of_parameter.get(id(p))
            entry = None if i is None else of_group[i] or None
            value = None if i is None or copies is None else copies[i].detach()
            _require_values(number, p, entry, value)
            entries.append(entry)
            values.append(value)
            number += 1
    return entries, values


_ARRAYS = ("exp_avg", "exp_avg_sq", "exp_avg_sq_fresh", "momentum_accumulator")


def _cut(entry: dict[str, Any], first: int, p: torch.Tensor) -> dict[str, Any]:
    """What the entry of parameters that lie end to end has of one of them."""
    cut = {key: entry[key].view(-1)[first : first + p.numel()].view(p.shape) for key in _ARRAYS if key in entry}
    return {**entry, **cut}


def _require_flat(place: int, entry: dict[str, Any], size: int) -> None:
    for key in _ARRAYS:
        if key in entry and (not isinstance(entry[key], torch.Tensor) or entry[key].numel() != size):
            raise ValueError(f"slamb: {key} of group {place} in the checkpoint must have {size} elements, as its float32 copy")


def _require_values(number: int, p: torch.Tensor, entry: Optional[dict[str, Any]], value: Optional[torch.Tensor]) -> None:
    """
    :raises ValueError: if the entry is not one of m and v of the parameter's shape, or has numbers that no training can have
    """
    saved.read_moments(number, p, entry)
    for key in ("exp_avg_sq_fresh", "momentum_accumulator"):
        if entry and key in entry:
            saved.read_moments(number, p, {**entry, "exp_avg": entry[key]})
    if entry and "exp_avg" not in entry:
        raise ValueError(f"slamb: the state of parameter {number} in the checkpoint has no 'exp_avg'; it is that of another optimizer")
    if value is not None and tuple(value.shape) != tuple(p.shape):
        raise ValueError(
            f"slamb: the float32 copy of parameter {number} in the checkpoint has the shape {tuple(value.shape)}, but the parameter has "
            f"{tuple(p.shape)}"
        )
    for key, least in (("exp_avg", -math.inf), ("exp_avg_sq", 0.0), ("exp_avg_sq_fresh", 0.0)):
        one = (entry or {}).get(key)
        if one is not None and not bool((one.isfinite() & (one >= least)).all()):
            raise ValueError(
                f"slamb: {key} of parameter {number} in the checkpoint has numbers that are not finite, or negative; the training has "
                f"diverged, so go back to an earlier checkpoint"
            )


def _require_module(model: torch.nn.Module, module: dict[str, Any], optimizer: Optimizer) -> None:
    """
    :raises ValueError: if the model has other tensors
    """
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - module.keys()), sorted(module.keys() - own.keys())
    if missing or unknown:
        names = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}"
        raise ValueError(f"slamb: the model in the checkpoint {names}, but model {'has it' if missing else 'has not'}; give the same model")
    for name, value in own.items():
        theirs = module[name]
        if not isinstance(value, torch.Tensor):
            continue
        if not isinstance(theirs, torch.Tensor) or value.shape != theirs.shape:
            found = f"the shape {tuple(theirs.shape)}" if isinstance(theirs, torch.Tensor) else type(theirs).__name__
            raise ValueError(f"slamb: {name!r} in the checkpoint has {found}, but {tuple(value.shape)} in the model")
    of_model = {id(p) for p in model.parameters()}
    if any(id(p) not in of_model for p in optimizer._parameters()):
        raise ValueError("slamb: load_deepspeed() was given a model without some parameters of the optimizer; give the model that it trains")


def _group_options(optimizer: Optimizer, theirs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the parameter groups take over.

    :raises ValueError: if they cannot
    """
    options = [{key: group[key] for key in _GROUP_KEYS if key in group} for group in theirs]
    together: dict[Any, Any] = {}  # groups with equal coefficients must keep equal ones
    for number, (group, its) in enumerate(zip(optimizer.param_groups, options)):
        before, after = checked_options(number, group).coefficients, checked_options(number, {**group, **its}).coefficients
        if together.setdefault(before, after) != after:
            raise ValueError(
                f"slamb: the parameter groups in the checkpoint have different betas or eps, {together[before]} and {after}, but equal ones "
                f"in this optimizer; construct it with those of the training"
            )
    return options


# ------------------------------------------------------------------------------------------------------------------- States


def _importer(optimizer: Optimizer, entries: Sequence[Optional[dict[str, Any]]], found: dict[str, Any], kind: Optional[_Kind]) -> Any:
    """What makes the optimizer continue from these entries, all of which have been checked."""
    keys = {key for entry in entries for key in (entry or {})}
    recipe = optimizer._recipe
    saved_by = kind.name if kind is not None else _recognized(keys)
    is_same = kind.own._recipe == recipe if kind is not None else saved_by in _NAMES[recipe]
    if not is_same:
        raise ValueError(
            f"slamb: the checkpoint is that of DeepSpeed's {saved_by or 'own optimizer, which has taken no step'}, but this optimizer "
            f"is {type(optimizer).__name__}; make that of the checkpoint by from_deepspeed()"
        )
    if recipe in ("adamw", "lamb"):
        optimizer._require_open_moments("load_deepspeed")
        packed = optimizer.state_dict()["param_groups"]
        kept = ("step", "exp_avg", "exp_avg_sq")
        state = {i: {key: entry[key] for key in kept} for i, entry in enumerate(entries) if entry}
        return lambda: optimizer.import_state({"state": state, "param_groups": [{"params": one["params"]} for one in packed]})
    steps = {int(check.number("step", entry["step"])) for entry in entries if entry}
    if len(steps) != 1 or 0 in steps:
        raise ValueError(
            f"slamb: the parameters in the checkpoint have taken {sorted(steps) or 'no'} steps; {type(optimizer).__name__} needs one "
            f"number > 0"
        )
    (taken,) = steps
    _require_lengths(optimizer, keys, taken, found, kind)
    settings = optimizer._arguments["settings"]
    if recipe == "zero_one_adam":
        intervals = _intervals(entries, taken > int(settings["variance_freeze_step"]))
        return lambda: optimizer._import_frozen(entries, taken - 1, 0, intervals)  # its first step only allocates
    warm_up = int(settings["warm_up_steps"]) if taken >= int(settings["warm_up_steps"]) else 0
    own = [_with_ratio(number, entry) for number, entry in enumerate(entries)] if recipe == "one_bit_lamb" else entries
    is_at_end = recipe == "one_bit_lamb" and warm_up > 0 and "scaling_coeff" not in keys
    if recipe == "one_bit_lamb" and any(entry and "exp_avg_sq_fresh" not in entry for entry in entries):
        raise ValueError("slamb: the checkpoint has no 'exp_avg_sq_fresh', which 1-bit LAMB has of each parameter")
    return lambda: optimizer._import_frozen(own, taken, 0 if is_at_end else warm_up, ())


# By the keys that they leave. Those of Lamb, of Adam, and of 1-bit Adam in its warm-up are the same.
_NAMES = {
    "adamw": ("Adam",),
    "lamb": ("Adam",),
    "one_bit_adam": ("Adam", "OneBitAdam"),
    "one_bit_lamb": ("OneBitLamb",),
    "zero_one_adam": ("ZeroOneAdam",),
}


def _recognized(keys: set[str]) -> Optional[str]:
    """The optimizer that leaves such keys. Those of 1-bit Adam and of Adam can be the same."""
    if "lamb_coeff_freeze" in keys:
        return "OneBitLamb"
    if "var_interval" in keys:
        return "ZeroOneAdam"
    return ("OneBitAdam" if "worker_error" in keys else "Adam") if "exp_avg" in keys else None


def _require_lengths(optimizer: Optimizer, keys: set[str], taken: int, found: dict[str, Any], kind: Optional[_Kind]) -> None:
    """
    :raises ValueError: if the phases of the optimizer have other lengths than in the training
    """
    settings = optimizer._arguments["settings"]
    if kind is not None:
        section = found["ds_config"]["optimizer"]
        theirs = {**kind.defaults, **{name: value for name, value in (section.get("params") or {}).items() if value is not None}}
        for name, usual in {"freeze_step": None, **_LENGTHS_OF_INTERVALS}.items():
            own = kind.options.get(name)
            if own is None:
                continue
            value = theirs.get(name, usual)
            if int(settings[own]) != value:
                raise ValueError(
                    f"slamb: the checkpoint was saved with {name} = {value}, but this optimizer has {own} = {settings[own]}; construct it "
                    f"with {own}={value}"
                )
    elif optimizer._recipe != "zero_one_adam":
        length = int(settings["warm_up_steps"])
        is_frozen = not keys.isdisjoint(("worker_error", "scaling_coeff"))
        if is_frozen and taken < length or "lamb_coeff_freeze" in keys and not is_frozen and taken > length:
            raise ValueError(
                f"slamb: at step {taken} of the checkpoint the variance is {'' if is_frozen else 'not '}frozen, but this optimizer has "
                f"warm_up_steps = {length}; construct it with the freeze_step of the training"
            )


_LENGTHS_OF_INTERVALS = {"var_freeze_step": None, "var_update_scaler": 16, "local_step_scaler": 32678, "local_step_clipper": 16}


def _with_ratio(number: int, entry: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """The entry of 1-bit LAMB, with its numbers as a ratio."""
    if entry is None:
        return None
    usual = {"lamb_coeff_freeze": 0.0, "last_factor": 1.0, "scaling_coeff": 1.0}
    mean, factor, scale = (float(entry.get(key, value)) for key, value in usual.items())
    smallest, largest = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    if not (0.0 <= mean <= largest and smallest <= factor <= largest and smallest <= scale <= largest):
        raise ValueError(
            f"slamb: parameter {number} in the checkpoint has lamb_coeff_freeze = {mean}, last_factor = {factor} and scaling_coeff = "
            f"{scale}, which must be numbers > 0 of float32; the training has diverged, so go back to an earlier checkpoint"
        )
    return {**entry, "ratio": (mean, factor, scale)}


def _intervals(entries: Sequence[Optional[dict[str, Any]]], is_local: bool) -> tuple[int, ...]:
    """The intervals of 0/1 Adam.

    :raises ValueError: between two exchanges, and for those that no training has
    """
    names = ("var_interval", "var_counter", "local_step_interval", "local_step_counter")
    seen = {tuple(int(entry[name]) for name in names if name in entry) for entry in entries if entry}
    (one,) = seen if len(seen) == 1 else ((),)
    if len(one) != 4 or one[0] < 1 or one[0] & (one[0] - 1) or one[2] < 1 or min(one) < 0:
        raise ValueError(
            f"slamb: the parameters in the checkpoint have {', '.join(names)} = {sorted(seen)}, but they must be the same of all, var_interval "
            f"a power of two, and no number negative"
        )
    if not is_local and (one[2] > 1 or one[3] > 0):
        raise ValueError(
            f"slamb: the checkpoint has taken local steps (local_step_interval = {one[2]}), but this optimizer has not frozen the variance "
            f"at that step; construct it with the var_freeze_step of the training"
        )
    for entry in entries:
        accumulated = (entry or {}).get("momentum_accumulator")
        if entry and (float(entry.get("lrs", 0.0)) != 0.0 or accumulated is not None and bool(accumulated.any())):
            raise ValueError(
                f"slamb: the checkpoint was saved between two exchanges of 0/1 Adam, when each rank had parameters of its own, and it "
                f"has those of one rank; load one whose step is a multiple of local_step_interval = {one[2]}"
            )
    return one
