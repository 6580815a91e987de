"""The ranks of process groups of torch.distributed, as the compiled module calls them."""

from __future__ import annotations

import atexit
import collections
import ctypes
import pickle
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist

if dist.is_available():
    # Its functions have the default group as default arguments, evaluated at its import. torch.optim imports it when the first
    # optimizer is constructed, usually after init_process_group(). The group would then outlive destroy_process_group(), and with
    # it its threads, which can abort the process at its end.
    import torch.distributed.nn  # noqa: F401


def is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def group_of(process_group: Optional["dist.ProcessGroup"]) -> Optional["dist.ProcessGroup"]:
    """The given group, else the default group, else None: a single process.

    :raises ValueError: if this process is not in the given group
    """
    if not is_initialized():
        if process_group is not None:
            raise ValueError(
                "slamb: process_group was given, but torch.distributed is not initialized; call "
                "torch.distributed.init_process_group() first"
            )
        return None
    group = dist.group.WORLD if process_group is None else process_group
    if dist.get_rank(group) < 0:
        raise ValueError(
            "slamb: this process is not in process_group; construct the optimizer with a group that has this process"
        )
    return group


def ranks_of(group: Any) -> list[int]:
    """The ranks of a group, as the default group counts them."""
    return [int(dist.distributed_c10d.get_global_rank(group, one)) for one in range(dist.get_world_size(group))]


