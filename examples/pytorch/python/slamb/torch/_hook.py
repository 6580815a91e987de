"""A communication hook of DistributedDataParallel that compresses gradients."""
# Without `from __future__ import annotations`: DistributedDataParallel compares the annotations of hooks with types.

from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist

from slamb import _native
from slamb.torch import _arguments as check
from slamb.torch._arguments import Setting
from slamb.torch._ranks import Ranks, group_of


def compression_hook(
    compressor: str,
    process_group: Optional["dist.ProcessGroup"] = None,
    threads: Optional[int] = None,
    **settings: Setting,
) -> "CompressionHook":
    """A hook for `DistributedDataParallel.register_comm_hook`, by which any optimizer gets compressed gradients.

        hook = slamb.torch.compression_hook("int8")
        model.register_comm_hook(None, hook)

    Each step sends the gradients of all buckets together, when the last is ready. Ranks keep the compression errors and add them
    to the next gradients. They belong in checkpoints: `hook.state_dict()` of every rank, and `hook.load_state_dict()` before
    the first step. If a gradient of any rank is not finite, all ranks get gradients of NaN, and the errors do not change.

    :param compressor: "sign", "four_levels", "int8", "int4", "natural", "bf16", "fp16", "random_k", "top_k", "random_k+int8",
        "random_k+int4" or "none"
    :param process_group: that of the model; None: the default group
    :param threads: None: torch.get_num_threads()
    :param settings: of the compressor: k, block and seed of random_k, k of top_k, seed and quantizer_block of int8 and int4,
        quantizer_block of four_levels, seed of natural, scales ("fused" or "per_tensor") of sign
    :raises ValueError: for a wrong argument
    """
    return CompressionHook(compressor, process_group, threads, **settings)


class CompressionHook:
    """See `compression_hook`."""

    def __init__(
        self,
        compressor: str,
        process_group: Optional["dist.ProcessGroup"] = None,
        threads: Optional[int] = None,
        **settings: Setting,
    ) -> None:
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
        _native.Optimizer("mean", compressor, "float32", [], [], [], [], self._arguments["settings"], 1, 0, None, 0)  # checks them now

    def __call__(
        self, state: Any, bucket: dist.GradBucket  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._buckets = []  # a backward pass that has failed may have left some
        self._buckets.append(_Bucket(bucket))
        mean = self._buckets[-1].mean
        if bucket.is_last():
            self._exchange()
        return mean

    def state_dict(self) -> dict[str, Any]:
        """The compression errors of this rank."""
        if self._core is None:
            return dict(self._loaded) if self._loaded is not None else {"sizes": [], "ranks": {}}
        state = torch.empty(self._core.state_bytes(False), dtype=torch.uint8, device="cpu")
        self._core.save_state(state.data_ptr(), state.numel(), False)
        return {"sizes": list(self._sizes), "ranks": {self._key(): state}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues with these errors.

        :raises ValueError: if they are of another rank or of another model; nothing has changed then
        """
        if state_dict["ranks"] and self._key() not in state_dict["ranks"]:
            raise ValueError(
                f"slamb: load_state_dict() was given the errors of {' and '.join(state_dict['ranks'])}, but this is "
                f"{self._key()}; save a state on every rank, and load each rank's own"
            )
        if self._core is None or not state_dict["ranks"]:
            self._loaded, self._core = dict(state_dict), None
            return
        self._load(state_dict, self._core)

    def statistics(self) -> dict[str, Any]:
        """Steps and traffic of this rank so far, and the norms of its compression errors: see `Optimizer.statistics`."""
        counts = ("step", "skipped_steps", "local_skips", "collectives", "payload_bytes", "sent_bytes")
        if self._core is None:
            return {**dict.fromkeys(counts, 0), "worker_error_norms": []}
        now = self._core.statistics(True)
        return {name: now[name] for name in (*counts, "worker_error_norms")}

    def __getstate__(self) -> dict[str, Any]:
        return {"_arguments": self._arguments, "_loaded": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arguments = state["_arguments"]
        self.__init__(arguments["compressor"], None, arguments["threads"], **arguments["settings"])  # type: ignore[misc]
        self.load_state_dict(state["_loaded"])

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
        skipped = self._core.skipped_steps
        self._core.step([1.0])
        is_finite = self._core.skipped_steps == skipped
        for number, bucket in enumerate(buckets):
            mean = self._means[number]
            if not is_finite:
                mean.fill_(float("nan"))
            bucket.mean.set_result(mean.to(bucket.dtype))

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
