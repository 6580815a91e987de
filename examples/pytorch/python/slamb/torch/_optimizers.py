"""The optimizers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Optional, Union

import torch

from slamb import _native
from slamb._load import module_for
from slamb.torch import _arguments as check
from slamb.torch._arguments import Setting
from slamb.torch._ranks import Ranks, group_of
from slamb.torch._tensors import Strides, Tensors, is_sharded

# Keys of parameter groups that torch's own optimizers have, and the values with which this one works. The first is the default.
_FIXED_KEYS = {
    "maximize": (False,),
    "foreach": (None, False, True),
    "fused": (None, False, True),
    "capturable": (False, True),
    "differentiable": (False,),
}

_parameters_of = operator.itemgetter("params")

# Arguments that the compiled module does not compare between ranks.
_NOT_COMPARED_ELSEWHERE = ("moments", "rounding", "rounding_seed", "check_gradients")

# Keys of statistics that are added up over the groups that were added later.
_SUMS_OF_PARTS = ("collectives", "payload_bytes", "sent_bytes", "bounded_elements", "late_elements")


class _GroupOptions(NamedTuple):
    """The options of a parameter group, besides the learning rate."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    adapt: bool
    compress: bool
    fixed: tuple[Any, ...]  # the values of _FIXED_KEYS


def _options_of(group: dict[str, Any]) -> _GroupOptions:
    """As they are, without a check."""
    beta1, beta2 = group["betas"]
    return _GroupOptions(
        float(beta1),
        float(beta2),
        float(group["eps"]),
        float(group["weight_decay"]),
        group["adapt"],
        group["compress"],
        tuple(group.get(key) for key in _FIXED_KEYS),
    )


def _checked_options(number: int, group: dict[str, Any]) -> _GroupOptions:
    """
    :raises ValueError: names the parameter group and the key
    """
    where = f"of parameter group {number}"
    check.rate(f"lr {where}", group["lr"])
    check.pair(f"betas {where}", group["betas"])
    check.number(f"eps {where}", group["eps"])
    check.number(f"weight_decay {where}", group["weight_decay"])
    check.truth(f"adapt {where}", group["adapt"])
    check.truth(f"compress {where}", group["compress"])
    for key, possible in _FIXED_KEYS.items():
        if group.get(key, possible[0]) not in possible:
            raise ValueError(
                f"slamb: parameter group {number} has {key} = {group[key]!r}, which slamb's optimizers do not support; leave "
                f"it out"
            )
    return _options_of(group)


