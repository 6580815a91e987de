"""A communication hook of DistributedDataParallel that compresses gradients."""
# Without `from __future__ import annotations`: DistributedDataParallel compares the annotations of hooks with types.

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, Optional, Protocol, Union

import torch
import torch.distributed as dist

from slamb import _native
from slamb.torch import _arguments as check
from slamb.torch._arguments import Setting
from slamb.torch._ranks import Ranks, group_of

# Gradients have suddenly fallen if their norms on all ranks are at most this part of the smallest of so many steps. In trainings
# by train_images.py and train_lm.py on two ranks, with 2 to 16 examples in a batch, norms fell to 0.28 of it on both ranks, and to
# 0.025 on one.
_FALL = 1 / 8
_STEPS = 8
# If gradients really fall and rise again and again, they must not become infinite in the unit of the errors.
_LEAST_UNIT = 2.0**-30


class HasLossScale(Protocol):
    """torch.amp.GradScaler, and others with its method."""

    def get_scale(self) -> float: ...


LossScale = Union[HasLossScale, Callable[[], float], None]


def compression_hook(
    compressor: str,
    process_group: Optional["dist.ProcessGroup"] = None,
    threads: Optional[int] = None,
    scaler: LossScale = None,
    **settings: Setting,
) -> "CompressionHook":
    """A hook for `DistributedDataParallel.register_comm_hook`, by which any optimizer gets compressed gradients.

        hook = slamb.torch.compression_hook("int8")
        model.register_comm_hook(None, hook)

    Each step sends the gradients of all buckets together, when the last is ready. Ranks keep the compression errors and add them
    to the next gradients. They belong in checkpoints: `hook.state_dict()` of every rank, and `hook.load_state_dict()` before
    the first step. If a gradient of any rank is not finite, all ranks get gradients of NaN, and the errors do not change.

    If the loss is scaled, give the scaler, and the errors follow its scale:

        hook = slamb.torch.compression_hook("int8", scaler=scaler)  # a torch.amp.GradScaler

    Without a scaler, call `hook.rescale(factor)` whenever the loss scale is multiplied by a factor. The hook also notices a sudden
    fall of the gradients by itself: if their norms on all ranks are at most an eighth of the smallest of the last 8 steps. It takes
    this for a change of the loss scale, multiplies the errors by the nearest power of two, and warns once. This is the safe choice.
    Errors can be ten times as large as a gradient, so errors of an old, larger scale would replace the next gradients. If the
    gradients themselves have become smaller, only a part of the errors is lost, once. Smaller falls are not noticed.

    :param compressor: "sign", "four_levels", "int8", "int4", "natural", "bf16", "fp16", "random_k", "top_k", "random_k+int8",
        "random_k+int4" or "none"
    :param process_group: that of the model; None: the default group
    :param threads: None: torch.get_num_threads()
    :param scaler: of the loss: torch.amp.GradScaler, another object with get_scale(), or a function that returns the scale. None:
        the loss is not scaled, or the program calls `hook.rescale`
    :param settings: of the compressor: k, block and seed of random_k, k of top_k, seed and quantizer_block of int8 and int4,
        quantizer_block of four_levels, seed of natural, scales ("fused" or "per_tensor") of sign
    :raises ValueError: for a wrong argument
    """
    return CompressionHook(compressor, process_group, threads, scaler, **settings)


