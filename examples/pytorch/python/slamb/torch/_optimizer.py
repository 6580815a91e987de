"""The base of all optimizers: steps, parameter groups and states."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import operator
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Optional, TypeVar, cast

import torch

from slamb import _native
from slamb.torch import _arguments as check
from slamb.torch import _capture as capture
from slamb.torch import _state as saved
from slamb.torch._arguments import Setting
from slamb.torch._options import FIXED_KEYS, checked_options, options_of, require_fixed_keys
from slamb.torch._part import OWN_KEYS, Part
from slamb.torch._ranks import AllRanks, Ranks, group_of, is_initialized, ranks_of
from slamb.torch._shards import Groups, Piece, groups_of_parameters, holders_of, is_row, piece_of, reshard_fsdp1
from slamb.torch._tensors import Strides, is_flattened, is_lazy, require_separate

_parameters_of = operator.itemgetter("params")

# Keys of statistics that are added up over the parts.
_SUMS_OF_PARTS = (
    *("collectives", "payload_bytes", "sent_bytes", "shard_collectives", "shard_sent_bytes"),
    *("bounded_elements", "late_elements"),
)

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _outside_of_inference_mode() -> contextlib.AbstractContextManager[None]:
    """Tensors that are made within inference_mode cannot be changed outside of it."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def _require_separate_parts(parts: Sequence[Part]) -> None:
    """
    :raises ValueError: if parameters of different parts share memory
    """
    if len(parts) > 1:
        tensors = [(f"parameter {n}", p) for part in parts for n, p in zip(part.members, part.tensors.parameters)]
        require_separate(tensors)


def _is_trainable(p: torch.Tensor) -> bool:
    return not is_lazy(p) and (p.requires_grad or p.grad is not None)


class _SavedPart(NamedTuple):
    """The state of a part, for a copy of the optimizer."""

    members: list[int]
    key: str
    strides: dict[int, Strides]
    state: torch.Tensor


class _Referred(NamedTuple):
    """Process groups, without a reference to them: see Ranks."""

    exchange: Optional["weakref.ref[torch.distributed.ProcessGroup]"]
    shards: Optional["weakref.ref[torch.distributed.ProcessGroup]"]

    @classmethod
    def of(cls, groups: Groups) -> "_Referred":
        return cls(*(None if one is None else weakref.ref(one) for one in groups))

    def groups(self) -> Groups:
        """
        :raises RuntimeError: if one has been destroyed
        """
        found = [None if one is None else one() for one in self]
        if any(one is None and referred is not None for one, referred in zip(found, self)):
            raise RuntimeError("slamb: the process group has been destroyed; copy the optimizer before that")
        return Groups(*found)


_NO_GROUPS = _Referred(None, None)