class _Part:
    """A compiled optimizer over the parameters of the parameter groups first … last − 1.

    :param strides: the order of parameters: see `Tensors`
    """

    def __init__(self, owner: "Optimizer", first: int, last: int, strides: Optional[dict[int, Strides]] = None) -> None:
        self.first = first
        self.last = last
        arguments = owner._arguments
        groups = self._groups(owner.param_groups)
        self._options = [_checked_options(first + i, group) for i, group in enumerate(owner.param_groups[first:last])]
        parameters = [p for group in groups for p in group["params"]]
        before = sum(len(group["params"]) for group in owner.param_groups[:first])
        self.tensors = Tensors(parameters, arguments["rounding"] == "nearest", before, strides)
        if self.tensors.are_sharded:
            owner._require_sharding_possible()
        # State is saved with a parameter that is trained: torch.distributed.checkpoint leaves out others.
        self.holder = next((p for p in parameters if p.requires_grad), parameters[0])
        beta1, beta2, epsilon = self._common_coefficients()
        self._stream = owner._stream
        self._rates: Optional[torch.Tensor] = None  # of steps whose rates are on the device
        self._ranks = owner._ranks
        self.saves_parameters = owner._keeps_own_parameters or bool(self.tensors.masters)
        self._must_compare_gradients = self._ranks is not None and arguments["check_gradients"]
        if self._ranks is not None:
            self._ranks.require_equal({name: arguments[name] for name in _NOT_COMPARED_ELSEWHERE})
        settings = {**arguments["settings"], "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        if owner._ranks is None and "skip_non_finite" not in settings and owner._recipe in ("adamw", "lamb"):
            settings["skip_non_finite"] = False  # costs a pass without an exchange, and torch.optim does not check either
        module = module_for(self.tensors.device.type)
        options = [
            (float(group["weight_decay"]), number, group["adapt"], group["compress"])
            for number, group in enumerate(groups)
            for _ in group["params"]
        ]
        described = [
            module.Tensor(p.numel(), type_name, p.dim(), *of_group)
            for p, type_name, of_group in zip(self.tensors.parameters, self.tensors.types, options)
        ]
        with self.on_its_stream():
            self.core = module.Optimizer(
                owner._recipe,
                arguments["compressor"],
                arguments["moments"],
                described,
                self.tensors.data,
                self.tensors.gradients,
                self.tensors.master_addresses(),
                settings,
                arguments["threads"] or torch.get_num_threads(),
                arguments["rounding_seed"],
                self._ranks if self._stream is None or self._ranks is None else self._ranks.nccl_address(),
                0 if self._stream is None else self._stream.cuda_stream,
            )
        self.has_started = False  # true if it has taken a step or holds a loaded state

    @contextlib.contextmanager
    def on_its_stream(self) -> Iterator[None]:
        """Calls of `core` within it work behind what is enqueued on the current stream, which then continues behind them."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self.tensors.device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            try:
                yield
            finally:
                current.wait_stream(self._stream)

    def refresh(self, groups: list[dict[str, Any]]) -> None:
        """Passes on what has changed since the last call: parameters, addresses, and settings of parameter groups.

        :raises ValueError: for what is not possible; nothing has happened then
        """
        parameters = list(itertools.chain.from_iterable(map(_parameters_of, groups[self.first : self.last])))
        given = self.tensors.given
        if len(parameters) != len(given) or not all(map(operator.is_, parameters, given)):
            raise ValueError(
                f"slamb: params of the parameter groups {self.first} to {self.last - 1} are other tensors than at the "
                f"construction; add new ones by add_param_group(), or construct another optimizer"
            )
        options = [_options_of(group) for group in groups[self.first : self.last]]
        if options != self._options:
            self._change_options(groups, options)
        self.refresh_tensors()

    def refresh_tensors(self) -> None:
        tensors = self.tensors
        tensors.before_step()
        try:
            if tensors.has_moved():
                tensors.have_gradients_moved()
                self.core.set_parameters(tensors.data, tensors.gradients)
            elif tensors.have_gradients_moved():
                self.core.set_gradients(tensors.gradients)
        except BaseException:
            tensors.forget_places()  # which `core` has not taken over
            raise

    def check_step(
        self, groups: list[dict[str, Any]], loss_scale: Optional[torch.Tensor], found_inf: Optional[torch.Tensor]
    ) -> None:
        """
        :raises ValueError, RuntimeError: if the step cannot be taken; nothing has changed then
        """
        for number, group in enumerate(groups[self.first : self.last], self.first):
            rate = group["lr"]
            if not (type(rate) is float and 0.0 <= rate < math.inf):
                check.rate(f"lr of parameter group {number}", rate)
        self._cell(loss_scale, "grad_scale")
        self._cell(found_inf, "found_inf")
        if self._must_compare_gradients:
            self._compare_gradients()

    def step(
        self, groups: list[dict[str, Any]], loss_scale: Optional[torch.Tensor], found_inf: Optional[torch.Tensor]
    ) -> None:
        """Takes a step. To be called after `refresh` and `check_step`."""
        rates = [group["lr"] for group in self._groups(groups)]
        is_scaled = loss_scale is not None or found_inf is not None
        if is_scaled:
            self.core.set_gradient_scaling(self._cell(loss_scale, "grad_scale"), self._cell(found_inf, "found_inf"))
        try:
            if self._stream is None:
                self.core.step([float(rate) for rate in rates])
            else:
                self._step_on_stream(rates)
        finally:
            if is_scaled:
                self.core.set_gradient_scaling(0, 0)
        self.has_started = True
        self.tensors.after_step(with_gradient_only=True)

    def save(self) -> torch.Tensor:
        """The state of this rank, as bytes. To be called after `refresh`."""
        with self.on_its_stream():
            size = self.core.state_bytes(self.saves_parameters)
            state = torch.empty(size, dtype=torch.uint8, device="cpu")
            self.core.save_state(state.data_ptr(), size, self.saves_parameters)
        return state

    def load(self, state: torch.Tensor, from_other_ranks: bool) -> None:
        """Continues from bytes that `save` has returned. To be called after `refresh`."""
        state = state.detach().to("cpu").contiguous()
        with self.on_its_stream():
            self.core.load_state(state.data_ptr(), state.numel(), from_other_ranks)
        self.has_started = True
        if self.saves_parameters:
            self.tensors.after_step()

    def fits(self, groups: list[dict[str, Any]], first: int, last: int, strides: dict[int, Strides]) -> bool:
        """True if it is over these groups, with their flags, and parameters in this order."""
        flags = [(group["adapt"], group["compress"]) for group in groups[first:last]]
        own = [(options.adapt, options.compress) for options in self._options]
        return (self.first, self.last) == (first, last) and flags == own and self.tensors.reordered() == strides

    def extend_by_empty_group(self, groups: list[dict[str, Any]]) -> None:
        self._options.append(_checked_options(self.last, groups[self.last]))
        self.last += 1

    def _groups(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that have parameters."""
        return [group for group in groups[self.first : self.last] if group["params"]]

    def _common_coefficients(self) -> tuple[float, float, float]:
        """β1, β2 and ε.

        :raises ValueError: if groups have different ones
        """
        first = self._options[0]
        for number, other in enumerate(self._options, self.first):
            if other[:3] != first[:3]:
                raise ValueError(
                    f"slamb: parameter group {number} has betas and eps {other[:3]}, but group {self.first} has {first[:3]}; "
                    f"they must be equal, while lr and weight_decay may differ"
                )
        return first[:3]

    def _change_options(self, groups: list[dict[str, Any]], options: list[_GroupOptions]) -> None:
        for number, (old, new) in enumerate(zip(self._options, options), self.first):
            _checked_options(number, groups[number])
            if (old.adapt, old.compress) != (new.adapt, new.compress):
                raise ValueError(
                    f"slamb: adapt or compress of parameter group {number} has changed, but they are fixed at the "
                    f"construction; construct another optimizer"
                )
        before, self._options = self._options, options
        try:
            decays = [float(group["weight_decay"]) for group in self._groups(groups) for _ in group["params"]]
            self.core.set_options(*self._common_coefficients(), decays)
        except BaseException:
            self._options = before
            raise

    def _step_on_stream(self, rates: list[Any]) -> None:
        """With rates on the device, which a captured step reads at each replay, or on the host."""
        if not any(isinstance(rate, torch.Tensor) and rate.device.type == "cuda" for rate in rates):
            with self.on_its_stream():
                self.core.step([float(rate) for rate in rates])
            return
        if self._rates is None:
            self._rates = torch.zeros(len(rates), dtype=torch.float64, device=self.tensors.device)
        for number, rate in enumerate(rates):
            if isinstance(rate, torch.Tensor):
                self._rates[number].copy_(rate.detach().reshape(()))
            else:
                self._rates[number].fill_(float(rate))
        with self.on_its_stream():
            self.core.step_at(self._rates.data_ptr())

    def _cell(self, cell: Optional[torch.Tensor], name: str) -> int:
        """The address of a number of a GradScaler."""
        if cell is None:
            return 0
        if cell.dtype != torch.float32 or cell.numel() != 1 or cell.device.type != self.tensors.device.type:
            raise ValueError(
                f"slamb: {name} must be one torch.float32 on {self.tensors.device}, where the parameters are, not "
                f"{cell.numel()} of {cell.dtype} on {cell.device}"
            )
        return cell.data_ptr()

    def _hash_of_gradients(self) -> int:
        """A number of 63 bits that differs if the gradients do; 0 if all are zero."""
        arrays = self.tensors.bytes_of_gradients()
        if self.tensors.device.type == "cpu":
            return _native.hash_of(arrays)
        gradients = [p.grad.detach().to(torch.float32) for p in self.tensors.parameters if p.grad is not None]
        sums = [g.contiguous().view(-1).view(torch.int32).to(torch.int64).sum() for g in gradients if g.numel() > 0]
        total = 0
        for one in torch.stack(sums).tolist() if sums else []:
            total = (total * 1000003 + one) % (1 << 62)
        return total

    def _compare_gradients(self) -> None:
        """Rejects gradients that are equal on all ranks, because something else has averaged them already."""
        assert self._ranks is not None
        seen = self._ranks.gather_words(self._hash_of_gradients())
        if not any(seen):
            return  # nothing can be said; the next step compares again
        if len(set(seen)) == 1:
            raise RuntimeError(
                f"slamb: the gradients of all {self._ranks.size} ranks are equal, so they have been averaged already, or all "
                f"ranks have computed the same batch. With DistributedDataParallel, run forward and backward within "
                f"model.no_sync(), or do not wrap the model; to leave the averaging to it, construct the optimizer with "
                f"exchange=False; to train on equal batches, with check_gradients=False"
            )
        self._must_compare_gradients = False


class _SavedPart(NamedTuple):
    """The state of a part, for a copy of the optimizer."""

    first: int
    last: int
    key: str
    strides: dict[int, Strides]
    state: torch.Tensor


class Optimizer(torch.optim.Optimizer):
    """The base of slamb's optimizers. Construct one of `AdamW`, `Lamb`, `Slamb`, `OneBitAdam`, `OneBitLamb`, `ZeroOneAdam`.

    Parameters are dense tensors of float32, bfloat16 or float16, in any mixture, in host memory, or on a GPU if the package was
    built for it. Those of 16 bits have a float32 copy, which steps update (`rounding="nearest"`), or each update is rounded up
    or down at random, without a copy (`rounding="stochastic"`).

    Keys of a parameter group: `lr`, `weight_decay`, `betas` and `eps`, which are read at each step, and `adapt` (False: trust
    ratio 1) and `compress` (False: always exchanged dense), which are read at the construction. `betas` and `eps` must be equal
    in all groups. A group that is added after the first step has moments and schedules of its own.

    With several ranks, all ranks must construct the optimizer, call `step()`, and make the calls whose description says
    "Collective". All ranks must begin with equal parameters. `broadcast_parameters()` gives them those of rank 0.

    Checkpoints: `state_dict()` has this rank's complete state, which differs between ranks if they keep compression errors,
    momenta or parameters of their own. Save it on every rank, or call `consolidate_state_dict()` on all ranks before
    `state_dict()` on one. A run that continues from it computes the same bits as one that was not interrupted.

    :raises ValueError: for a wrong argument; the message names it and says what would be right. Nothing has changed then
    :raises RuntimeError: if ranks differ in settings or parameters, or a collective failed
    """

    _recipe: ClassVar[str]
    _keeps_own_parameters: ClassVar[bool] = False  # parameters may differ between ranks
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        compressor: str,
        process_group: Optional["torch.distributed.ProcessGroup"],
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
        self._arguments: dict[str, Any] = {
            "compressor": check.text("compressor", compressor),
            "exchange": check.truth("exchange", exchange),
            "rounding": rounding,
            "moments": check.text("moments", moments),
            "threads": None if threads is None else check.count("threads", threads, 1),
            "check_gradients": check.truth("check_gradients", settings.pop("check_gradients", True)),
            "rounding_seed": check.count("rounding_seed", settings.pop("rounding_seed", 0), 0),
        }
        check.rate("lr", lr)
        check.number("weight_decay", weight_decay)
        canonical = check.settings_by_own_names(type(self).__init__, {"betas": betas, "eps": eps, **own}, settings)
        canonical_betas = canonical.pop("beta1"), canonical.pop("beta2")
        epsilon = canonical.pop("epsilon")
        self._arguments["settings"] = canonical
        self._is_constructed = False
        self._parts: Optional[list[_Part]] = None
        self._gathered: dict[str, list[torch.Tensor]] = {}
        self._saved_parts: list[_SavedPart] = []
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas if canonical_betas == check.pair("betas", betas) else canonical_betas,  # tensors may change
            "eps": epsilon,
            "weight_decay": weight_decay,
            "adapt": True,
            "compress": True,
            **{key: possible[0] for key, possible in _FIXED_KEYS.items()},
        }
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("slamb: params has no parameters; give at least one")
        self._join(process_group)
        self._parts = [_Part(self, 0, len(self.param_groups))]
        self._fill_state(self._parts[0])
        self._is_constructed = True

    # ------------------------------------------------------------------------------------------------ torch.optim.Optimizer

    def step(self, closure: Optional[Callable[[], Any]] = None, **scaling: Any) -> Any:
        """One step. Collective. Parameters whose gradient is None are left as they are. It must be None on all ranks.

        :param closure: computes the loss again and returns it, with gradients
        :return: the closure's loss
        :raises RuntimeError: if ranks have diverged or a collective failed; at the first step, if the gradients of all ranks
            are equal
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        loss_scale, found_inf = self._scaling(**scaling)
        self._gathered = {}
        parts = self._prepared()
        for part in parts:
            part.check_step(self.param_groups, loss_scale, found_inf)  # all, before the first has changed anything
        for part in parts:
            part.step(self.param_groups, loss_scale, found_inf)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters. Collective after the construction."""
        super().add_param_group(param_group)
        if not self._is_constructed:
            return
        self._gathered = {}
        try:
            parts = self._built()
            last = len(self.param_groups)
            if not self.param_groups[-1]["params"]:
                parts[-1].extend_by_empty_group(self.param_groups)
                return
            first = last - 1 if parts[-1].has_started else parts[-1].first
            added = _Part(self, first, last)
        except BaseException:
            self.param_groups.pop()
            raise
        self._parts = [part for part in parts if part.first < first] + [added]
        self._fill_state(added)

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank, and after `consolidate_state_dict` of all ranks. See the class."""
        parts = self._prepared()
        live = dict(self.state)
        try:
            for number, part in enumerate(parts):
                taken = torch.tensor(float(part.core.steps), device="cpu")
                for p in part.tensors.given:
                    self.state[p] = {**live[p], "step": taken}
                gathered = {key: of_parts[number] for key, of_parts in self._gathered.items()}
                self.state[part.holder]["ranks"] = {
                    "groups": torch.tensor([part.first, part.last], device="cpu"),
                    "shapes": _numbers_of(p.shape for p in part.tensors.given),
                    **_as_tensors(part.tensors.reordered()),
                    **(gathered or {self._key(): part.save()}),
                }
            return super().state_dict()
        finally:
            self.state.update(live)

    def load_state_dict(self, state_dict: dict[str, Any], from_other_ranks: bool = False) -> None:
        """Continues from a `state_dict()`. Load the model's parameters too. Those of `Slamb` and `ZeroOneAdam`, and parameters of
        16 bits with rounding="nearest", are restored from this state. Collective if parameter groups were added later.

        :param from_other_ranks: also accepts the state of other ranks, or of another number of ranks. Compression errors then
            start at zero. Set it on all ranks or on none, and give all the same state
        :raises ValueError: if the state does not fit; nothing has changed then
        """
        self._built()
        self._gathered = {}
        before = self.__dict__.copy()
        try:
            super().load_state_dict(_with_opaque_states(state_dict))
            self._adopt(from_other_ranks)
        except BaseException:
            self.__dict__.update(before)
            raise

    def __getstate__(self) -> dict[str, Any]:
        saved = [
            _SavedPart(part.first, part.last, self._key(), part.tensors.reordered(), part.save())
            for part in self._prepared()
        ]
        own = {
            "_arguments": self._arguments,
            "_saved_parts": saved,
            "_parts": None,
            "_gathered": {},
            "_is_constructed": True,
        }
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_saved_parts" in state:  # a copy, whose compiled part is made when it is used, over the default group
            self._join(None)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Optimizer":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        group = None if self._process_group is None else self._process_group()
        if self._process_group is not None and group is None:
            raise RuntimeError("slamb: the process group has been destroyed; copy the optimizer before that")
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        copied._join(group)
        return copied

    # ------------------------------------------------------------------------------------------------------------- Of slamb

    def broadcast_parameters(self, root: int = 0) -> None:
        """Gives all ranks the parameters of rank `root` of the process group. Collective. Call it before the first step."""
        self._gathered = {}
        for part in self._prepared():
            with part.on_its_stream():
                part.core.broadcast_parameters(root)
            part.tensors.after_step()

    def synchronize_parameters(self) -> None:
        """Replaces parameters that differ between ranks by their mean, from which training continues. Collective. Parameters
        differ only with `Slamb` and `ZeroOneAdam`. Call it before one rank saves the model."""
        self._gathered = {}
        for part in self._prepared():
            with part.on_its_stream():
                part.core.synchronize_parameters()
            part.tensors.after_step()

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
            with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                for part in parts:
                    part.tensors.after_step()
                result.append(evaluate())

        try:
            within(0)
        finally:
            for part in parts:
                part.tensors.after_step()
            for p, restored in own:
                if p.data_ptr() != restored.data_ptr():
                    p.detach().copy_(restored)
        return result[0]

    def reload_parameters(self) -> None:
        """Takes over values that were written to parameters of 16 bits through `.data`, which steps do not notice. Values that
        were written to the parameters themselves, as by `model.load_state_dict()`, are noticed."""
        for part in self._prepared():
            part.tensors.reload_masters()

    def compare_ranks(self) -> None:
        """Compares the ranks' steps and parameters now. Collective.

        :raises RuntimeError: on every rank, if they differ
        """
        for part in self._prepared():
            part.core.compare_ranks()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collects the states of all ranks at rank `to` of the process group, whose next `state_dict()` has all of them.
        Collective. The next step discards them."""
        if self._ranks is None:
            return
        self._gathered = {}
        for part in self._prepared():
            received = self._ranks.gather_bytes(part.save(), to)
            for rank, state in enumerate(received or []):
                self._gathered.setdefault(self._key(rank), []).append(state)

    def statistics(self, with_norms: bool = False) -> dict[str, Any]:
        """Steps, phase, and traffic of this rank: `collectives`, `payload_bytes`, `sent_bytes`, in all and by phase. With
        parameter groups that were added later, the traffic and the numbers of elements are sums, and the rest is of the first
        groups.

        :param with_norms: also the norms of parameters, moments and compression errors, and the numbers of elements at
            `update_bound` and with a variance that began late, at the cost of a pass over them
        """
        parts = [part.core.statistics(with_norms) for part in self._prepared()]
        sums = {name: sum(p[name] for p in parts) for name in _SUMS_OF_PARTS if name in parts[0]}
        return {**parts[0], **sums}

    def memory(self) -> dict[str, int]:
        """Bytes that the optimizer holds, by purpose, without copies of parameters of 16 bits."""
        total: dict[str, int] = {}
        for part in self._built():
            for purpose, count in part.core.memory().items():
                total[purpose] = total.get(purpose, 0) + count
        return total

    # ------------------------------------------------------------------------------------------------------------- Internal

    def _join(self, process_group: Optional["torch.distributed.ProcessGroup"]) -> None:
        device = next(p for group in self.param_groups for p in group["params"]).device
        # On a GPU all work is on a stream of its own, so that steps can be captured into graphs.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        group = group_of(process_group) if self._arguments["exchange"] else None
        self._process_group = None if process_group is None or group is None else weakref.ref(group)
        ranks = None if group is None else Ranks(group, device)
        self._ranks: Optional[Ranks] = ranks if ranks is not None and ranks.size > 1 else None

    def _built(self) -> list[_Part]:
        """The parts. Makes those of a copy, and restores their states."""
        if self._parts is None:
            for saved in self._saved_parts:
                if saved.key != self._key() and not self._is_equal_on_all_ranks():
                    raise ValueError(
                        f"slamb: this is a copy of the optimizer of {saved.key}, but this process is {self._key()}, and each rank "
                        f"has a state of its own; save state_dict() in place of pickling the optimizer"
                    )
            parts = [_Part(self, saved.first, saved.last, saved.strides) for saved in self._saved_parts]
            for part, saved in zip(parts, self._saved_parts):
                # What was written to the parameters since the copy was made is kept.
                values = [p.detach().clone() for p in part.tensors.parameters] if part.saves_parameters else []
                part.load(saved.state, from_other_ranks=saved.key != self._key())
                with torch.no_grad():
                    for p, value in zip(part.tensors.parameters, values):
                        p.copy_(value)
                part.tensors.reload_masters()
                self._fill_state(part)
            self._parts, self._saved_parts = parts, []
        return self._parts

    def _prepared(self) -> list[_Part]:
        """The parts, at the present addresses of their tensors, and with the present options."""
        parts = self._built()
        for part in parts:
            part.refresh(self.param_groups)
        return parts

    def _require_sharding_possible(self) -> None:
        """
        :raises ValueError: if this optimizer cannot work on parts of parameters
        """
        if self._recipe != "adamw":
            raise ValueError(
                f"slamb: parameters are DTensors, of which each rank has a part, but {type(self).__name__} needs whole ones; "
                f"use slamb.torch.AdamW with exchange=False"
            )
        if self._arguments["exchange"] or "max_gradient_norm" in self._arguments["settings"]:
            raise ValueError(
                "slamb: parameters are DTensors, whose gradients FSDP has averaged already, and whose norms no rank knows; "
                "construct the optimizer with exchange=False and without max_gradient_norm"
            )

    def _key(self, rank: Optional[int] = None) -> str:
        if any(is_sharded(p) for group in self.param_groups for p in group["params"]):
            return f"rank{torch.distributed.get_rank()}_of_{torch.distributed.get_world_size()}"
        own, size = (self._ranks.rank, self._ranks.size) if self._ranks is not None else (0, 1)
        return f"rank{own if rank is None else rank}_of_{size}"

    def _fill_state(self, part: _Part) -> None:
        # Not empty from the start, since torch.distributed.checkpoint takes a step to fill an empty state; and with the keys that
        # a saved state has.
        taken = torch.tensor(0.0, device="cpu")
        for p in part.tensors.given:
            self.state[p] = {"step": taken, "ranks": {}}

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

    def _adopt(self, from_other_ranks: bool) -> None:
        """Takes over the states that `load_state_dict` has put into `self.state`."""
        found = []
        for group in self.param_groups:
            for p in group["params"]:
                saved = self.state[p].get("ranks") if p in self.state else None
                if isinstance(saved, _Opaque) and saved.value:
                    found.append(_LoadedPart(saved.value))
        ends = [0] + [one.last for one in found]
        if not found or ends[-1] != len(self.param_groups) or any(a != one.first for a, one in zip(ends, found)):
            raise ValueError(
                f"slamb: load_state_dict() was given the state of another optimizer; it must be one that "
                f"{type(self).__name__}.state_dict() has returned"
            )
        chosen = [self._choose_state(one.states, from_other_ranks) for one in found]
        for one in found:
            groups = self.param_groups[one.first : one.last]
            one.require_shapes([p.shape for group in groups for p in group["params"]])
        old = self._prepared_for_load()
        parts = [
            old[i]
            if i < len(old) and old[i].fits(self.param_groups, one.first, one.last, one.strides)
            else _Part(self, one.first, one.last, one.strides)
            for i, one in enumerate(found)
        ]
        # The state of one part is checked before it changes anything. If that of a later part does not fit, the earlier are undone.
        undo = [(part, part.save(), part.has_started) for part in old] if len(parts) > 1 else []
        try:
            for part, (state, is_of_others) in zip(parts, chosen):
                part.load(state, is_of_others)
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
        self._parts = parts
        for part in parts:
            self._fill_state(part)

    def _prepared_for_load(self) -> list[_Part]:
        """The parts at the present addresses, with the options that they have: those that were loaded may not fit them."""
        parts = self._built()
        for part in parts:
            part.refresh_tensors()
        return parts

    def _choose_state(self, states: dict[str, torch.Tensor], from_other_ranks: bool) -> tuple[torch.Tensor, bool]:
        """This rank's state, or another rank's if that is allowed. True for another's."""
        own = self._key()
        if own in states and not from_other_ranks:
            return states[own], False
        if states and (from_other_ranks or self._is_equal_on_all_ranks()):
            return states[min(states)], True  # the same on all ranks, if all were given the same states
        raise ValueError(
            f"slamb: load_state_dict() was given the state of {' and '.join(sorted(states)) or 'no rank'}, but this is {own}, "
            f"and each rank has a state of its own. Save a state on every rank, or call consolidate_state_dict() before "
            f"state_dict(). To continue from another rank's state, without its compression errors, pass from_other_ranks=True "
            f"on all ranks"
        )

    def _is_equal_on_all_ranks(self) -> bool:
        is_sharded_here = any(is_sharded(p) for group in self.param_groups for p in group["params"])
        return not self._keeps_own_parameters and self._arguments["compressor"] == "none" and not is_sharded_here