class Ranks:
    """The collectives that an optimizer calls, over a process group.

    Memoryviews are of memory of the host that is the optimizer's own, so nothing is copied here. For parameters on a GPU the
    optimizer calls NCCL itself if the group has it. With another backend, such as Gloo, it copies payloads to the host and back.

    :param device: of the parameters
    :raises ValueError: if the group has no backend for it
    """

    def __init__(self, group: "dist.ProcessGroup", device: torch.device) -> None:
        # The group is torch's. Its threads end when destroy_process_group() drops the last reference, so none is kept here.
        self._reference = weakref.ref(group)
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        #: True if collectives of memory of the GPU are those of NCCL.
        self.has_nccl = device.type == "cuda" and _is_nccl(_backend_of(group, device), group)
        self._device = device if self.has_nccl else torch.device("cpu")
        if self.size > 1 and not self.has_nccl and not _reaches_the_host(_backend_of(group, self._device), group):
            raise ValueError(
                f"slamb: the process group has the backend {dist.get_backend(group)}, which cannot reach parameters on {device}; "
                f"initialize it with init_process_group('gloo'), or with 'cpu:gloo,cuda:nccl'"
            )

    @property
    def group(self) -> "dist.ProcessGroup":
        """:raises RuntimeError: if it has been destroyed"""
        group = self._reference()
        if group is None:
            raise _destroyed()
        return group

    def require_alive(self) -> None:
        """For calls of NCCL, which crash after the end of its communicator.

        :raises RuntimeError: if the group has been destroyed, even if something else still holds it
        """
        try:
            dist.get_backend(self.group)
        except Exception as error:
            raise _destroyed() from error

    @property
    def own(self) -> Any:
        """The ranks as the compiled module takes them. Collective."""
        return self._nccl_address() if self.has_nccl else self

    def all_reduce_sum(self, values: memoryview) -> None:
        _wait(dist.all_reduce(torch.frombuffer(values, dtype=torch.float32), group=self.group, async_op=True))

    def broadcast(self, values: memoryview, root: int) -> None:
        _wait(dist.broadcast(_bytes(values), src=self._global_rank(root), group=self.group, async_op=True))

    def all_gather(self, mine: memoryview, everything: memoryview) -> None:
        parts = list(_bytes(everything).chunk(self.size))
        _wait(dist.all_gather(parts, _bytes(mine), group=self.group, async_op=True))

    def all_to_all(self, send: memoryview, receive: memoryview) -> None:
        _wait(dist.all_to_all_single(_bytes(receive), _bytes(send), group=self.group, async_op=True))

    def _nccl_address(self) -> int:
        """The address of the group's ncclComm_t.

        :raises RuntimeError: if there is none
        """
        # torch makes it at the first collective.
        _wait(dist.all_reduce(torch.zeros(1, device=self._device), group=self.group, async_op=True))
        find = getattr(_backend_of(self.group, self._device), "_comm_ptr", None)
        if find is None or not find():
            raise RuntimeError(
                f"slamb: the process group has no NCCL communicator for {self._device}; initialize it with the backend nccl, by a "
                f"torch whose ProcessGroupNCCL has _comm_ptr()"
            )
        return int(find())

    def gather_values(self, value: Any) -> list[Any]:
        """Every rank's value, which can be pickled."""
        mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        return [pickle.loads(one.numpy().tobytes()) for one in self._all_gather_bytes(mine)]

    def gather_words(self, word: int) -> list[int]:
        """Every rank's word of 63 bits."""
        all_words = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
        own = torch.tensor([word], dtype=torch.int64, device=self._device)
        _wait(dist.all_gather(all_words, own, group=self.group, async_op=True))
        return [int(one) for one in all_words]

    def largest(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, one by one."""
        found = torch.tensor(values, dtype=torch.float64, device=self._device)
        _wait(dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group, async_op=True))
        return [float(one) for one in found]

    def gather_bytes(self, mine: torch.Tensor, to: int) -> Optional[list[torch.Tensor]]:
        """Every rank's tensor of bytes at rank `to`; None at the others. Their sizes may differ."""
        sizes, padded = self._padded(mine)
        received = [torch.empty_like(padded) for _ in sizes] if self.rank == to else None
        _wait(dist.gather(padded, received, dst=self._global_rank(to), group=self.group, async_op=True))
        if received is None:
            _release(padded)
            return None
        all_of_them = [one[:size].to("cpu", copy=True) for one, size in zip(received, sizes)]
        _release(padded, *received)
        return all_of_them

    def _all_gather_bytes(self, mine: torch.Tensor) -> list[torch.Tensor]:
        sizes, padded = self._padded(mine)
        received = [torch.empty_like(padded) for _ in sizes]
        _wait(dist.all_gather(received, padded, group=self.group, async_op=True))
        return [one[:size].cpu() for one, size in zip(received, sizes)]

    def _padded(self, mine: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """The sizes of all ranks' tensors, and this one with as many bytes as the largest."""
        sizes = self.gather_words(mine.numel())
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=self._device)
        padded[: mine.numel()] = mine
        return sizes, padded

    def _global_rank(self, rank: int) -> int:
        return int(dist.distributed_c10d.get_global_rank(self.group, rank))


class AllRanks:
    """The ranks of an optimizer: those that exchange with this one, and those that hold the model together with it.

    :param exchange: None: this rank exchanges nothing
    :param shards: None: this rank holds all of the model
    """

    def __init__(self, exchange: Optional[Ranks], shards: Optional[Ranks]) -> None:
        self.exchange = exchange
        self.shards = shards
        self._all = [one for one in (exchange, shards) if one is not None]
        #: True if there is no other rank.
        self.is_alone = not self._all
        #: True if a collective goes by way of the host.
        self.has_host = any(not one.has_nccl for one in self._all)

    @property
    def key(self) -> str:
        """Names this rank's state."""
        return self.key_of(0 if self.exchange is None else self.exchange.rank, 0 if self.shards is None else self.shards.rank)

    @property
    def number_of_shards(self) -> int:
        return 1 if self.shards is None else self.shards.size

    @property
    def shard_name(self) -> str:
        """The end of the names of ranks with the same shard."""
        return "" if self.shards is None else f"_shard{self.shards.rank}_of_{self.shards.size}"

    def key_of(self, rank: int, shard: int) -> str:
        key = f"rank{rank}_of_{1 if self.exchange is None else self.exchange.size}"
        return key if self.shards is None else f"{key}_shard{shard}_of_{self.shards.size}"

    def has_this_shard(self, key: str) -> bool:
        """True if a state of this name is that of a rank with the same shard."""
        return "".join(key.partition("_shard")[1:]) == self.shard_name

    def require_alive(self) -> None:
        """
        :raises RuntimeError: if one of them is reached by NCCL, and its group has been destroyed
        """
        for one in self._all:
            if one.has_nccl:
                one.require_alive()

    def require_equal(self, settings: dict[str, Any]) -> None:
        """Compares settings. Collective.

        :raises RuntimeError: on every rank, if they differ
        """
        by_rank = [settings] if self.exchange is None else self.exchange.gather_values(settings)
        by_shard = [by_rank] if self.shards is None else self.shards.gather_values(by_rank)
        first = by_shard[0][0]
        for shard, of_shard in enumerate(by_shard):
            if len(of_shard) != len(by_rank):
                raise RuntimeError(
                    f"slamb: ranks that hold a model together differ in the number of its replicas: {len(by_rank)} here, "
                    f"{len(of_shard)} on shard {shard}; pass process_group=, the group of the ranks with the same shard, on all ranks, or "
                    f"exchange=False on all"
                )
        for shard, of_shard in enumerate(by_shard):
            for rank, other in enumerate(of_shard):
                for name, value in first.items():
                    if other.get(name) != value:
                        one, another = ("", "") if self.shards is None else (" of shard 0", f" of shard {shard}")
                        raise RuntimeError(
                            f"slamb: ranks differ in {name}: {value!r} on rank 0{one}, {other.get(name)!r} on rank {rank}{another}; "
                            f"construct the optimizer with the same arguments on all ranks"
                        )

    def largest_of_shards(self, values: list[int]) -> list[int]:
        """The largest of the values of all ranks that hold the model together, one by one. Collective with a shard group."""
        return values if self.shards is None else [int(one) for one in self.shards.largest([float(one) for one in values])]

    def require_equal_scaling(self, loss_scale: Optional[torch.Tensor], found_inf: Optional[torch.Tensor]) -> None:
        """Compares what ranks that hold a model together know from a GradScaler. Collective with a shard group.

        :raises RuntimeError: on every rank, if they differ
        """
        if self.shards is None or (loss_scale is None and found_inf is None):
            return
        scale = 1.0 if loss_scale is None else float(loss_scale)
        overflow = 0.0 if found_inf is None or float(found_inf) == 0.0 else 1.0
        largest = self.shards.largest([scale, -scale, overflow, -overflow])
        differs = [float(largest[0] != -largest[1]), float(largest[2] != -largest[3])]
        if self.exchange is not None:
            differs = self.exchange.largest(differs)
        if any(differs):
            what = "have different loss scales" if differs[0] else "have found an overflow on some of them alone"
            raise RuntimeError(
                f"slamb: the ranks that hold a model together {what}. They add up their gradients, so their scalers must agree: use "
                f"torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler on all ranks, and call scaler.unscale_(optimizer) before "
                f"scaler.step(optimizer)"
            )

    def raise_on_all(self, failure: Optional[Exception], call: str) -> None:
        """Raises this rank's failure; and if another rank has one, an error that says so. Collective.

        :raises ValueError: for the failure of another rank
        """
        reason = self.first_of(None if failure is None else str(failure))
        if failure is not None:
            raise failure
        if reason is not None:
            raise ValueError(f"slamb: {call} has failed on another rank, so nothing has changed on this one. The other says: {reason}")

    def first_of(self, value: Any) -> Any:
        """The first rank's value that is not None. Collective."""
        values = [value]
        for one in self._all:
            values = [each for of_rank in one.gather_values(values) for each in of_rank]
        return next((each for each in values if each is not None), None)

    def gather_states(self, mine: dict[str, torch.Tensor], to: int) -> dict[str, torch.Tensor]:
        """The tensors of all ranks at rank `to` of the first shard; nothing at the others. Collective.

        :param mine: under this rank's key one of bytes, and small ones that the ranks with the same shard have too
        """
        own = self.key
        small = {name: one for name, one in mine.items() if name != own}
        by_rank = [mine[own]] if self.exchange is None else self.exchange.gather_bytes(mine[own], to)
        if by_rank is None:
            return {}
        if self.shards is None:
            return {**small, **{self.key_of(rank, 0): one for rank, one in enumerate(by_rank)}}
        found: dict[str, torch.Tensor] = {}
        for of_shard in self.shards.gather_values(small):
            found.update(of_shard)
        for rank, one in enumerate(by_rank):
            by_shard = self.shards.gather_bytes(one, 0)
            found.update((self.key_of(rank, shard), state) for shard, state in enumerate(by_shard or []))
        return found if self.shards.rank == 0 else {}


def _destroyed() -> RuntimeError:
    return RuntimeError(
        "slamb: the process group has been destroyed; call torch.distributed.destroy_process_group() after the last step"
    )


def _backend_of(group: Any, device: torch.device) -> Any:
    """Its backend for tensors on a device; None if it has none. Before torch 2.0 a group is its backend."""
    find = getattr(group, "_get_backend", None)
    if find is None:
        return group
    try:
        backend = find(device)
    except RuntimeError:
        return None
    return getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL


def _is_nccl(backend: Any, group: Any) -> bool:
    if backend is group:
        return bool(dist.get_backend(group) == "nccl")
    return "NCCL" in type(backend).__name__ or hasattr(backend, "_comm_ptr")


def _reaches_the_host(backend: Any, group: Any) -> bool:
    return backend is not None and not _is_nccl(backend, group)


def _bytes(view: memoryview) -> torch.Tensor:
    return torch.frombuffer(view, dtype=torch.uint8)


# A thread of Gloo lets go of a collective's tensors a little after it has announced the collective's end. To release a tensor that
# Python knows, it takes the interpreter's lock; if Python ends meanwhile, the process aborts. So the last collectives are kept, and
# a thread is never the one that releases their tensors.
_last: "collections.deque[Any]" = collections.deque(maxlen=8)


def _wait(work: Any) -> None:
    work.wait()
    _last.append(work)


def _release(*tensors: torch.Tensor) -> None:
    """Releases the memory of large tensors of a collective, which is kept."""
    for tensor in tensors:
        tensor.data = tensor.new_empty(0)


@atexit.register
def _keep_for_ever() -> None:
    for work in _last:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))
