"""A compiled optimizer over some of an optimizer's parameters."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch

from slamb import _native
from slamb._load import module_for
from slamb.torch import _arguments as check
from slamb.torch import _capture as capture
from slamb.torch._options import GroupOptions, are_options, checked_options
from slamb.torch._ranks import AllRanks
from slamb.torch._shards import is_consecutive
from slamb.torch._tensors import Strides, Tensors, like_parameter, local_part

if TYPE_CHECKING:
    from slamb.torch._optimizer import Optimizer

# The keys of a parameter's entry in `state` that may belong to this library: those of torch.optim.AdamW, and those of other states.
MOMENT_KEYS = frozenset(("step", "exp_avg", "exp_avg_sq", "master_param"))
OWN_KEYS = MOMENT_KEYS | {"number", "ranks"}

# Arguments that the compiled module does not compare between ranks.
_NOT_COMPARED_ELSEWHERE = ("moments", "rounding", "rounding_seed", "check_gradients")

# What ranks know about their gradients.
_UNKNOWN, _EQUAL, _DIFFERENT = range(3)


def _has_keys(entry: Any, keys: frozenset[str]) -> bool:
    return isinstance(entry, dict) and not keys.isdisjoint(entry)


def _are_equal(found: Any, value: Any) -> bool:
    """True if the values are, NaN too."""
    if not isinstance(value, torch.Tensor):
        return bool(found == value)
    if (
        not isinstance(found, torch.Tensor)
        or found.device.type == "meta"
        or (found.dtype, found.shape, found.layout) != (value.dtype, value.shape, value.layout)
    ):
        return False
    with torch.no_grad():
        found, value = local_part(found).to(value.device), local_part(value)
        return bool(((found == value) | ((found != found) & (value != value))).all())


def _different_coefficients(number: int, its: tuple[float, float, float], first: int, others: tuple[float, float, float]) -> ValueError:
    return ValueError(
        f"slamb: parameter group {number} has betas and eps {its} now, but group {first} has {others}; they were equal at the "
        f"construction, and must stay so"
    )


class Part:
    """A compiled optimizer over some of an optimizer's parameters.

    :param members: their numbers among all parameters of the optimizer, in the order of the compiled optimizer's tensors
    :param strides: the order of their elements: see `Tensors`
    :raises ValueError: if such an optimizer cannot be made
    :raises RuntimeError: if ranks differ
    """

    def __init__(self, owner: "Optimizer", members: Sequence[int], strides: Optional[dict[int, Strides]] = None) -> None:
        arguments, shared, groups = owner._arguments, owner._shared, owner.param_groups
        parameters = [p for group in groups for p in group["params"]]
        group_of = [number for number, group in enumerate(groups) for _ in group["params"]]
        self.members = list(members)
        self.groups = sorted({group_of[i] for i in self.members})
        self.group_of_members = [group_of[i] for i in self.members]
        self._options = {number: checked_options(number, groups[number]) for number in self.groups}
        self.tensors = Tensors([parameters[i] for i in self.members], arguments["rounding"] == "nearest", self.members, strides)
        self._recipe = owner._recipe
        self._arguments = arguments
        self._stream: Optional[torch.cuda.Stream] = shared.stream
        self._ranks: AllRanks = shared.ranks
        self._rates: Optional[torch.Tensor] = None  # of steps whose rates are on the device
        self._gradient_types: list[str] = []  # as `core` knows them
        self.saves_parameters = owner._keeps_own_parameters or bool(self.tensors.masters)
        self._must_compare_gradients = self._ranks.exchange is not None and arguments["check_gradients"]
        #: What this rank has of each parameter.
        self.pieces = owner._pieces_of(self.members)
        if not self._ranks.is_alone:
            self._ranks.require_equal({name: arguments[name] for name in _NOT_COMPARED_ELSEWHERE})
        self._core = self._make_core(groups)
        self.has_started = False  # true if it has taken a step or holds a state
        self._has_stepped = False  # true if `core` has taken a step
        self._may_be_replayed = False  # true if a step was captured: replays take steps without a call
        #: True if `state` has the moments themselves.
        self.has_open_moments = owner._has_open_moments()
        #: True if they, with the number of steps, are its complete state, as with torch.optim.AdamW.
        self.has_open_state = self.has_open_moments and arguments["compressor"] == "none"
        #: The keys of entries in `state` that belong to this library.
        self.own_keys = MOMENT_KEYS if self.has_open_state else OWN_KEYS
        self._taken = torch.zeros(len(self.members), dtype=torch.float32, device="cpu")  # the number of steps, for each parameter
        self._steps = list(self._taken)  # as `state` shows it
        self._shown = self._taken.clone()  # what was written there
        self._count = 0.0  # the same
        self._places: list[tuple[int, int]] = []  # the addresses of the moments
        self.own: list[dict[str, Any]] = []  # what `state` shows of each parameter
        self.entries: list[dict[Any, Any]] = []  # the parameters' entries in `state`
        self._values: list[Any] = []  # all values of `entries`

    # ---------------------------------------------------------------------------------------------------------------- Steps

    @property
    def core(self) -> _native.Optimizer:
        """
        :raises RuntimeError: if it is of ranks of NCCL that are gone, which it would call
        """
        self._ranks.require_alive()
        return self._core

    @property
    def shard_name(self) -> str:
        """The end of the names of states with the same shard."""
        return self._ranks.shard_name

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """β1, β2 and ε."""
        return self._options[self.groups[0]].coefficients

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

    def follow_groups(self, numbers: list[int]) -> bool:
        """The groups of its members have other numbers. False if that cannot be: members of one group are in several now.

        :param numbers: the number of the group of each member
        """
        now = dict(zip(self.group_of_members, numbers))
        if [now[number] for number in self.group_of_members] != numbers:
            return False
        if numbers != self.group_of_members:
            self._options = {now[number]: options for number, options in self._options.items()}
            self.groups = [now[number] for number in self.groups]
            self.group_of_members = numbers
        return True

    def refresh(self, groups: list[dict[str, Any]], for_step: bool = False) -> None:
        """Passes on what has changed since the last call: addresses, and settings of parameter groups.

        :param for_step: also where gradients are
        :raises ValueError: for what is not possible; nothing has happened then
        """
        for number, old in self._options.items():
            if not are_options(groups[number], old):
                self._change_options(groups)
                break
        self.refresh_tensors(for_step)

    def require_options(self, groups: list[dict[str, Any]]) -> None:
        """
        :raises ValueError: if it cannot have the options of these groups
        """
        first = self.groups[0]
        coefficients = {number: checked_options(number, groups[number]).coefficients for number in self.groups}
        for number, other in coefficients.items():
            if other != coefficients[first]:
                raise _different_coefficients(number, other, first, coefficients[first])

    def refresh_tensors(self, for_step: bool = True) -> None:
        tensors = self.tensors
        tensors.before_step()
        try:
            if tensors.has_moved():
                tensors.have_gradients_moved()
                self._pass_gradient_types()
                with self.on_its_stream():  # replays may still read the old ones
                    self.core.set_parameters(tensors.data, tensors.gradients)
            elif for_step and tensors.have_gradients_moved():
                self._pass_gradient_types()
                with self.on_its_stream():
                    self.core.set_gradients(tensors.gradients)
        except BaseException:
            tensors.forget_places()  # which `core` has not taken over
            raise

    def why_not_captured(self, groups: list[dict[str, Any]]) -> Optional[str]:
        """The reason why a step cannot be captured into a graph now; None if it can. Changes nothing, and waits for nothing."""
        if self._ranks.has_host:
            return "its ranks exchange through the host, which a graph does not; initialize the process group with the backend nccl"
        if not self._has_stepped:
            return "some parameters have not taken a step yet; take one outside of the graph first"
        if self._must_compare_gradients:
            return (
                "it would compare the gradients of the ranks, as no step so far had gradients that could tell if they differ; "
                "take a step outside of the graph first, or construct the optimizer with check_gradients=False"
            )
        for number, known in self._options.items():
            group = groups[number]
            numbers = (*group.get("betas", ()), group.get("eps"), group.get("weight_decay"))
            if any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in numbers):
                return f"betas, eps or weight_decay of parameter group {number} are on a GPU, and reading them waits; use floats"
            if not are_options(group, known):
                return f"options of parameter group {number} have changed since the last step; take one outside of the graph first"
        if not self.tensors.lie_as_before():
            return "parameters have moved since the last step; take one outside of the graph first"
        if not self.tensors.have_gradients_as_before():
            return (
                "other parameters have a gradient than in the last step; take a step with the same ones outside of the graph first"
            )
        return None

    def refresh_captured(self) -> None:
        """As `refresh`, for a step that is captured into a graph. To be called after `why_not_captured`. Replays read the present
        gradients, whatever other steps read."""
        tensors = self.tensors
        tensors.before_step(is_captured=True)
        try:
            tensors.have_gradients_moved()
            self._pass_gradient_types()
            with self.on_its_stream():
                self.core.set_gradients(tensors.gradients)
        except BaseException:
            tensors.forget_places()
            raise

    def check_step(
        self, groups: list[dict[str, Any]], loss_scale: Optional[torch.Tensor], found_inf: Optional[torch.Tensor]
    ) -> None:
        """
        :raises ValueError, RuntimeError: if the step cannot be taken; nothing has changed then
        """
        for number in self.groups:
            rate = groups[number]["lr"]
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
        rates = [groups[number]["lr"] for number in self.groups]
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
        self.has_started = self._has_stepped = True
        if capture.is_captured(self._stream):
            self._may_be_replayed = True
        elif self._stream is None:
            self._show_steps(self.core.steps)
        else:
            self._show_steps(self._count + 1.0)  # to read it would wait; `show_steps` does where something waits anyway
        self.tensors.after_step(with_gradient_only=True)

    # ---------------------------------------------------------------------------------------------------------------- State

    def describe(self) -> None:
        """Finds what `state` shows of its parameters."""
        self.show_steps()
        self.own, self._places = [], []
        for i, steps in enumerate(self._steps):
            own: dict[str, Any] = {"step": steps}
            moments = self.moments(i) if self.has_open_moments else None
            if moments is not None:
                own["exp_avg"], own["exp_avg_sq"] = self.like_parameter(i, moments[0]), self.like_parameter(i, moments[1])
                self._places.append((moments[0].data_ptr(), moments[1].data_ptr()))
            if not self.has_open_state:
                # With all keys of a saved state: torch.distributed.checkpoint looks for those that are here.
                own["number"] = torch.tensor(self.members[i], device="cpu")
                own["ranks"] = {}
            elif i in self.tensors.masters:
                own["master_param"] = self.like_parameter(i, self.tensors.masters[i])
            self.own.append(own)

    def show(self, state: dict[Any, Any]) -> None:
        """Puts into `state` what others look for there: an entry for each parameter, beside what they have put into it."""
        self.describe()
        known = {id(entry) for entry in self.entries}
        self.entries = []
        for p, own in zip(self.tensors.given, self.own):
            before = state.get(p)
            others = self.entries_of_others(before)
            if isinstance(before, dict) and id(before) in known:
                before.clear()
                entry = before
            else:
                entry = state[p] = {}  # what others have put there is theirs
            entry.update(own)
            entry.update(others)
            self.entries.append(entry)
        self._note_values()

    def entries_of_others(self, entry: Any) -> dict[Any, Any]:
        """What others have in the entry of a parameter."""
        return {key: value for key, value in entry.items() if key not in self.own_keys} if isinstance(entry, dict) else {}

    def show_steps(self) -> None:
        """Shows the number of steps. Waits for a GPU."""
        self._show_steps(self.steps())

    def show_replays(self) -> None:
        """Shows the steps that graphs have taken since the last call. Waits for a GPU if there may be some."""
        if self._may_be_replayed and torch.equal(self._taken, self._shown):
            self.show_steps()

    def steps(self) -> int:
        """The number of steps taken, with those that graphs take before this call. Waits for a GPU."""
        with self.on_its_stream():
            return self.core.steps

    def statistics(self, with_norms: bool) -> dict[str, Any]:
        with self.on_its_stream():
            return self.core.statistics(with_norms)

    def is_shown(self) -> bool:
        """True if nothing in its entries was replaced since the last call of `show`. It may be false without a reason."""
        return (
            _native.hold(self.entries, self._values)
            and torch.equal(self._taken, self._shown)
            and (not self._places or self._is_in_place(0))  # who gives one tensor other memory does so with all
        )

    def is_shown_in(self, state: dict[Any, Any]) -> bool:
        """True if `state` has its values, in whatever entries: others may have copied them, or moved them to a device and back.
        Then `state` has the optimizer's own again."""
        if not torch.equal(self._taken, self._shown):
            return False
        entries: list[dict[Any, Any]] = []
        is_copy = False
        for i, (p, own) in enumerate(zip(self.tensors.given, self.own)):
            entry = state.get(p)
            if not isinstance(entry, dict):
                return False
            truth = own
            if self._places and not self._is_in_place(i):  # something has given the tensors other memory
                moments = self.moments(i)
                assert moments is not None
                exp_avg, exp_avg_sq = (self.like_parameter(i, one) for one in moments)
                truth = {**own, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
            for key, value in truth.items():
                found = entry.get(key)
                if found is not value:
                    if not _are_equal(found, value):
                        return False
                    is_copy = True
            entries.append(entry)
        if is_copy:
            self.show(state)
        else:
            self.entries = entries
            self._note_values()
        return True

    def is_gone_from(self, state: dict[Any, Any]) -> bool:
        """True if `state` has nothing of its parameters."""
        return not any(_has_keys(state.get(p), self.own_keys) for p in self.tensors.given)

    def _is_in_place(self, i: int) -> bool:
        own = self.own[i]
        return (local_part(own["exp_avg"]).data_ptr(), local_part(own["exp_avg_sq"]).data_ptr()) == self._places[i]

    def _note_values(self) -> None:
        self._values = list(itertools.chain.from_iterable(map(dict.values, self.entries)))

    def saved_moments(self, i: int) -> dict[str, Any]:
        """A copy of the open state of its parameter i."""
        moments = self.moments(i)
        assert moments is not None
        copies = {"exp_avg": moments[0].clone(), "exp_avg_sq": moments[1].clone()}
        if i in self.tensors.masters:
            copies["master_param"] = self.tensors.masters[i].clone()
        return {"step": self._taken[i].clone(), **{name: self.like_parameter(i, one) for name, one in copies.items()}}

    def like_parameter(self, i: int, local: torch.Tensor) -> torch.Tensor:
        """A tensor of this rank's part of its parameter i, as part of a tensor like the parameter."""
        return like_parameter(self.tensors.given[i], local)

    def saved_steps(self) -> torch.Tensor:
        return self._taken[0].clone()

    def moments(self, i: int) -> Optional[tuple[torch.Tensor, torch.Tensor]]:
        """The momentum and the variance of this rank's part of its parameter i, in the memory of the optimizer; None if they are not
        float32."""
        arrays = self._core.moments(i)
        if arrays is None:
            return None
        with torch.no_grad():
            momentum, variance = (
                torch.utils.dlpack.from_dlpack(one).as_strided(self.tensors.shapes[i], self.tensors.strides[i]) for one in arrays
            )
        return momentum, variance

    def set_moments(self, i: int, momentum: Optional[torch.Tensor], variance: Optional[torch.Tensor]) -> None:
        """Replaces the moments of its parameter i; None: by 0. To be followed by `set_steps`."""
        own = self.moments(i)
        assert own is not None
        for to, value in zip(own, (momentum, variance)):
            if value is None:
                to.zero_()
            elif value.data_ptr() != to.data_ptr() or to.numel() == 0:
                to.copy_(value.detach())

    def set_fresh_variance(self, i: int, value: torch.Tensor) -> None:
        """Replaces the fresh variance of 1-bit LAMB of its parameter i. To be followed by `set_steps`."""
        array = self._core.fresh_variance(i)
        assert array is not None
        own = torch.utils.dlpack.from_dlpack(array).as_strided(self.tensors.shapes[i], self.tensors.strides[i])
        own.copy_(value.detach())

    def set_steps(
        self, steps: int, warm_up: int = 0, ratios: Sequence[tuple[float, float, float]] = (), intervals: Sequence[int] = ()
    ) -> None:
        """See `_native.Optimizer.set_steps`."""
        with self.on_its_stream():
            self.core.set_steps(steps, warm_up, list(ratios), list(intervals))
        self.has_started = steps > 0

    def renew(self, groups: list[dict[str, Any]]) -> None:
        """Begins anew with the present parameters. Collective."""
        self.tensors.reload_masters()
        self._core = self._make_core(groups)
        self.has_started = False

    def save(self, is_whole: bool = False) -> torch.Tensor:
        """The state of this rank, as bytes. To be called after `refresh`.

        :param is_whole: the state of whole parameters, at the first rank of the shard group; nothing at the others. Collective
        """
        with self.on_its_stream():
            size = self.core.state_bytes(self.saves_parameters, is_whole)
            state = torch.empty(size, dtype=torch.uint8, device="cpu")
            self.core.save_state(state.data_ptr(), size, self.saves_parameters, is_whole)
        return state

    def why_not_whole(self) -> Optional[str]:
        """The reason why a state of whole parameters cannot have this rank's parts, laid end to end with others; None if it can."""
        if self._ranks.shards is not None and self.has_open_state:
            return "it is in moments of each shard, which torch.distributed.checkpoint collects; save and load by that"
        lies_otherwise = self.tensors.reordered()
        for i, p in enumerate(self.tensors.given):
            if self._ranks.shards is not None and (i in lies_otherwise or not is_consecutive(p)):
                return f"parameter {self.members[i]} is not cut along its first dimension alone, into parts that lie as they are counted"
        return None

    def load(self, state: torch.Tensor, from_other_ranks: bool, is_whole: bool = False) -> None:
        """Continues from bytes that `save` has returned. To be called after `refresh`."""
        state = state.detach().to("cpu").contiguous()
        with self.on_its_stream():
            self.core.load_state(state.data_ptr(), state.numel(), from_other_ranks, is_whole)
        self.has_started = True
        if self.saves_parameters:
            self.tensors.after_step()

    def fits(self, groups: list[dict[str, Any]], members: list[int], strides: dict[int, Strides]) -> bool:
        """True if it is over these parameters, in this order, with the flags of their groups."""
        return (
            self.members == members
            and self.tensors.reordered() == strides
            and all(
                (own.adapt, own.compress, own.dimensions)
                == (groups[n]["adapt"], groups[n]["compress"], groups[n].get("dimensions"))
                for n, own in self._options.items()
            )
        )

    # ------------------------------------------------------------------------------------------------------------- Internal

    def _make_core(self, groups: list[dict[str, Any]]) -> _native.Optimizer:
        arguments, tensors = self._arguments, self.tensors
        beta1, beta2, epsilon = self._common_coefficients()
        settings = {**arguments["settings"], "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        if self._ranks.exchange is None and "skip_non_finite" not in settings and self._recipe in ("adamw", "lamb"):
            settings["skip_non_finite"] = False  # costs a pass without an exchange, and torch.optim does not check either
        module = module_for(tensors.device.type)
        described = [
            module.Tensor(
                p.numel(),
                type_name,
                len(piece.shape),
                float(groups[number]["weight_decay"]),
                self.groups.index(number),
                groups[number]["adapt"],
                groups[number]["compress"],
                piece.number,
                piece.size,
            )
            for p, type_name, piece, number in zip(tensors.parameters, tensors.types, self.pieces, self.group_of_members)
        ]
        with self.on_its_stream():
            core: _native.Optimizer = module.Optimizer(
                self._recipe,
                arguments["compressor"],
                arguments["moments"],
                described,
                tensors.data,
                [at if type_name == own else 0 for at, type_name, own in zip(tensors.gradients, tensors.gradient_types, tensors.types)],
                tensors.master_addresses(),
                settings,
                arguments["threads"] or torch.get_num_threads(),
                arguments["rounding_seed"],
                None if self._ranks.exchange is None else self._ranks.exchange.own,
                None if self._ranks.shards is None else self._ranks.shards.own,
                0 if self._stream is None else self._stream.cuda_stream,
            )
        self._has_stepped = False
        self._gradient_types = list(tensors.types)
        if tensors.gradient_types != tensors.types:
            tensors.forget_places()
        return core

    def _pass_gradient_types(self) -> None:
        if self._gradient_types != self.tensors.gradient_types:
            self.core.set_gradient_types(self.tensors.gradient_types)
            self._gradient_types = self.tensors.gradient_types

    def _show_steps(self, steps: float) -> None:
        self._count = float(steps)
        self._taken.fill_(self._count)
        self._shown.fill_(self._count)

    def _common_coefficients(self) -> tuple[float, float, float]:
        """β1, β2 and ε.

        :raises ValueError: if groups have different ones
        """
        first = self.groups[0]
        for number, other in self._options.items():
            if other.coefficients != self.coefficients:
                raise _different_coefficients(number, other.coefficients, first, self.coefficients)
        return self.coefficients

    def _change_options(self, groups: list[dict[str, Any]]) -> None:
        changed: dict[int, GroupOptions] = {}
        for number, old in self._options.items():
            new = changed[number] = checked_options(number, groups[number])
            if (old.adapt, old.compress, old.dimensions) != (new.adapt, new.compress, new.dimensions):
                raise ValueError(
                    f"slamb: adapt, compress or dimensions of parameter group {number} has changed, but they are fixed at the "
                    f"construction; construct another optimizer"
                )
        before, self._options = self._options, changed
        try:
            decays = [float(groups[number]["weight_decay"]) for number in self.group_of_members]
            with self.on_its_stream():
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
        """A number of 63 bits that differs if the gradients do. 0 if they say nothing about the data: one is not finite, or each
        has only one value."""
        if self.tensors.device.type == "cpu":
            return _native.hash_of_gradients(self.tensors.arrays_of_gradients())
        gradients = [p.grad.detach().to(torch.float32) for p in self.tensors.parameters if p.grad is not None]
        gradients = [g.contiguous().view(-1) for g in gradients if g.numel() > 0]
        if not all(bool(g.isfinite().all()) for g in gradients) or all(bool((g == g[0]).all()) for g in gradients):
            return 0
        total = 0
        for one in torch.stack([g.view(torch.int32).to(torch.int64).sum() for g in gradients]).tolist():
            total = (total * 1000003 + one) % (1 << 62)
        return total

    def _compare_gradients(self) -> None:
        """Rejects gradients that are equal on all ranks, because something else has averaged them already."""
        exchange, shards = self._ranks.exchange, self._ranks.shards
        assert exchange is not None
        seen = exchange.gather_words(self._hash_of_gradients())
        found = _UNKNOWN if not any(seen) else _EQUAL if len(set(seen)) == 1 else _DIFFERENT
        of_shards = [found] if shards is None else shards.gather_words(found)  # the same on all ranks
        if _DIFFERENT in of_shards:
            self._must_compare_gradients = False
        elif _EQUAL in of_shards:
            raise RuntimeError(
                f"slamb: the gradients of all {exchange.size} ranks are equal, so they have been averaged already, or all "
                f"ranks have computed the same batch. With DistributedDataParallel, call "
                f"slamb.torch.keep_gradients_local(model), run forward and backward within model.no_sync(), or do not wrap the "
                f"model; to leave the averaging to it, construct the optimizer with exchange=False; to train on equal batches, "
                f"with check_gradients=False"
            )