class _Opaque:
    """Hides states from Optimizer.load_state_dict, which would convert them to the type of the parameters."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Opaque":
        return self


def _with_opaque_states(state_dict: dict[str, Any]) -> dict[str, Any]:
    state = {
        key: {name: _Opaque(value) if name == "ranks" else value for name, value in of_parameter.items()}
        for key, of_parameter in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def _numbers_of(shapes: Iterable[torch.Size]) -> torch.Tensor:
    """For each shape the number of dimensions and then their sizes."""
    return torch.tensor([number for shape in shapes for number in (len(shape), *shape)], dtype=torch.int64, device="cpu")


def _as_tensors(strides: dict[int, Strides]) -> dict[str, torch.Tensor]:
    """Strides by the number of the parameter, as checkpoints can hold them."""
    return {f"strides{number}": torch.tensor(of_parameter, device="cpu") for number, of_parameter in strides.items()}


class _LoadedPart:
    """What `state_dict` has put together for a part.

    :raises ValueError: if it is not that
    """

    def __init__(self, saved: Any) -> None:
        if not isinstance(saved, dict) or not all(isinstance(one, torch.Tensor) for one in saved.values()):
            raise ValueError("slamb: load_state_dict() was given a state whose 'ranks' are not tensors by name")
        rest = dict(saved)
        groups = rest.pop("groups", torch.tensor([], device="cpu")).tolist()
        if len(groups) != 2:
            raise ValueError("slamb: load_state_dict() was given a state whose 'ranks' have no 'groups'")
        self.first, self.last = (int(one) for one in groups)
        self._shapes = rest.pop("shapes", torch.tensor([], device="cpu"))
        self.strides: dict[int, Strides] = {}
        self.states: dict[str, torch.Tensor] = {}
        for name, value in rest.items():
            if name.startswith("strides"):
                self.strides[int(name[len("strides") :])] = tuple(value.tolist())
            elif value.dtype != torch.uint8:
                raise ValueError(f"slamb: load_state_dict() was given a state whose '{name}' is {value.dtype}, not torch.uint8")
            else:
                self.states[name] = value

    def require_shapes(self, shapes: list[torch.Size]) -> None:
        own = _numbers_of(shapes)
        if self._shapes.tolist() != own.tolist():
            raise ValueError(
                f"slamb: load_state_dict() was given the state of parameters of other shapes; those of this optimizer are "
                f"{[tuple(shape) for shape in shapes][:10]}{' …' if len(shapes) > 10 else ''}"
            )


class AdamW(Optimizer):
    """AdamW. One pass over memory updates all parameters, on all cores. Several ranks average their gradients.

    :param params: parameters, or parameter groups
    :param lr: learning rate
    :param betas: decay rates of the momentum and of the variance
    :param eps: added to the square root of the variance
    :param weight_decay: decoupled weight decay
    :param compressor: compresses the gradients that ranks exchange, with error feedback: "none", "bf16", "fp16", "int8", "int4",
        "four_levels", "sign", "natural", "random_k", "top_k", "random_k+int8" or "random_k+int4"
    :param process_group: the ranks that train this model. None: the default group of torch.distributed; a single rank if it is
        not initialized
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
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, exchange, rounding, moments, threads, {}, settings
        )