class _Shared:
    """What belongs to one optimizer, however many objects stand for it: wrappers take over its attributes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.parts: Optional[list[Part]] = None  # None: of a copy, until it is used
        self.saved_parts: list[_SavedPart] = []  # of a copy, until it is used
        self.parameters: list[torch.Tensor] = []  # all of them, as at the last look
        self.waiting: list[torch.Tensor] = []  # those of no part: frozen, or without a shape
        self.entries: list[Any] = []  # all values of `state`, as at the last look
        self.gathered: list[dict[str, torch.Tensor]] = []  # for each part the states of all ranks
        self.groups = _NO_GROUPS  # the given ones, and those of shards
        self.pieces: dict[int, Piece] = {}  # by the ids of parameters, of a copy: FSDP1 does not know those
        self.has_joined = False  # false: it may still join a process group
        self.has_stepped_alone = False
        self.has_warned_of_clipping = False
        self.has_agreed = False  # that all ranks take over a state
        self.ranks = AllRanks(None, None)
        self.stream: Optional[torch.cuda.Stream] = None

    def require_own_process(self, call: str) -> None:
        """
        :raises RuntimeError: in a process that was forked
        """
        if os.getpid() != self.process:
            raise RuntimeError(
                f"slamb: {call}() was called in a process that was forked after the optimizer was constructed; threads do not exist "
                f"there. Construct an optimizer in the new process, or start it by spawn"
            )


def _exclusive(method: _Method) -> _Method:
    """One call of an optimizer at a time. A thread that saves a state and one that trains wait for each other."""

    @functools.wraps(method)
    def locked(self: "Optimizer", *args: Any, **options: Any) -> Any:
        self._shared.require_own_process(method.__name__.lstrip("_"))
        if method.__name__ != "_step":
            self._require_no_capture(method.__name__)
        with self._shared.lock, _outside_of_inference_mode():
            return method(self, *args, **options)

    return cast(_Method, locked)


class Optimizer(torch.optim.Optimizer):
    """The base of slamb's optimizers. Construct one of `AdamW`, `Lamb`, `Slamb`, `OneBitAdam`, `OneBitLamb`, `ZeroOneAdam`.

    Parameters are dense tensors of float32, bfloat16 or float16, in any mixture, in host memory, or on a GPU if the package was
    built for it. Those of 16 bits have a float32 copy, which steps update (`rounding="nearest"`), or each update is rounded up
    or down at random, without a copy (`rounding="stochastic"`). Gradients may have any of these types.

    Parameters with `requires_grad=False` cost nothing. They may be of any type. One that is trained later, and one that comes
    later by `add_param_group()` or in `param_groups`, has moments, schedules and a warm-up of its own. So have groups with
    different `betas` or `eps`. Parameters of lazy modules are taken when they have a shape.

    Keys of a parameter group: `lr`, `weight_decay`, `betas` and `eps`, which are read at each step, and `adapt` (False: trust
    ratio 1) and `compress` (False: always exchanged dense), which are read at the construction. Groups whose `betas` and `eps`
    were equal at the construction must keep them equal. `dimensions`: the number of dimensions of whole parameters, if they
    cannot be found.

    Parameters may be DTensors, of FSDP2 and tensor parallelism, and those of FullyShardedDataParallel. Each rank updates its
    part. `shard_group` joins the ranks that hold a model together: norms are of whole parameters, and all ranks skip the same
    steps. `process_group` joins the ranks that hold the same part. Moments of a DTensor in `state` are DTensors.

    `state[p]` has the number of steps, and with AdamW and LAMB the moments `exp_avg` and `exp_avg_sq` in the memory of the
    optimizer: what is written there counts. Entries of others in `state` are kept. Without other ranks, deleted entries begin
    anew, and entries that were replaced are taken over, at the next call; with other ranks both are errors, and `reset_state()`
    and `load_state_dict()` are for it.

    With several ranks, all ranks must construct the optimizer, call `step()`, and make the calls whose description says
    "Collective". All ranks must begin with equal parameters. `broadcast_parameters()` gives them those of rank 0. An optimizer
    that was constructed before `init_process_group()` joins the process group at its first call after it.

    Checkpoints: `state_dict()` has this rank's complete state. Dense AdamW and LAMB have the same state on all ranks. The others
    keep compression errors, momenta or parameters of their own. Save them on every rank, or call `consolidate_state_dict()` on
    all ranks before `state_dict()` on one. A run that continues from a state computes the same bits as one that was not
    interrupted. If parameters have names, a state finds its parameters by them.

    Calls from several threads wait for each other. In a process that was forked, a call that computes or saves is a RuntimeError.
    A copy joins the ranks at its first call, which is collective.

    :raises ValueError: for a wrong argument; the message names it and says what would be right. Nothing has changed then
    :raises RuntimeError: if ranks differ in settings or parameters, or a collective failed
    """

    _recipe: ClassVar[str]
    _keeps_own_parameters: ClassVar[bool] = False  # parameters may differ between ranks

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        compressor: str,
        process_group: Optional["torch.distributed.ProcessGroup"],
        shard_group: Optional["torch.distributed.ProcessGroup"],
        exchange: bool,
        rounding: str,
        moments: str,
        threads: Optional[int],
        own: dict[str, Optional[Setting]],
        settings: dict[str, Optional[Setting]],
    ) -> None:
        """
        :param own: the named arguments of the class that are settings
        :param settings: others, by their names here or in other libraries
        """
        if rounding not in ("nearest", "stochastic"):
            raise ValueError(f"slamb: rounding must be 'nearest' or 'stochastic', not {rounding!r}")
        settings = dict(settings)
        fixed: dict[str, Any] = {key: settings.pop(key) for key in FIXED_KEYS if key in settings}
        require_fixed_keys("", fixed)
        self._arguments: dict[str, Any] = {
            "compressor": check.text("compressor", compressor),
            "exchange": check.truth("exchange", exchange),
            "rounding": rounding,
            "moments": check.text("moments", moments),
            "threads": None if threads is None else check.count("threads", threads, 1),
            "check_gradients": check.truth("check_gradients", settings.pop("check_gradients", True)),
            "rounding_seed": check.count("rounding_seed", settings.pop("rounding_seed", 0), 0),
            "from_other_ranks": check.truth("from_other_ranks", settings.pop("from_other_ranks", False)),
        }
        check.rate("lr", lr)
        check.number("weight_decay", weight_decay)
        canonical = check.settings_by_own_names(type(self).__init__, {"betas": betas, "eps": eps, **own}, settings)
        canonical_betas = canonical.pop("beta1"), canonical.pop("beta2")
        epsilon = canonical.pop("epsilon")
        self._arguments["settings"] = canonical
        self._is_constructed = False
        self._shared = _Shared()
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas if canonical_betas == check.pair("betas", betas) else canonical_betas,  # tensors may change
            "eps": epsilon,
            "weight_decay": weight_decay,
            "adapt": True,
            "compress": True,
            **{key: fixed.get(key, possible[0]) for key, possible in FIXED_KEYS.items()},
        }
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("slamb: params has no parameters; give at least one")
        self._attach(process_group, shard_group)
        self._shared.parts = []
        with _outside_of_inference_mode():
            self._follow_groups()
        self._is_constructed = True

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What GradScaler asks: whether steps divide by the loss scale and skip overflows. With several ranks they must, because
        all ranks have to skip together. GradScaler refuses gradients of float16 otherwise, and would wait in a captured step."""
        return (
            not self._shared.ranks.is_alone
            or self._is_captured()
            or self._group_to_join() is not None
            or any(group.get("fused") for group in self.param_groups)
            or any(p.dtype == torch.float16 for p in self._parameters() if p.requires_grad)
        )

    # ------------------------------------------------------------------------------------------------ torch.optim.Optimizer

    def step(self, closure: Optional[Callable[[], Any]] = None, **scaling: Any) -> Any:
        """One step. Collective. Parameters whose gradient is None are left as they are. It must be None on all ranks.

        On a GPU it can be captured into a CUDA graph after a first step: with `AdamW`, `Lamb`, `Slamb` with local_steps=0, and
        the 1-bit optimizers after their warm-up. A learning rate that is a tensor on the GPU is read at each replay; a float is
        a constant of the graph.

        :param closure: computes the loss again and returns it, with gradients
        :return: the closure's loss
        :raises RuntimeError: if ranks have diverged or a collective failed; at the first step, if the gradients of all ranks
            are equal; in a process that was forked; if it cannot be captured, with the reason: nothing has changed then
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._step(*self._scaling(**scaling))
        except BaseException:
            self._forget_scaling()
            raise
        return loss

    @_exclusive
    def _step(self, loss_scale: Optional[torch.Tensor], found_inf: Optional[torch.Tensor]) -> None:
        shared = self._shared
        is_captured = self._is_captured()
        parts = self._prepared_for_capture() if is_captured else self._prepared(for_step=True)
        shared.gathered = []
        if not is_captured:
            shared.ranks.require_equal_scaling(loss_scale, found_inf)
        for part in parts:
            part.check_step(self.param_groups, loss_scale, found_inf)  # all, before the first has changed anything
        if not shared.has_joined and not shared.has_stepped_alone:
            shared.has_stepped_alone = True
            self._warn_if_ranks_are_missing()
        for part in parts:
            part.step(self.param_groups, loss_scale, found_inf)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters. Collective after the construction."""
        if not self._is_constructed:
            super().add_param_group(param_group)
            return
        self._shared.require_own_process("add_param_group")
        self._require_no_capture("add_param_group")
        with self._shared.lock, _outside_of_inference_mode():
            self._prepared()
            super().add_param_group(param_group)
            self._shared.gathered = []
            try:
                self._follow_groups()
            except BaseException:
                self.param_groups.pop()
                self._note_parameters(self._parameters())
                raise

    @_exclusive
    def state_dict(self) -> dict[str, Any]:
        """The state of this rank, and after `consolidate_state_dict` of all ranks. See the class. Its tensors are copies, but for
        those of others."""

        def fill(_: Any, packed: dict[str, Any]) -> dict[str, Any]:
            shards = self._shared.ranks.shards
            of_shard = {saved.SHARD: [shards.rank, shards.size]} if shards is not None and self._is_state_of_shard() else {}
            return {**packed, "state": self._saved_state(), **of_shard}

        if not hasattr(self, "register_state_dict_post_hook"):  # torch < 2.2
            return fill(self, super().state_dict())
        # Before the hooks of others, which see a state as it is saved.
        handle = self.register_state_dict_post_hook(fill, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    @_exclusive
    def load_state_dict(self, state_dict: dict[str, Any], from_other_ranks: Optional[bool] = None) -> None:
        """Continues from a `state_dict()`. Load the model's parameters too. Those of `Slamb` and `ZeroOneAdam`, and parameters of
        16 bits with rounding="nearest", are restored from this state. AdamW and LAMB also load a state of torch.optim.AdamW.
        Collective if the state has other parts than this optimizer (parameters that were trained later, or in another order), and for
        `AdamW` and `Lamb` with a shard group.

        :param from_other_ranks: also accepts the state of other ranks, or of another number of ranks. Compression errors then
            start at zero. Set it on all ranks or on none, and give all the same state. None: as at the construction
        :raises ValueError: if the state does not fit; nothing has changed then
        """
        is_of_others = self._arguments["from_other_ranks"] if from_other_ranks is None else from_other_ranks
        self._join()
        self._built()
        self._shared.gathered = []
        self._shared.has_agreed = False
        before = self.__dict__.copy()

        def prepare(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            saved.require_own_shard(given, self._shared.ranks)
            groups = self.param_groups
            return saved.with_opaque_values(saved.with_own_keys(saved.in_order_of_names(given, groups), groups))

        is_adopted = False

        def adopt(_: Any) -> None:
            nonlocal is_adopted
            saved.reveal(self.state)
            self._take_over(is_of_others, is_loaded=True)
            is_adopted = True

        try:
            if not hasattr(self, "register_load_state_dict_post_hook"):  # torch < 2.2
                super().load_state_dict(prepare(self, state_dict))
                adopt(self)
                return
            # Between the hooks of others, which see a state as it is saved, and as it is used.
            with contextlib.ExitStack() as hooks:
                hooks.callback(self.register_load_state_dict_pre_hook(prepare).remove)
                hooks.callback(self.register_load_state_dict_post_hook(adopt, prepend=True).remove)
                super().load_state_dict(state_dict)
        except BaseException as failure:
            if not is_adopted:  # else a hook of others has failed, after the state was loaded
                self.__dict__.update(before)
            if self._is_state_of_shard() and not self._shared.has_agreed and isinstance(failure, Exception):
                self._shared.ranks.raise_on_all(failure, "load_state_dict()")  # the others wait in _take_over_moments()
            raise

    def __getstate__(self) -> dict[str, Any]:
        self._shared.require_own_process("pickling or copying")
        self._require_no_capture("copy")
        with self._shared.lock, _outside_of_inference_mode():
            parts = [
                _SavedPart(part.members, self._shared.ranks.key, part.tensors.reordered(), part.save())
                for part in self._prepared()
                if not part.has_open_state
            ]
            own = {
                "_arguments": self._arguments,
                "_is_constructed": True,
                "_saved_parts": parts,
                "_has_stepped_alone": self._shared.has_stepped_alone,
                "_pieces": self._pieces_of_fsdp1(),
                "_number_of_shards": self._shared.ranks.number_of_shards,
            }
            return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._restore(state)
        if "_saved_parts" in state:
            self._attach(None, None, state.get("_number_of_shards", 1))

    def _restore(self, state: dict[str, Any]) -> None:
        """All of `__getstate__`, without process groups."""
        own = ("_saved_parts", "_has_stepped_alone", "_pieces", "_number_of_shards")
        super().__setstate__({key: value for key, value in state.items() if key not in own})
        if "_saved_parts" in state:  # a copy, whose compiled parts are made when it is used
            self._shared = _Shared()
            self._shared.saved_parts = state["_saved_parts"]
            self._shared.has_stepped_alone = state.get("_has_stepped_alone", False)
            self._shared.pieces = {id(p): piece for p, piece in zip(self._parameters(), state.get("_pieces") or ())}

    def __copy__(self) -> "Optimizer":
        """Another object for the same optimizer."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "Optimizer":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        groups = self._shared.groups.groups()
        copied._restore(copy.deepcopy(self.__getstate__(), memo))
        copied._attach(*groups)
        return copied

    # ------------------------------------------------------------------------------------------------------------- Of slamb

    @_exclusive
    def broadcast_parameters(self, root: int = 0) -> None:
        """Gives all ranks the parameters of rank `root` of the process group. Collective. Call it before the first step.
        Parameters with `requires_grad=False` are not among them."""
        self._shared.gathered = []
        for part in self._prepared():
            with part.on_its_stream():
                part.core.broadcast_parameters(root)
            part.tensors.after_step()

    @_exclusive
    def synchronize_parameters(self) -> None:
        """Replaces parameters that differ between ranks by their mean, from which training continues. Collective. Parameters
        differ only with `Slamb` and `ZeroOneAdam`. Call it before one rank saves the model."""
        self._shared.gathered = []
        for part in self._prepared():
            with part.on_its_stream():
                part.core.synchronize_parameters()
            part.tensors.after_step()

    @_exclusive
    def with_averaged_parameters(self, evaluate: Callable[[], Any]) -> Any:
        """Calls `evaluate()` while parameters are their mean over ranks, and then restores this rank's own, to the bit.
        Collective. For evaluations during a training; `evaluate` must not call the optimizer.

        :return: the result of `evaluate()`
        """
        parts = self._prepared()
        # The memory that is restored stays alive, even if `evaluate` gives parameters another.
        own = [(p, p.detach()) for part in parts for p in part.tensors.parameters]
        result: list[Any] = []

        def within(number: int) -> None:
            if number < len(parts):
                with parts[number].on_its_stream():
                    parts[number].core.with_averaged_parameters(lambda: within(number + 1))
                return
            # On a GPU the mean is computed on the optimizer's stream, and behind this call.
            stream = self._shared.stream
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                for part in parts:
                    part.tensors.after_step()
                reshard_fsdp1(self._parameters())
                try:
                    result.append(evaluate())
                finally:
                    reshard_fsdp1(self._parameters())

        try:
            within(0)
        finally:
            for part in parts:
                part.tensors.after_step()
            for p, restored in own:
                if p.data_ptr() != restored.data_ptr():
                    p.detach().copy_(restored)
        return result[0]

    @_exclusive
    def reload_parameters(self) -> None:
        """Takes over values that were written to parameters of 16 bits through `.data`, which steps do not notice. Values that
        were written to the parameters themselves, as by `model.load_state_dict()`, are noticed."""
        for part in self._prepared():
            part.tensors.reload_masters()

    @_exclusive
    def compare_ranks(self) -> None:
        """Compares the ranks' steps and parameters now. Collective.

        :raises RuntimeError: on every rank, if they differ
        """
        for part in self._prepared():
            with part.on_its_stream():
                part.core.compare_ranks()

    @_exclusive
    def reset_state(self) -> None:
        """Begins anew with the present parameters: moments, compression errors, schedules and the number of steps are those of a
        new optimizer. With `Slamb` and `ZeroOneAdam` all ranks take the mean of their parameters first. Entries of others in
        `state` are kept. Collective."""
        self._shared.gathered = []
        parts = self._prepared(takes_over=False)
        for part in parts:
            with part.on_its_stream():
                part.core.synchronize_parameters()
            part.tensors.after_step()
        for part in parts:
            part.renew(self.param_groups)
        self._show()

    @_exclusive
    def moments(self, parameter: torch.Tensor) -> dict[str, Any]:
        """A copy of a parameter's moments, under the names of torch.optim: `step`, the number of steps taken, and `exp_avg` and
        `exp_avg_sq`, tensors of the parameter's shape.

        :raises ValueError: if it is not trained by this optimizer, or its moments are not stored as float32
        """
        for part in self._prepared():
            for i, p in enumerate(part.tensors.given):
                if p is parameter:
                    found = part.moments(i)
                    if found is None:
                        raise ValueError(
                            f"slamb: moments() was called on an optimizer with moments = {self._arguments['moments']!r}; only "
                            f"those of moments = 'float32' can be read"
                        )
                    exp_avg, exp_avg_sq = (part.like_parameter(i, one.clone()) for one in found)
                    return {"step": part.steps(), "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        raise ValueError(
            "slamb: moments() was given a tensor that this optimizer does not train; give it one of param_groups, which has "
            "requires_grad=True"
        )

    @_exclusive
    def import_state(self, state_dict: dict[str, Any]) -> None:
        """Continues with the moments and the number of steps of another AdamW, Adam or LAMB, from its `state_dict()` in the format
        of torch.optim. Options of parameter groups stay as they are. Parameters are found by their names, if both sides have
        them, else by their order. For `AdamW` and `Lamb` with float32 moments. Collective, as `load_state_dict()`.

        :raises ValueError: if it does not fit; nothing has changed then
        """
        self._require_open_moments("import_state")
        theirs, own = state_dict["param_groups"], self.param_groups
        if len(theirs) != len(own):
            raise ValueError(f"slamb: import_state() was given {len(theirs)} parameter groups, but this optimizer has {len(own)}")
        for number, (saved_group, group) in enumerate(zip(theirs, own)):
            if len(saved_group["params"]) != len(group["params"]):
                raise ValueError(
                    f"slamb: import_state() was given {len(saved_group['params'])} parameters in parameter group {number}, but this "
                    f"optimizer has {len(group['params'])} there"
                )
        self._prepared(takes_over=False)
        ordered = saved.in_order_of_names(state_dict, own)["state"]
        keys = [key for group in theirs for key in group["params"]]
        entries = {
            p: {name: value for name, value in ordered.get(key, {}).items() if name != "master_param"}
            for key, p in zip(keys, self._parameters())
        }
        self._take_over_moments(entries, is_loaded=True)

    @_exclusive
    def _join_ranks(self) -> None:
        """Joins the default group, if it was initialized after the construction, as the next call would."""
        self._join()

    @_exclusive
    def _import_frozen(
        self, entries: Sequence[Optional[dict[str, Any]]], steps: int, warm_up: int, intervals: Sequence[int]
    ) -> None:
        """Continues with the state of a 1-bit optimizer or 0/1 Adam of another program, without compression errors. Collective.

        :param entries: of each parameter: exp_avg and exp_avg_sq, and of 1-bit LAMB exp_avg_sq_fresh and ratio; None: it has no state
        :param warm_up: the variance was frozen after so many steps; 0: not yet
        """
        self._shared.gathered = []
        for part in self._prepared(takes_over=False):
            if part.has_started:
                part.renew(self.param_groups)
            part.tensors.reload_masters()
            ratios: list[tuple[float, float, float]] = []
            for i, number in enumerate(part.members):
                entry = entries[number] or {}
                part.set_moments(i, entry.get("exp_avg"), entry.get("exp_avg_sq"))
                if "exp_avg_sq_fresh" in entry:
                    part.set_fresh_variance(i, entry["exp_avg_sq_fresh"])
                if self._recipe == "one_bit_lamb":
                    ratios.append(entry.get("ratio", (0.0, 1.0, 1.0)))
            part.set_steps(steps, warm_up, ratios, intervals)
        self._show()

    @_exclusive
    def _set_masters(self, values: Sequence[Optional[torch.Tensor]]) -> None:
        """Replaces float32 copies of parameters, and the parameters, which are the copies, rounded.

        :param values: of each parameter; None: as it is
        """
        for part in self._prepared():
            for i, number in enumerate(part.members):
                value = values[number]
                if value is not None and i in part.tensors.masters:
                    part.tensors.set_master(i, value)

    @_exclusive
    def export_state(self) -> dict[str, Any]:
        """A state that `torch.optim.AdamW.load_state_dict()` takes: for each parameter `step`, `exp_avg` and `exp_avg_sq`. For
        `AdamW` and `Lamb` with float32 moments."""
        self._require_open_moments("export_state")
        packed = self.state_dict()["param_groups"]
        state: dict[int, Any] = {}
        for part in self._prepared():
            for i, number in enumerate(part.members):
                found = part.moments(i)
                assert found is not None
                steps = torch.tensor(float(part.steps()), dtype=torch.float32, device="cpu")
                exp_avg, exp_avg_sq = (part.like_parameter(i, one.clone()) for one in found)
                state[number] = {"step": steps, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        without = ("adapt", "compress")
        others = {"amsgrad": False, "decoupled_weight_decay": True}
        groups = [{**{key: value for key, value in group.items() if key not in without}, **others} for group in packed]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    @_exclusive
    def consolidate_state_dict(self, to: int = 0, whole: bool = False) -> None:
        """Collects the states of all ranks at rank `to` of the process group, whose next `state_dict()` has all of them.
        Collective. The next step discards them. With a shard group it is the rank `to` of those that hold the first shard; moments
        of AdamW and LAMB without a compressor are not collected then: see torch.distributed.checkpoint.

        :param whole: collects the state of whole parameters, without compression errors. `load_state_dict()` takes it with
            from_other_ranks=True, with any number of shards, and without. Parameters must be cut along their first dimension
            alone. Momenta and parameters that differ between replicas are those of rank `to`
        :raises ValueError: if parameters are cut otherwise; nothing has changed then
        """
        parts = self._prepared()
        ranks = self._shared.ranks
        if whole:
            self._require_whole(parts, "consolidate_state_dict")
            self._shared.gathered = [{} if part.has_open_state else saved.whole_bytes_of(part, ranks, to) for part in parts]
            return
        if ranks.is_alone:
            return
        self._shared.gathered = [
            {} if part.has_open_state else ranks.gather_states(saved.bytes_of(part, ranks.key), to) for part in parts
        ]

    @_exclusive
    def statistics(self, with_norms: bool = False) -> dict[str, Any]:
        """Steps, phase, and traffic of this rank: `collectives`, `payload_bytes`, `sent_bytes`, in all and by phase. With
        parameters that were added later, the traffic and the numbers of elements are sums, and the rest is of the first ones.

        :param with_norms: also the norms of parameters, moments and compression errors, and the numbers of elements at
            `update_bound` and with a variance that began late, at the cost of a pass over them
        """
        parts = self._prepared()
        if not parts:
            return {"step": 0, "skipped_steps": 0, "collectives": 0, "payload_bytes": 0, "sent_bytes": 0, "phase": "", "phases": {}}
        of_parts = [part.statistics(with_norms) for part in parts]
        for part in parts:
            part.show_steps()
        sums = {name: sum(one[name] for one in of_parts) for name in _SUMS_OF_PARTS if name in of_parts[0]}
        return {**of_parts[0], **sums}

    @_exclusive
    def memory(self) -> dict[str, int]:
        """Bytes that the optimizer holds, by purpose, without copies of parameters of 16 bits."""
        total: dict[str, int] = {"total": 0}
        for part in self._built():
            for purpose, count in part.core.memory().items():
                total[purpose] = total.get(purpose, 0) + count
        total["total"] = total.pop("total")  # last
        return total

    # ------------------------------------------------------------------------------------------------- The process group

    def _attach(
        self,
        process_group: Optional["torch.distributed.ProcessGroup"],
        shard_group: Optional["torch.distributed.ProcessGroup"],
        number_of_shards: int = 1,
    ) -> None:
        """Begins with these process groups, or with the default group, now or when it is initialized.

        :param number_of_shards: of a copy
        """
        parameters = self._parameters()
        shared = self._shared
        device = parameters[0].device
        # On a GPU all work is on a stream of its own, so that steps can be captured into graphs.
        shared.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        exchanges = self._arguments["exchange"]
        groups = groups_of_parameters(parameters, process_group, shard_group, exchanges)
        if number_of_shards > 1 and groups.shards is None:
            raise ValueError(
                "slamb: this is a pickle of an optimizer whose parameters are shards, and they do not say of which ranks; save "
                "state_dict() in place of pickling the optimizer"
            )
        # A copy exchanges over the groups that were given. A default group may be another one then.
        shared.groups = _Referred.of(Groups(process_group if exchanges else None, groups.shards))
        shared.has_joined = not exchanges or groups.exchange is not None or is_initialized()
        shared.ranks = AllRanks(self._ranks_of(groups.exchange), self._ranks_of(groups.shards))

    def _ranks_of(self, group: Optional["torch.distributed.ProcessGroup"]) -> Optional[Ranks]:
        """None for a single rank."""
        ranks = None if group is None else Ranks(group, self._parameters()[0].device)
        return ranks if ranks is not None and ranks.size > 1 else None

    def _group_to_join(self) -> Optional["torch.distributed.ProcessGroup"]:
        """The default group, if it was initialized after the construction and has several ranks."""
        if self._shared.has_joined:
            return None
        group = group_of(None)
        return group if group is not None and torch.distributed.get_world_size(group) > 1 else None

    def _join(self) -> None:
        """Joins the default group, if it was initialized after the construction.

        :raises RuntimeError: if it is too late
        """
        shared = self._shared
        group = self._group_to_join()
        if group is None:
            return
        if shared.has_stepped_alone:
            raise RuntimeError(
                f"slamb: torch.distributed was initialized with {torch.distributed.get_world_size(group)} ranks after the first step "
                f"of this optimizer, which exchanged nothing, so ranks may differ. Call init_process_group() before the first "
                f"step; if this optimizer shall exchange nothing, construct it with exchange=False"
            )
        old = shared.parts or []
        if any(part.has_started and not part.has_open_state for part in old):
            raise RuntimeError(
                "slamb: a state was loaded before torch.distributed was initialized, so it is that of a single rank; call "
                "init_process_group() before load_state_dict()"
            )
        shared.ranks, shared.has_joined = AllRanks(self._ranks_of(group), None), True
        if shared.parts is None:
            return
        try:
            shared.parts = []
            if any(part.has_started for part in old):
                self._take_over_moments()
            else:
                self._note_parameters(self._parameters())
                self._follow_groups()
        except BaseException:
            shared.parts, shared.ranks, shared.has_joined = old, AllRanks(None, None), False
            raise

    def _warn_if_ranks_are_missing(self) -> None:
        size = os.environ.get("WORLD_SIZE", "1")
        if self._arguments["exchange"] and size.isdigit() and int(size) > 1:
            warnings.warn(
                f"slamb: WORLD_SIZE is {size}, but torch.distributed is not initialized, so this optimizer exchanges nothing with "
                f"other ranks; call torch.distributed.init_process_group() before the first step, or construct the optimizer "
                f"with exchange=False",
                RuntimeWarning,
                stacklevel=4,
            )

    # ------------------------------------------------------------------------------------------------------ Parts and groups

    @property
    def _parts(self) -> list[Part]:
        return self._built()

    @property
    def _ranks(self) -> Optional[Ranks]:
        return self._shared.ranks.exchange

    def _parameters(self) -> list[torch.Tensor]:
        return list(itertools.chain.from_iterable(map(_parameters_of, self.param_groups)))

    def _built(self) -> list[Part]:
        """The parts. Makes those of a copy, and restores their states."""
        shared = self._shared
        if shared.parts is not None:
            return shared.parts
        parts: list[Part] = []
        for one in shared.saved_parts:
            if one.key != self._shared.ranks.key and not self._is_equal_on_all_ranks():
                raise ValueError(
                    f"slamb: this is a copy of the optimizer of {one.key}, but this process is {self._shared.ranks.key}, and each rank has a "
                    f"state of its own; save state_dict() in place of pickling the optimizer"
                )
            parts.append(Part(self, one.members, one.strides))
        for part, one in zip(parts, shared.saved_parts):
            # What was written to the parameters since the copy was made is kept.
            values = [p.detach().clone() for p in part.tensors.parameters] if part.saves_parameters else []
            part.load(one.state, from_other_ranks=one.key != self._shared.ranks.key)
            with torch.no_grad():
                for p, value in zip(part.tensors.parameters, values):
                    p.copy_(value)
            part.tensors.reload_masters()
            part.describe()
        shared.parts = parts
        try:
            if not parts and self._has_open_moments():
                self._take_over_moments(keeps_parameters=True)
            elif all(part.is_shown_in(self.state) for part in parts):
                self._set_parts(parts)
            else:  # others have written to the state of the copy
                self._note_parameters(self._parameters())
                self._take_over_written()
        except BaseException:
            shared.parts = None
            raise
        shared.saved_parts = []
        return self._built()

    def _prepared(self, takes_over: bool = True, for_step: bool = False) -> list[Part]:
        """The parts, over all parameters that are trained now, with the state that stands in `state`, at the present addresses of
        their tensors, and with the present options.

        :param takes_over: False: what others have written to `state` does not count
        :param for_step: with the present gradients
        """
        self._join()
        for part in self._built():
            part.show_replays()
        if takes_over and not self._is_shown():
            self._take_over_written()
        self._follow_groups()
        parts = self._built()
        for part in parts:
            part.refresh(self.param_groups, for_step)
        return parts

    def _prepared_for_capture(self) -> list[Part]:
        """As `_prepared`, for a step that is captured into a graph.

        :raises RuntimeError: if that is not possible; nothing has changed then
        """
        reason = self._why_not_captured()
        if reason is not None:
            raise capture.refusal("step", reason)
        parts = self._built()
        for part in parts:
            part.refresh_captured()
        return parts

    def _why_not_captured(self) -> Optional[str]:
        """The reason why a step cannot be captured into a graph now; None if it can. Changes nothing, and waits for nothing."""
        shared, parameters = self._shared, self._parameters()
        if self._recipe == "zero_one_adam":
            return "the schedules of 0/1 Adam follow the number of the step, which a graph does not know"
        if self._recipe == "slamb" and self._arguments["settings"].get("local_steps") not in (0, 1):
            return (
                "only some of its steps exchange the parameters; construct the optimizer with local_steps=0, and call "
                "synchronize_parameters() outside of the graph"
            )
        if self._arguments["compressor"] == "top_k":
            return "with top_k the rank that chooses follows from the number of the step, which a graph does not know"
        if not shared.parts or self._group_to_join() is not None:
            return "the optimizer has not taken a step yet; take one outside of the graph first"
        if any(map(_is_trainable, shared.waiting)) or len(parameters) != len(shared.parameters):
            return "some parameters have not taken a step yet; take one outside of the graph first"
        if not all(map(operator.is_, parameters, shared.parameters)):
            return "param_groups has other parameters than at the last step; take one outside of the graph first"
        for part in shared.parts:
            reason = part.why_not_captured(self.param_groups)
            if reason is not None:
                return reason
        if not (_native.hold([self.state], shared.entries) and all(part.is_shown() for part in shared.parts)):
            return "optimizer.state has changed since the last step; take one outside of the graph first"
        return None

    def _is_captured(self) -> bool:
        return capture.is_captured(self._shared.stream)

    def _require_no_capture(self, call: str) -> None:
        """
        :raises RuntimeError: while work is captured into a graph
        """
        if self._is_captured():
            raise capture.refusal(call, "of the optimizer's calls only step() can be; make it outside of the graph")

    def _follow_groups(self) -> None:
        """Makes parts of parameters that have come since the last call.

        :raises ValueError: if others have gone; nothing has changed then
        """
        shared = self._shared
        parameters = self._parameters()
        if len(parameters) != len(shared.parameters) or not all(map(operator.is_, parameters, shared.parameters)):
            self._note_parameters(parameters)
        if not any(map(_is_trainable, shared.waiting)):
            return
        if self._has_open_moments():
            self._take_over_moments()
            return
        waiting = {id(p) for p in shared.waiting}
        group_of = self._group_numbers()
        come: dict[tuple[float, float, float], list[int]] = {}
        for i, p in enumerate(parameters):
            if id(p) in waiting and _is_trainable(p):
                come.setdefault(options_of(self.param_groups[group_of[i]]).coefficients, []).append(i)
        parts = list(shared.parts or [])
        if not parts:
            self._require_clippable(come)
        for coefficients, members in come.items():
            fresh = next((n for n, one in enumerate(parts) if not one.has_started and one.coefficients == coefficients), None)
            if fresh is None:
                parts.append(Part(self, members))
            else:
                parts[fresh] = Part(self, sorted(parts[fresh].members + members))
        _require_separate_parts(parts)
        self._set_parts(parts)

    def _require_clippable(self, coefficients: Iterable[tuple[float, float, float]]) -> None:
        """
        :raises ValueError: if gradients of groups with several coefficients were to be clipped by the norm of all
        """
        if len(set(coefficients)) > 1 and math.isfinite(self._arguments["settings"].get("max_gradient_norm", math.inf)):
            raise ValueError(
                "slamb: parameter groups have different betas or eps, but max_gradient_norm clips by the norm of all gradients; give "
                "all groups the same betas and eps, or use torch.nn.utils.clip_grad_norm_"
            )

    def _note_parameters(self, parameters: list[torch.Tensor]) -> None:
        """Tells the parts where their parameters are in the parameter groups.

        :raises ValueError: if some have gone
        """
        shared = self._shared
        places = {id(p): i for i, p in enumerate(parameters)}
        group_of = self._group_numbers()
        if len(places) < len(parameters):
            raise ValueError("slamb: a parameter is in param_groups more than once, but parameters must not share memory; list each once")
        for part in shared.parts or []:
            if any(id(p) not in places for p in part.tensors.given) or not part.follow_groups(
                [group_of[places[id(p)]] for p in part.tensors.given]
            ):
                raise ValueError(
                    "slamb: param_groups lacks parameters that this optimizer trains, or has parameters of one group in several. "
                    "Parameters can be added, by add_param_group() or to a list; to train others, construct another optimizer. If a "
                    "wrapper has put copies in their place, as fp16, bf16 and ZeRO of DeepSpeed do, leave it out: this optimizer "
                    "has float32 copies itself"
                )
        for part in shared.parts or []:
            part.members = [places[id(p)] for p in part.tensors.given]
        trained = {id(p) for part in shared.parts or [] for p in part.tensors.given}
        shared.parameters = parameters
        shared.waiting = [p for p in parameters if id(p) not in trained]
        for number, group in enumerate(self.param_groups):
            checked_options(number, group)

    def _group_numbers(self) -> list[int]:
        """The number of the group of each parameter."""
        return [number for number, group in enumerate(self.param_groups) for _ in group["params"]]

    def _set_parts(self, parts: list[Part]) -> None:
        shared = self._shared
        shared.parts, shared.gathered = parts, []
        self._note_parameters(self._parameters())
        self._show()
        norm = self._arguments["settings"].get("max_gradient_norm", math.inf)
        if len(parts) > 1 and math.isfinite(norm) and not shared.has_warned_of_clipping:
            shared.has_warned_of_clipping = True
            warnings.warn(
                f"slamb: parameters that were added, are trained later or have begun anew are clipped by the norm of their own "
                f"gradients: max_gradient_norm = {norm} holds for each of {len(parts)} sets of parameters. To clip by the norm of "
                f"all, use torch.nn.utils.clip_grad_norm_, or construct another optimizer",
                RuntimeWarning,
                stacklevel=2,
            )

    # ------------------------------------------------------------------------------------------------------------- Shards

    def _pieces_of(self, numbers: Iterable[int]) -> list[Piece]:
        """What this rank has of the parameters of these numbers.

        :raises ValueError: if this optimizer cannot work on it
        """
        parameters, group_of_parameter = self._parameters(), self._group_numbers()
        chosen = list(numbers)
        holders = holders_of([parameters[i] for i in chosen])
        shards = self._shared.ranks.shards
        ranks = None if shards is None else ranks_of(shards.group)
        pieces: list[Piece] = []
        for i in chosen:
            p = parameters[i]
            its, name = holders[id(p)], f"parameter {i}"
            if its is not None and len(its.pieces) > 1 and ranks is None:
                raise ValueError(
                    f"slamb: {name} is cut over the ranks {list(its.pieces)}, but the parameters with which the optimizer was "
                    f"constructed were whole; construct it with all of them, or with shard_group="
                )
            dimensions = self.param_groups[group_of_parameter[i]].get("dimensions")
            if id(p) in self._shared.pieces:
                pieces.append(self._shared.pieces[id(p)])
                continue
            self._require_possible(name, p, its is not None, dimensions is not None)
            pieces.append(piece_of(name, p, its, ranks, dimensions))
        return pieces

    def _require_whole(self, parts: Iterable[Part], call: str) -> None:
        """Collective.

        :raises ValueError: on all ranks, if one cannot take part in a state of whole parameters
        """
        reason = self._shared.ranks.first_of(next(filter(None, (part.why_not_whole() for part in parts)), None))
        if reason is not None:
            raise ValueError(f"slamb: {call}() was called for the state of whole parameters, but {reason}")

    def _pieces_of_fsdp1(self) -> list[Piece]:
        """What this rank has of all parameters, for a copy; nothing if the copies of parameters say it themselves."""
        parameters = self._parameters()
        is_needed = bool(self._shared.pieces) or any(map(is_flattened, parameters))
        return self._pieces_of(range(len(parameters))) if is_needed else []

    def _require_possible(self, name: str, p: torch.Tensor, is_found: bool, has_dimensions: bool) -> None:
        """
        :param is_found: it is known what this rank has of the parameter
        :raises ValueError: if this optimizer cannot work on a parameter of FullyShardedDataParallel
        """
        if not is_flattened(p) or torch.distributed.get_world_size() == 1:
            return
        if is_row(p):
            if self._recipe != "adamw":
                raise ValueError(
                    f"slamb: {name} is a row of several parameters, which FullyShardedDataParallel has made, but "
                    f"{type(self).__name__} needs each by itself; wrap the model with use_orig_params=True"
                )
        elif not is_found and (self._shared.ranks.shards is None or not has_dimensions):
            raise ValueError(
                f"slamb: {name} belongs to FullyShardedDataParallel, which gives each rank pieces, but its whole shape was not found; "
                f"pass shard_group=, the process group of FullyShardedDataParallel, and set 'dimensions' in the parameter group, the "
                f"number of dimensions of the whole parameters"
            )

    # -------------------------------------------------------------------------------------------------------------- State

    def _show(self) -> None:
        """Puts the state where others look for it: into `self.state`."""
        for part in self._shared.parts or []:
            part.show(self.state)
        self._shared.entries = list(self.state.values())

    def _is_shown(self) -> bool:
        """True if `state` has what `_show` has put there."""
        parts = self._shared.parts or []
        if _native.hold([self.state], self._shared.entries) and all(part.is_shown() for part in parts):
            return True
        if not all(part.is_shown_in(self.state) for part in parts):
            return False
        self._shared.entries = list(self.state.values())  # others have written what is theirs
        return True

    def _take_over_written(self) -> None:
        """Continues with what others have written to `state`, and begins anew where they have deleted it.

        :raises RuntimeError: with several ranks
        """
        if not self._shared.ranks.is_alone:
            raise RuntimeError(
                "slamb: something else has replaced or deleted entries of optimizer.state, which with several ranks is not taken "
                "over, because ranks could differ. To begin anew, call reset_state() on all ranks; to continue from a state, "
                "load_state_dict(). This check ends when either was called"
            )
        self._take_over(from_other_ranks=False, is_loaded=False)

    def _take_over(self, from_other_ranks: bool, is_loaded: bool) -> None:
        """Makes the state that stands in `self.state` that of the parts."""
        for number, group in enumerate(self.param_groups):
            checked_options(number, group)
        entries = [self.state.get(p) for p in self._parameters()]
        is_empty = not any(isinstance(entry, dict) and not OWN_KEYS.isdisjoint(entry) for entry in entries)
        if any(map(saved.has_bytes, entries)):
            self._take_over_bytes(entries, from_other_ranks)
        elif is_loaded and is_empty and any(map(_is_trainable, self._parameters())):
            raise self._state_of_another("; it has no moments. To begin anew, call reset_state()")
        elif is_loaded and any(isinstance(entry, dict) and "number" in entry and "ranks" in entry for entry in entries):
            raise self._state_of_another("; it lacks the 'ranks' of its parameters")
        elif self._has_open_moments():
            self._take_over_moments(is_loaded=is_loaded)
        elif is_loaded:
            raise self._state_of_another("")
        else:
            self._renew_what_is_deleted()

    def _renew_what_is_deleted(self) -> None:
        parts = self._shared.parts or []
        changed = [part for part in parts if not part.is_shown_in(self.state)]
        if not all(part.is_gone_from(self.state) for part in changed):
            raise ValueError(
                f"slamb: entries of some parameters in optimizer.state were deleted or replaced, but {type(self).__name__} with these "
                f"policies can only begin anew as a whole; call reset_state(), or load_state_dict()"
            )
        for part in changed:
            part.renew(self.param_groups)
        self._show()

    def _take_over_moments(
        self, given: Optional[dict[Any, Any]] = None, keeps_parameters: bool = False, is_loaded: bool = False
    ) -> None:
        """Makes the moments of these entries of parameters, in the format of torch.optim.AdamW, those of the parts. Parameters with
        different numbers of steps are in different parts.

        :param given: None: those that stand in `self.state`
        :param keeps_parameters: those of sixteen bits stay as they are, where they are not the rounded copy
        :param is_loaded: all ranks take over a state at once, and agree on it within a model
        :raises ValueError: if they do not fit; nothing has changed then
        """
        state = self.state if given is None else given
        parameters, group_of = self._parameters(), self._group_numbers()
        options = [checked_options(number, group) for number, group in enumerate(self.param_groups)]
        agrees = is_loaded and self._shared.ranks.shards is not None
        failure: Optional[ValueError] = None
        found: list[Optional[saved.Moments]] = []
        try:
            found = [None if is_lazy(p) else saved.read_moments(i, p, state.get(p)) for i, p in enumerate(parameters)]
        except ValueError as its_failure:
            failure = its_failure
        if agrees:
            self._shared.has_agreed = True
            self._shared.ranks.raise_on_all(failure, "taking over a state")
        elif failure is not None:
            raise failure
        taken = [-1 if its is None else its.steps for its in found]
        if agrees:  # a rank without elements of a parameter may have no moments of it either, and takes the steps of others
            taken = self._shared.ranks.largest_of_shards(taken)
        alike: dict[Any, list[int]] = {}
        for i, p in enumerate(parameters):
            if taken[i] >= 0 or _is_trainable(p):
                alike.setdefault((options[group_of[i]].coefficients, max(taken[i], 0)), []).append(i)
        self._require_clippable(coefficients for coefficients, _ in alike)
        old = self._shared.parts or []
        by_members = {tuple(part.members): part for part in old}
        kept: set[int] = set()  # parts whose moments are what they were
        made: set[int] = set()  # parts whose moments are 0
        renewed: list[Part] = []
        parts: list[Part] = []
        for members in alike.values():
            part = by_members.get(tuple(members))
            if part is None or not part.fits(self.param_groups, members, part.tensors.reordered()):
                part = Part(self, members)
                made.add(id(part))
            elif given is None and part.is_shown_in(self.state):
                kept.add(id(part))
            elif not part.has_open_state:
                renewed.append(part)  # without compression errors
            part.require_options(self.param_groups)
            parts.append(part)
        _require_separate_parts(parts)
        for part in parts:
            part.refresh_tensors()  # what can fail, before anything changes
        found = saved.without_aliases(found, [part for part in old if id(part) not in kept], parameters)
        for part in renewed:
            part.renew(self.param_groups)
        for part, (_, steps) in zip(parts, alike):
            if id(part) in kept:
                continue
            for i, number in enumerate(part.members):
                its = found[number]
                if its is None and id(part) in made:
                    continue
                part.set_moments(i, None if its is None else its.exp_avg, None if its is None else its.exp_avg_sq)
                if its is not None and its.master is not None and i in part.tensors.masters:
                    if keeps_parameters:
                        part.tensors.masters[i].copy_(its.master)
                    else:
                        part.tensors.set_master(i, its.master)
            if keeps_parameters:
                part.tensors.reload_masters()
            if steps > 0 or id(part) not in made:
                part.set_steps(steps)
        self._set_parts(parts)

    def _take_over_bytes(self, entries: list[Any], from_other_ranks: bool) -> None:
        """Makes the bytes of ranks that stand in these entries of the parameters the state of the parts.

        :raises ValueError: if they do not fit; nothing has changed then
        """
        sizes = [len(group["params"]) for group in self.param_groups]
        shard_name = self._shared.ranks.shard_name
        found = [saved.LoadedPart(entry["ranks"], sizes, shard_name) for entry in entries if saved.has_bytes(entry)]
        numbers = {i: entry["number"] for i, entry in enumerate(entries) if isinstance(entry, dict) and "number" in entry}
        now = {int(number): i for i, number in numbers.items()}
        for i in range(len(entries)):
            if i not in numbers:
                now.setdefault(i, i)
        for one in found:
            one.renumber(now)
        covered = [i for one in found for i in one.members]
        parameters = self._parameters()
        lacking = [
            i for i, entry in enumerate(entries) if i not in set(covered) and isinstance(entry, dict) and "step" in entry
        ]
        if lacking or len(set(covered)) < len(covered):
            raise self._state_of_another("")
        chosen = [self._choose_state(one.states, from_other_ranks) for one in found]
        for one in found:
            if any(is_lazy(parameters[i]) for i in one.members):
                raise self._state_of_another("; parameters of lazy modules have no shape yet")
            one.require_shapes([piece.shape for piece in self._pieces_of(one.members)])
        old = list(self._shared.parts or [])
        for part in old:
            part.refresh_tensors()
        parts = [
            next((part for part in old if part.fits(self.param_groups, one.members, one.strides)), None)
            or Part(self, one.members, one.strides)
            for one in found
        ]
        for part in parts:
            part.require_options(self.param_groups)
        if any(is_whole for _, _, is_whole in chosen):
            self._require_whole(parts, "load_state_dict")
        _require_separate_parts(parts)
        # The state of one part is checked before it changes anything. If that of a later part does not fit, the earlier are undone.
        undo = [(part, part.save(), part.has_started) for part in old] if len(parts) > 1 else []
        try:
            for part, (state, is_of_others, is_whole) in zip(parts, chosen):
                part.load(state, is_of_others, is_whole)
        except BaseException as failure:
            for part, state, had_started in undo:
                part.load(state, False)
                part.has_started = had_started
            if isinstance(failure, ValueError):
                its = {**self._arguments["settings"], **self._arguments}
                policies = {name: its[name] for name in ("compressor", "moments", "parameter_sync", "trust_ratio") if name in its}
                said = ", ".join(f"{name} = {value!r}" for name, value in policies.items())
                raise ValueError(f"{failure}. This optimizer is {type(self).__name__} with {said}") from None
            raise
        self._set_parts(parts)

    def _saved_state(self) -> dict[Any, Any]:
        """What a saved state has under "state"."""
        parts = self._prepared()
        own: dict[int, dict[str, Any]] = {}  # by the number of the parameter
        for place, part in enumerate(parts):
            own.update(zip(part.members, self._saved_of(place, part)))
        numbers = {id(p): i for i, p in enumerate(self._parameters())}
        keys_of = {number: part.own_keys for part in parts for number in part.members}
        state: dict[Any, Any] = {}
        for key, entry in list(self.state.items()):
            number = numbers.get(id(key)) if isinstance(key, torch.Tensor) else None
            if number is None:
                state[key] = entry
            elif number in own:
                others = {name: value for name, value in list(entry.items()) if name not in keys_of[number]}
                state[number] = {**own[number], **others}
            else:
                state[number] = entry
        return state

    def _saved_of(self, place: int, part: Part) -> Sequence[dict[str, Any]]:
        """What a saved state has of each parameter of a part, besides the entries of others.

        :param place: of the part among all
        """
        part.show_steps()
        if part.has_open_state:
            return [part.saved_moments(i) for i in range(len(part.members))]
        taken = part.saved_steps()
        entries: list[dict[str, Any]] = [
            {"step": taken, "number": torch.tensor(number, device="cpu"), "ranks": {}} for number in part.members
        ]
        gathered = self._shared.gathered[place] if self._shared.gathered else None
        # State is saved with a parameter that is trained: torch.distributed.checkpoint leaves out others.
        holder = next((i for i, p in enumerate(part.tensors.given) if p.requires_grad), 0)
        entries[holder]["ranks"] = saved.saved_bytes(part, gathered or saved.bytes_of(part, self._shared.ranks.key))
        return entries

    def _has_open_moments(self) -> bool:
        return self._recipe in ("adamw", "lamb") and self._arguments["moments"] == "float32"

    def _is_state_of_shard(self) -> bool:
        """True if a saved state has the moments of this rank's shard, and nothing else."""
        return self._shared.ranks.shards is not None and self._has_open_moments() and self._arguments["compressor"] == "none"

    def _require_open_moments(self, call: str) -> None:
        if not self._has_open_moments():
            raise ValueError(
                f"slamb: {call}() is for AdamW and Lamb with moments = 'float32', but this is "
                f"{type(self).__name__} with moments = {self._arguments['moments']!r}; see moments()"
            )

    def _state_of_another(self, detail: str) -> ValueError:
        return ValueError(
            f"slamb: load_state_dict() was given the state of another optimizer{detail}; it must be one that "
            f"{type(self).__name__}.state_dict() has returned"
        )

    def _scaling(self, grad_scaler: Optional[Any] = None) -> tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
        """The loss scale and the count of overflows of a GradScaler, if one has called step()."""
        if grad_scaler is None:  # torch >= 2.0
            return getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        state = grad_scaler._per_optimizer_states[id(self)]
        is_unscaled = getattr(state["stage"], "name", "") == "UNSCALED"
        found = state["found_inf_per_device"] if is_unscaled else grad_scaler._check_inf_per_device(self)
        scale = grad_scaler._get_scale_async()
        total = sum(one.to(scale.device) for one in found.values())
        return None if is_unscaled else scale, total if isinstance(total, torch.Tensor) else None

    def _forget_scaling(self) -> None:
        """After a step that has failed: a GradScaler removes what it has set only after one that has not, and would multiply the
        next loss scale by this one."""
        if {"grad_scale", "found_inf"} <= self.__dict__.keys():
            del self.grad_scale, self.found_inf

    def _choose_state(self, states: dict[str, torch.Tensor], from_other_ranks: bool) -> tuple[torch.Tensor, bool, bool]:
        """This rank's state, or another one if that is allowed. True for another rank's; True for that of whole parameters."""
        own = self._shared.ranks.key
        if own in states and not from_other_ranks:
            return states[own], False, False
        if from_other_ranks or self._is_equal_on_all_ranks():
            possible = [key for key in states if self._shared.ranks.has_this_shard(key)]
            if saved.WHOLE in states:
                return states[saved.WHOLE], True, True
            if possible:
                return states[min(possible)], True, False  # the same on all ranks, if all were given the same states
        raise ValueError(
            f"slamb: load_state_dict() was given the state of {' and '.join(sorted(states)) or 'no rank'}, but this is {own}, "
            f"and each rank has a state of its own. Save a state on every rank, or call consolidate_state_dict() before "
            f"state_dict(). To continue from another rank's state, without its compression errors, pass from_other_ranks=True "
            f"on all ranks"
        )

    def _is_equal_on_all_ranks(self) -> bool:
        """True if ranks with the same shard have equal states."""
        return not self._keeps_own_parameters and self._arguments["compressor"] == "none"
