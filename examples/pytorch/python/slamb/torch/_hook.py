"""A communication hook of DistributedDataParallel that compresses gradients."""
# Without `from __future__ import annotations`: DistributedDataParallel compares the annotations of hooks with types.

import contextlib
import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, Optional, Protocol, Union

import torch
import torch.distributed as dist

from slamb import _native
from slamb._load import module_for
from slamb.torch import _arguments as check
from slamb.torch._arguments import Setting
from slamb.torch._ranks import Ranks, group_of

# Gradients have suddenly fallen if their norms on all ranks are at most this part of the smallest of so many steps. In trainings
# by train_images.py and train_lm.py on two ranks, with 2 to 16 examples in a batch, norms fell to 0.28 of it on both ranks, and to
# 0.025 on one.
_FALL = 1 / 8
_STEPS = 8
# Pieces that are exchanged beside the backward pass have at least so many elements: 25 MiB, as buckets of DistributedDataParallel.
_PIECE = 25 * 2**20 // 4
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

    Over NCCL the gradients are sent in pieces of about 25 MiB, on a stream of the hook's own, while the backward pass goes on: each as
    soon as its buckets have come. If a gradient is not finite, only its piece becomes NaN, and only the errors of this piece do not
    change. After the first step that is taken, the hook does not wait for the GPU.

    If the loss is scaled, give the scaler, and the errors follow its scale:

        hook = slamb.torch.compression_hook("int8", scaler=scaler)  # a torch.amp.GradScaler

    Without a scaler, call `hook.rescale(factor)` whenever the loss scale is multiplied by a factor. The hook also notices a sudden
    fall of the gradients by itself: if their norms on all ranks are at most an eighth of the smallest of the last 8 steps. It takes
    this for a change of the loss scale, multiplies the errors by the nearest power of two, and warns once. This is the safe choice.
    Errors can be ten times as large as a gradient, so errors of an old, larger scale would replace the next gradients. If the
    gradients themselves have become smaller, only a part of the errors is lost, once. Smaller falls are not noticed. Over NCCL no
    fall is, because the hook would have to wait for the norms.

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
        self._ranks: Optional[Ranks] = None  # on the device of the gradients
        self._device = torch.device("cpu")
        self._stream: Optional[torch.cuda.Stream] = None
        self._overlaps = False  # True: each piece is exchanged as soon as its gradients are there
        self._least_of_piece = _PIECE
        self._pieces: list[_Piece] = []
        self._piece_of: dict[torch.Tensor, _Piece] = {}  # parameters, in the order in which the first step has seen them
        self._has_seen_all = False  # True after the first step
        self._sizes: list[list[int]] = []  # of the parameters of each bucket of the first step
        self._buckets: list[_Bucket] = []  # of this step, so far
        self._bucket_of: dict[torch.Tensor, _Bucket] = {}  # of this step, so far
        self._means: dict[int, torch.Tensor] = {}  # by bucket
        self._loaded: Optional[dict[str, Any]] = None  # a state to begin with
        self._unit = 1.0  # of the errors, in gradients; or, with a scaler, in gradients for each unit of its scale
        self._is_of_scale = False
        self._has_errors = False  # True if a step was taken
        self._norms = _Norms()
        self._cells = torch.tensor([1.0, 0.0], device="cpu")  # cores divide gradients by one, and skip if the other is 1
        self._has_warned = False
        _native.Optimizer("mean", compressor, "float32", [], [], [], [], self._arguments["settings"], 1, 0, None, None, 0)  # checks them now

    def __call__(
        self, state: Any, bucket: dist.GradBucket, *others: Any  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if others or not isinstance(bucket, dist.GradBucket):  # type: ignore[attr-defined]
            raise TypeError(
                f"slamb: compression_hook() was given a {type(bucket).__name__} where DistributedDataParallel gives a GradBucket; "
                f"it does not work with FullyShardedDataParallel; wrap the model in DistributedDataParallel, or train without this "
                f"hook"
            )
        device = bucket.buffer().device
        if self._ranks is None:
            self._begin_on(device)
        elif device != self._device:
            raise ValueError(
                f"slamb: gradients are on {device}, but those before were on {self._device}; a hook works on one device, so construct "
                f"one for each model, and keep a model on one device"
            )
        if bucket.index() == 0:  # a backward pass that has failed may have left some
            self._require_alive()
            self._buckets, self._bucket_of = [], {}
            for piece in self._pieces:
                piece.missing = len(piece.members)
        with self._on_its_stream():
            return self._take(bucket)

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
        cores = self._cores()
        if not cores:
            return {**(self._loaded or {"sizes": [], "ranks": {}}), **scaling}
        with self._on_its_stream():
            states = [_saved(core) for core in cores]
        return {"sizes": list(self._sizes), "ranks": {self._key(): states if self._overlaps else states[0]}, **scaling}

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
        `Optimizer.statistics`. Over NCCL skips are counted for each piece of the gradients, and the steps are those of the piece that
        has the fewest. When rank 0 finds that its gradients have suddenly fallen, all ranks exchange theirs twice, and the
        first time counts as a skipped step."""
        counts = ("step", "skipped_steps", "local_skips", "collectives", "payload_bytes", "sent_bytes")
        cores = self._cores()
        if not cores:
            return {**dict.fromkeys(counts, 0), "worker_error_norms": []}
        with self._on_its_stream():
            now = [core.statistics(True) for core in cores]
        unit = float(self._cells[0])
        norms = [unit * math.hypot(*of_pieces) for of_pieces in zip(*(one["worker_error_norms"] for one in now))]
        of_all = {name: (min if name == "step" else sum)(one[name] for one in now) for name in counts}
        return {**of_all, "worker_error_norms": norms}

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
        if not self._cores() or not state_dict["ranks"]:
            self._loaded = dict(state_dict)
            for piece in self._pieces:
                piece.core = None
        else:
            self._load_all(state_dict)
        # States of earlier versions have errors in the unit of the gradients.
        self._unit, self._is_of_scale = float(state_dict.get("unit", 1.0)), bool(state_dict.get("is_of_scale", False))
        self._norms = _Norms(state_dict.get("norms", ()))
        self._has_errors = bool(state_dict["ranks"])

    def _join(self, process_group: Optional["dist.ProcessGroup"]) -> None:
        group = group_of(process_group)
        if group is None:
            raise ValueError(
                "slamb: compression_hook() needs torch.distributed; call torch.distributed.init_process_group() first"
            )
        self._group = weakref.ref(group)  # torch's: see Ranks
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)

    def _begin_on(self, device: torch.device) -> None:
        """Begins with gradients on this device."""
        group = self._group()
        if group is None:
            raise RuntimeError("slamb: the process group has been destroyed; construct compression_hook() with a new one")
        module_for(device.type)  # or there is none
        self._ranks, self._device = Ranks(group, device), device
        self._overlaps = self._ranks.has_nccl  # on the host, and through it, the exchange would wait anyway
        self._cells = self._cells.to(device)
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _on_its_stream(self) -> Iterator[None]:
        """Work within it is enqueued behind that of the current stream, which does not wait for it."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                yield

    def _key(self) -> str:
        return f"rank{self._rank}_of_{self._size}"

    def _cores(self) -> list[_native.Optimizer]:
        """Those of all pieces; none before the end of the first step."""
        cores = [piece.core for piece in self._pieces if piece.core is not None]
        if cores:
            self._require_alive()
        return cores if self._has_seen_all and len(cores) == len(self._pieces) else []

    def _require_alive(self) -> None:
        if self._ranks is not None and self._ranks.has_nccl:
            self._ranks.require_alive()

    def _take(self, given: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Takes over the gradients of a bucket, and exchanges the pieces that are complete with it."""
        bucket = _Bucket(given, len(self._buckets))
        self._buckets.append(bucket)
        for p in bucket.parameters:
            self._bucket_of[p] = bucket
            if p in self._piece_of:
                self._piece_of[p].missing -= 1
            elif self._has_seen_all:
                raise self._other_model()
        mean = self._means.get(bucket.number)
        if mean is None or mean.numel() != bucket.values.numel():
            mean = self._means[bucket.number] = torch.zeros_like(bucket.values)
        bucket.mean = mean
        if self._overlaps:
            mean.fill_(math.nan)  # what remains of it if the step is skipped
        if self._overlaps or given.is_last():
            if not self._has_seen_all:
                self._cut_pieces()
            for piece in self._pieces:
                if piece.missing == 0:
                    self._exchange(piece)
        if given.is_last():
            if any(piece.missing >= 0 for piece in self._pieces):
                raise self._other_model()
            if self._loaded is not None and self._loaded["ranks"] and list(self._loaded["sizes"]) != self._sizes:
                raise self._errors_of_another_model()
            self._has_seen_all, self._loaded = True, None
            self._buckets, self._bucket_of = [], {}  # the memory of gradients as floats
        return bucket.result

    def _cut_pieces(self) -> None:
        """Makes pieces of the parameters of the first step's buckets that are in none."""
        fresh = [bucket for bucket in self._buckets if any(p not in self._piece_of for p in bucket.parameters)]
        self._sizes.extend([p.numel() for p in bucket.parameters] for bucket in fresh)
        members: list[torch.Tensor] = []
        for p in (p for bucket in fresh for p in bucket.parameters):
            members.append(p)
            if self._overlaps and sum(one.numel() for one in members) >= self._least_of_piece:
                self._add_piece(members)
                members = []
        if members:
            self._add_piece(members)

    def _add_piece(self, members: list[torch.Tensor]) -> None:
        self._pieces.append(_Piece(members))
        self._piece_of.update(dict.fromkeys(members, self._pieces[-1]))

    def _exchange(self, piece: "_Piece") -> None:
        """Exchanges gradients, and gives their mean to the buckets that are complete with them."""
        assert self._ranks is not None
        piece.missing = -1
        data, gradients = [], []
        for p in piece.members:
            bucket = self._bucket_of[p]
            data.append(bucket.mean.data_ptr() + 4 * bucket.offsets[p])
            gradients.append(bucket.values.data_ptr() + 4 * bucket.offsets[p])
        if piece.core is None:
            piece.core = self._make_core(piece, data, gradients)
        elif (data, gradients) != piece.addresses:
            piece.core.set_parameters(data, gradients)
        piece.addresses = (data, gradients)
        is_finite = self._step(piece.core)
        for p in piece.members:
            bucket = self._bucket_of[p]
            bucket.left -= 1
            if bucket.left > 0:
                continue
            if not is_finite:
                bucket.mean.fill_(math.nan)
            elif self._overlaps or self._cells[0] != 1.0:
                bucket.mean.mul_(self._cells[0])
            bucket.result.set_result(bucket.mean.to(bucket.dtype))

    def _unit_now(self) -> float:
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
        if not self._has_errors:
            self._unit, self._is_of_scale = 1.0, False
        if not self._is_of_scale:
            # Gradients of this scale are exchanged as they are, because "fp16" has few bits for small ones.
            self._unit, self._is_of_scale = self._unit / scale, True
        return self._unit * scale

    def _set_unit_on_device(self) -> None:
        """Gives cores the unit of the errors, and does not wait for a scale on the device. Once for each backward pass."""
        assert self._ranks is not None
        if not self._has_errors:
            self._has_errors = any(piece.core is not None and piece.core.steps > 0 for piece in self._pieces)
        scale = getattr(self.scaler, "_scale", None)  # of torch.amp.GradScaler, whose get_scale() waits
        if self._has_errors and self._is_of_scale and isinstance(scale, torch.Tensor) and scale.device == self._device:
            torch.mul(scale.reshape(1), self._unit, out=self._cells[:1])
        else:
            self._cells[0] = self._unit_now()

    def _step(self, core: _native.Optimizer) -> bool:
        """Exchanges the gradients of a piece. False if one of any rank is not finite: then nothing has changed. On a GPU it is always
        true, because to know it would wait."""
        if self._overlaps:
            if sum(piece.missing < 0 for piece in self._pieces) == 1:
                self._set_unit_on_device()
            self._cells[1] = 0.0  # cores set it for gradients that are not finite
            self._take_step(core)
            return True
        if not self._has_errors:
            self._has_errors = core.steps > 0
        unit = self._unit_now()
        if self.scaler is not None or self._size == 1 or self._arguments["compressor"] == "none":
            return self._try_step(core, unit)
        assert self._ranks is not None
        norm = math.hypot(*(float(torch.linalg.vector_norm(bucket.values)) for bucket in self._buckets))
        of_smallest, of_median = self._norms.compare(norm / unit)
        # Ranks must decide together, but a collective for it in each step would be slow. So rank 0 makes all ranks skip this step,
        # and they compare what they have found. If rank 0 has not seen a fall, not all ranks have.
        is_alarm = self._rank == 0 and 0.0 < of_smallest <= _FALL
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
        self._take_step(core)
        return bool(core.skipped_steps == skipped)

    def _take_step(self, core: _native.Optimizer) -> None:
        try:
            core.step([self._unit])  # ranks compare it, as they compare learning rates
        except RuntimeError as error:
            if "learning rate" not in str(error):
                raise
            raise RuntimeError(
                "slamb: ranks differ in the unit of their compression errors; call rescale() on all ranks with the same factor, "
                "load states of the same step, and begin with the same loss scale"
            ) from error

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

    def _make_core(self, piece: "_Piece", data: Sequence[int], gradients: Sequence[int]) -> _native.Optimizer:
        assert self._ranks is not None
        module = module_for(self._device.type)
        core: _native.Optimizer = module.Optimizer(
            "mean",
            self._arguments["compressor"],
            "float32",
            [module.Tensor(p.numel(), "float32", p.dim(), 0.0, 0, True, True) for p in piece.members],
            data,
            gradients,
            [0] * len(piece.members),
            self._arguments["settings"],
            self._arguments["threads"] or torch.get_num_threads(),
            0,
            self._ranks.own if self._size > 1 else None,
            None,
            0 if self._stream is None else self._stream.cuda_stream,
        )
        core.set_gradient_scaling(self._cells.data_ptr(), self._cells.data_ptr() + self._cells.element_size())
        if self._loaded is not None and self._loaded["ranks"]:
            self._load(self._loaded, self._pieces.index(piece), core)
        return core

    def _load_all(self, state_dict: dict[str, Any]) -> None:
        """Continues with the errors of all pieces, or changes none."""
        if list(state_dict["sizes"]) != self._sizes:
            raise self._errors_of_another_model()
        pieces = [(piece.core, self._state_of(state_dict, number)) for number, piece in enumerate(self._pieces)]
        before = [_saved(core) for core in self._cores()]
        try:
            for core, state in pieces:
                assert core is not None
                core.load_state(state.data_ptr(), state.numel(), False)
        except BaseException:
            for (core, _), state in zip(pieces, before):
                assert core is not None
                core.load_state(state.data_ptr(), state.numel(), False)
            raise

    def _load(self, state_dict: dict[str, Any], number: int, into: _native.Optimizer) -> None:
        """Continues with the errors of piece `number`, in the first step."""
        if list(state_dict["sizes"])[: len(self._sizes)] != self._sizes:
            raise self._errors_of_another_model()
        state = self._state_of(state_dict, number)
        into.load_state(state.data_ptr(), state.numel(), False)

    def _state_of(self, state_dict: dict[str, Any], number: int) -> torch.Tensor:
        """The bytes of piece `number`."""
        state = state_dict["ranks"][self._key()]
        if isinstance(state, list) != self._overlaps:
            kinds = ("in pieces, over NCCL", "all together")
            was, now = kinds if isinstance(state, list) else reversed(kinds)
            raise ValueError(
                f"slamb: load_state_dict() was given errors of gradients that were sent {was}, but these are sent {now}; begin without "
                f"errors"
            )
        if isinstance(state, list):
            if number >= len(state):
                raise self._errors_of_another_model()
            state = state[number]
        if state.dtype != torch.uint8:
            raise ValueError(f"slamb: load_state_dict() was given errors of type {state.dtype}, not torch.uint8")
        return state.detach().to("cpu").contiguous()

    @staticmethod
    def _errors_of_another_model() -> ValueError:
        return ValueError(
            "slamb: load_state_dict() was given errors of another model, or of one whose buckets are cut otherwise; load them "
            "with the same model and the same bucket_cap_mb"
        )


def _saved(core: _native.Optimizer) -> torch.Tensor:
    state = torch.empty(core.state_bytes(False), dtype=torch.uint8, device="cpu")
    core.save_state(state.data_ptr(), state.numel(), False)
    return state


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


class _Piece:
    """Parameters whose gradients are exchanged together."""

    def __init__(self, members: list[torch.Tensor]) -> None:
        self.members = members
        self.core: Optional[_native.Optimizer] = None
        self.addresses: tuple[list[int], list[int]] = ([], [])  # that it knows
        self.missing = 0  # gradients of this step; -1: it has been exchanged


class _Bucket:
    """The gradients of a bucket as floats, and the place of their mean."""

    def __init__(self, given: dist.GradBucket, number: int) -> None:  # type: ignore[name-defined]
        buffer = given.buffer()
        self.number = number
        self.dtype = buffer.dtype
        self.parameters = given.parameters()
        places = (g.data_ptr() - buffer.data_ptr() for g in given.gradients())
        self.offsets = {p: at // buffer.element_size() for p, at in zip(self.parameters, places)}
        self.left = len(self.parameters)  # whose mean is not there yet
        self.values = buffer.to(torch.float32)
        self.mean = self.values  # another tensor
        devices = [buffer.device] if buffer.device.type == "cuda" else None
        self.result: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