class Lamb(Optimizer):
    """LAMB: AdamW whose learning rate for each tensor is scaled by the trust ratio: the norm of the tensor over the norm of its
    update.

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
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, exchange, rounding, moments, threads, {}, settings
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
            params, lr, betas, eps, weight_decay, compressor, process_group, exchange, rounding, moments, threads, own, settings
        )


class OneBitAdam(Optimizer):
    """1-bit Adam: exchanges dense gradients during a warm-up; then freezes the variance and exchanges the momentum as signs and
    scales.

    The arguments of `AdamW`, with these differences. compressor: "sign", "int8", "int4", "natural", "bf16" or "fp16". moments:
    "float32".

    :param warm_up_steps: length of the warm-up; usually 10 to 25 % of a training. A variance that is frozen too early makes it
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
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        own = {**_warm_up(warm_up_steps, warm_up_threshold), "update_bound": check.bound("update_bound", update_bound)}
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, exchange, rounding, moments, threads, own, settings
        )


class OneBitLamb(Optimizer):
    """1-bit LAMB: `OneBitAdam` whose learning rate for each tensor is scaled by a trust ratio, which is frozen with the variance.

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
        exchange: bool = True,
        rounding: str = "nearest",
        moments: str = "float32",
        threads: Optional[int] = None,
        **settings: Optional[Setting],
    ) -> None:
        own = {**_warm_up(warm_up_steps, warm_up_threshold), "update_bound": check.bound("update_bound", update_bound)}
        super().__init__(
            params, lr, betas, eps, weight_decay, compressor, process_group, exchange, rounding, moments, threads, own, settings
        )


class ZeroOneAdam(Optimizer):
    """0/1 Adam: exchanges dense gradients in steps that become rarer, and signs in the others. After the variance is frozen, ranks
    take local steps, and exchange their sum as signs.

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
            params, lr, betas, eps, weight_decay, compressor, process_group, exchange, rounding, moments, threads, own, settings
        )


def _warm_up(steps: int, threshold: Optional[float]) -> dict[str, Optional[Setting]]:
    if threshold is not None and not 0.0 < check.number("warm_up_threshold", threshold) <= 1.0:
        raise ValueError(f"slamb: warm_up_threshold = {threshold!r}, but it must be in (0, 1], or None")
    return {"warm_up_steps": steps, "warm_up_threshold": threshold}