class CompressionHook:
    """See `compression_hook`. Pickling leaves out the process group and the scaler: set `hook.scaler` then."""

    def __init__(
        self,
        compressor: str,
        process_group: Optional["dist.ProcessGroup"] = None,
        threads: Optional[int] = None,
        scaler: LossScale = None,
        **settings: Setting,
    ) -> None:
        if not (scaler is None or callable(scaler) or hasattr(scaler, "get_scale")):
            raise ValueError(
                f"slamb: scaler must have get_scale(), as torch.amp.GradScaler has, or be a function that returns the loss scale, "
                f"not {scaler!r}"
            )
        self.scaler = scaler
        self._needs_scaler = False  # after unpickling
        self._arguments: dict[str, Any] = {
            "compressor": check.text("compressor", compressor),
            "threads": None if threads is None else check.count("threads", threads, 1),
            "settings": {name: check.setting(name, value) for name, value in settings.items()},
        }
        # DistributedDataParallel asks hooks for their names, as if they were functions.
        self.__name__ = self.__qualname__ = "slamb_" + compressor.replace("+", "_")
        self._join(process_group)
        self._core: Optional[_native.Optimizer] = None
        self._order: dict[torch.Tensor, int] = {}  # parameters, in the order in which the first step has seen them
        self._sizes: list[list[int]] = []  # of the parameters of each bucket of the first step
        self._buckets: list[_Bucket] = []  # of this step, so far
        self._means: dict[int, torch.Tensor] = {}  # by bucket
        self._addresses: tuple[list[int], list[int]] = ([], [])
        self._loaded: Optional[dict[str, Any]] = None  # a state to begin with
        self._unit = 1.0  # of the errors, in gradients; or, with a scaler, in gradients for each unit of its scale
        self._is_of_scale = False
        self._norms = _Norms()
        self._cells = torch.tensor([1.0, 0.0], device="cpu")  # the core divides gradients by one, and skips if the other is 1
        self._has_warned = False
        _native.Optimizer("mean", compressor, "float32", [], [], [], [], self._arguments["settings"], 1, 0, None, 0)  # checks them now

    def __call__(
        self, state: Any, bucket: dist.GradBucket, *others: Any  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if others or not isinstance(bucket, dist.GradBucket):  # type: ignore[attr-defined]
            raise TypeError(
                f"slamb: compression_hook() was given a {type(bucket).__name__} where DistributedDataParallel gives a GradBucket; "
                f"it does not work with FullyShardedDataParallel; wrap the model in DistributedDataParallel, or train without this "
                f"hook"
            )
        if bucket.index() == 0:
            self._buckets = []  # a backward pass that has failed may have left some
        self._buckets.append(_Bucket(bucket))
        mean = self._buckets[-1].mean
        if bucket.is_last():
            self._exchange()
        return mean

    def rescale(self, factor: float) -> None:
        """Multiplies the errors by a factor, because the next gradients have it too. For programs that scale the loss without a
        scaler. All ranks must call it with the same factor.

        :raises ValueError: if the factor is not a finite number > 0
        """
        unit = self._unit * check.number("factor", factor)
        if not 2.0**-126 <= unit <= 2.0**126:
            raise ValueError(
                f"slamb: factor = {factor!r}, but it must be > 0, and all factors together in [2^-126, 2^126], not {unit!r}"
            )
        self._unit = unit

    def state_dict(self) -> dict[str, Any]:
        """The compression errors of this rank, their unit, and the norms of its last gradients."""
        scaling = {"unit": self._unit, "is_of_scale": self._is_of_scale, "norms": list(self._norms.last)}
        if self._core is None:
            return {**(self._loaded or {"sizes": [], "ranks": {}}), **scaling}
        state = torch.empty(self._core.state_bytes(False), dtype=torch.uint8, device="cpu")
        self._core.save_state(state.data_ptr(), state.numel(), False)
        return {"sizes": list(self._sizes), "ranks": {self._key(): state}, **scaling}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues with these errors.

        :raises ValueError: if they are of another rank or of another model, or of a hook with a scaler and this one has none;
            nothing has changed then
        """
        if state_dict.get("is_of_scale", False) and self.scaler is None:
            raise ValueError(
                "slamb: load_state_dict() was given errors of a hook with a scaler; construct compression_hook() with scaler="
            )
        self._restore(state_dict)

    def statistics(self) -> dict[str, Any]:
        """Steps and traffic of this rank so far, and the norms of its compression errors, in the unit of the last gradients: see
        `Optimizer.statistics`. When rank 0 finds that its gradients have suddenly fallen, all ranks exchange theirs twice, and the
        first time counts as a skipped step."""
        counts = ("step", "skipped_steps", "local_skips", "collectives", "payload_bytes", "sent_bytes")
        if self._core is None:
            return {**dict.fromkeys(counts, 0), "worker_error_norms": []}
        now = self._core.statistics(True)
        norms = [norm * float(self._cells[0]) for norm in now["worker_error_norms"]]
        return {**{name: now[name] for name in counts}, "worker_error_norms": norms}

    def __getstate__(self) -> dict[str, Any]:
        needs_scaler = self._needs_scaler or self.scaler is not None
        return {"_arguments": self._arguments, "_loaded": self.state_dict(), "_needs_scaler": needs_scaler}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arguments = state["_arguments"]
        self.__init__(arguments["compressor"], None, arguments["threads"], **arguments["settings"])  # type: ignore[misc]
        self._needs_scaler = state.get("_needs_scaler", False)
        self._restore(state["_loaded"])

    def _restore(self, state_dict: dict[str, Any]) -> None:
        if state_dict["ranks"] and self._key() not in state_dict["ranks"]:
            raise ValueError(
                f"slamb: load_state_dict() was given the errors of {' and '.join(state_dict['ranks'])}, but this is "
                f"{self._key()}; save a state on every rank, and load each rank's own"
            )
        if self._core is None or not state_dict["ranks"]:
            self._loaded, self._core = dict(state_dict), None
        else:
            self._load(state_dict, self._core)
        # States of earlier versions have errors in the unit of the gradients.
        self._unit, self._is_of_scale = float(state_dict.get("unit", 1.0)), bool(state_dict.get("is_of_scale", False))
        self._norms = _Norms(state_dict.get("norms", ()))

    def _join(self, process_group: Optional["dist.ProcessGroup"]) -> None:
        group = group_of(process_group)
        if group is None:
            raise ValueError(
                "slamb: compression_hook() needs torch.distributed; call torch.distributed.init_process_group() first"
            )
        self._ranks = Ranks(group, torch.device("cpu"))

    def _key(self) -> str:
        return f"rank{self._ranks.rank}_of_{self._ranks.size}"

    def _exchange(self) -> None:
        """Exchanges the gradients of all buckets, and gives each bucket its mean."""
        buckets, self._buckets = self._buckets, []
        if not self._order:
            self._order = {p: i for i, p in enumerate(p for bucket in buckets for p in bucket.parameters)}
            self._sizes = [[p.numel() for p in bucket.parameters] for bucket in buckets]
        data, gradients = [0] * len(self._order), [0] * len(self._order)
        for number, bucket in enumerate(buckets):
            mean = self._means.get(number)
            if mean is None or mean.numel() != bucket.values.numel():
                mean = self._means[number] = torch.zeros_like(bucket.values)
            for p, first in zip(bucket.parameters, bucket.offsets):
                i = self._order.get(p)
                if i is None:
                    raise self._other_model()
                data[i] = mean.data_ptr() + 4 * first
                gradients[i] = bucket.values.data_ptr() + 4 * first
        if 0 in data:
            raise self._other_model()
        if self._core is None:
            self._core = self._make_core(data, gradients)
        elif (data, gradients) != self._addresses:
            self._core.set_parameters(data, gradients)
        self._addresses = (data, gradients)
        unit = self._unit_now(self._core)
        is_finite = self._step(self._core, unit, buckets)
        for number, bucket in enumerate(buckets):
            mean = self._means[number]
            if not is_finite:
                mean.fill_(float("nan"))
            elif self._cells[0] != 1.0:
                mean.mul_(self._cells[0])
            bucket.mean.set_result(mean.to(bucket.dtype))

    def _unit_now(self, core: _native.Optimizer) -> float:
        """The unit of the errors, in gradients of this step."""
        if self.scaler is None:
            if self._needs_scaler or self._is_of_scale:
                raise RuntimeError(
                    "slamb: this hook had a scaler and has none now, because pickling leaves it out; set hook.scaler to that of the "
                    "loss"
                )
            return self._unit
        read: Any = getattr(self.scaler, "get_scale", self.scaler)
        scale = check.number("the loss scale", read())
        if not 0.0 < scale < math.inf:
            raise ValueError(f"slamb: the scaler has the loss scale {scale!r}, but it must be a finite number > 0")
        if core.steps == 0:  # there are no errors yet
            self._unit, self._is_of_scale = 1.0, False
        if not self._is_of_scale:
            # Gradients of this scale are exchanged as they are, because "fp16" has few bits for small ones.
            self._unit, self._is_of_scale = self._unit / scale, True
        return self._unit * scale

    def _step(self, core: _native.Optimizer, unit: float, buckets: Sequence["_Bucket"]) -> bool:
        """Exchanges the gradients. False if one of any rank is not finite: then nothing has changed."""
        if self.scaler is not None or self._ranks.size == 1 or self._arguments["compressor"] == "none":
            return self._try_step(core, unit)
        norm = math.hypot(*(float(torch.linalg.vector_norm(bucket.values)) for bucket in buckets))
        of_smallest, of_median = self._norms.compare(norm / unit)
        # Ranks must decide together, but a collective for it in each step would be slow. So rank 0 makes all ranks skip this step,
        # and they compare what they have found. If rank 0 has not seen a fall, not all ranks have.
        is_alarm = self._ranks.rank == 0 and 0.0 < of_smallest <= _FALL
        is_taken = self._try_step(core, unit, is_alarm)
        if not is_taken:
            of_smallest, of_median, was_alarm = self._ranks.largest([of_smallest, of_median, float(is_alarm)])
            if was_alarm:
                if of_smallest <= _FALL:  # on all ranks
                    self._follow(of_median)
                is_taken = self._try_step(core, self._unit)
        if is_taken:
            self._norms.add(norm / self._unit)
        return is_taken

    def _try_step(self, core: _native.Optimizer, unit: float, skip: bool = False) -> bool:
        self._cells[0], self._cells[1] = unit, float(skip)
        skipped = core.skipped_steps
        try:
            core.step([self._unit])  # ranks compare it, as they compare learning rates
        except RuntimeError as error:
            if "learning rate" not in str(error):
                raise
            raise RuntimeError(
                "slamb: ranks differ in the unit of their compression errors; call rescale() on all ranks with the same factor, "
                "load states of the same step, and begin with the same loss scale"
            ) from error
        return bool(core.skipped_steps == skipped)

    def _follow(self, fall: float) -> None:
        """Multiplies the errors, because gradients have fallen to this part of those of the last steps."""
        factor = 2.0 ** round(math.log2(fall))
        if self._unit * factor < _LEAST_UNIT:
            return
        self._unit *= factor
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"slamb: the gradients of all ranks have suddenly fallen to {fall:.3g} of those of the last {_STEPS} steps, as if "
                f"the loss scale had changed; the compression errors were multiplied by {factor:.3g} too. If the loss is scaled, "
                f"construct compression_hook() with scaler=, or call hook.rescale() when the scale changes",
                RuntimeWarning,
                stacklevel=2,
            )

    @staticmethod
    def _other_model() -> RuntimeError:
        return RuntimeError("slamb: the model has other parameters than at the first step; construct another hook for it")

    def _make_core(self, data: Sequence[int], gradients: Sequence[int]) -> _native.Optimizer:
        described = [_native.Tensor(p.numel(), "float32", p.dim(), 0.0, 0, True, True) for p in self._order]
        core = _native.Optimizer(
            "mean",
            self._arguments["compressor"],
            "float32",
            described,
            data,
            gradients,
            [0] * len(described),
            self._arguments["settings"],
            self._arguments["threads"] or torch.get_num_threads(),
            0,
            self._ranks if self._ranks.size > 1 else None,
            0,
        )
        core.set_gradient_scaling(self._cells.data_ptr(), self._cells.data_ptr() + self._cells.element_size())
        if self._loaded is not None and self._loaded["ranks"]:
            self._load(self._loaded, core)
        self._loaded = None
        return core

    def _load(self, state_dict: dict[str, Any], into: _native.Optimizer) -> None:
        if list(state_dict["sizes"]) != self._sizes:
            raise ValueError(
                "slamb: load_state_dict() was given errors of another model, or of one whose buckets are cut otherwise; load them "
                "with the same model and the same bucket_cap_mb"
            )
        state = state_dict["ranks"][self._key()]
        if state.dtype != torch.uint8:
            raise ValueError(f"slamb: load_state_dict() was given errors of type {state.dtype}, not torch.uint8")
        state = state.detach().to("cpu").contiguous()
        into.load_state(state.data_ptr(), state.numel(), False)


class _Norms:
    """The norms of this rank's gradients in the last steps, in the unit of the errors. Steps whose gradients are not finite, or all
    zero, do not count."""

    def __init__(self, last: Iterable[float] = ()) -> None:
        self.last: deque[float] = deque(last, maxlen=_STEPS)

    def add(self, norm: float) -> None:
        if 0.0 < norm < math.inf:
            self.last.append(norm)

    def compare(self, norm: float) -> tuple[float, float]:
        """The norm in parts of the smallest, and of the median; 0 if nothing can be said, and infinity if it is not finite."""
        if not math.isfinite(norm):
            return math.inf, math.inf
        if len(self.last) < _STEPS:
            return 0.0, 0.0
        return norm / min(self.last), norm / median(self.last)


class _Bucket:
    """The gradients of a bucket as floats, and the place of their mean."""

    def __init__(self, bucket: dist.GradBucket) -> None:  # type: ignore[name-defined]
        buffer = bucket.buffer()
        if buffer.device.type != "cpu":
            raise ValueError(f"slamb: compression hooks work on gradients in host memory, but these are on {buffer.device}")
        gradients = bucket.gradients()
        self.dtype = buffer.dtype
        self.parameters = bucket.parameters()
        self.offsets = [(g.data_ptr() - buffer.data_ptr()) // buffer.element_size() for g in gradients]
        self.values = buffer.to(torch.float32)
        self.mean: torch.futures.Future[torch.Tensor] = torch.futures.Future()
