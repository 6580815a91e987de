"""The ranks of a process group of torch.distributed, as the compiled module calls them."""

from __future__ import annotations

import atexit
import collections
import ctypes
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist


def group_of(process_group: Optional["dist.ProcessGroup"]) -> Optional["dist.ProcessGroup"]:
    """The given group, else the default group, else None: a single process.

    :raises ValueError: if this process is not in the given group
    """
    if not dist.is_available() or not dist.is_initialized():
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


class Ranks:
    """The collectives that an optimizer calls, over a process group with a backend for tensors in host memory.

    Memoryviews are of the optimizer's own memory, so nothing is copied here. On a GPU the optimizer calls NCCL itself.

    :param device: of the parameters
    """

    def __init__(self, group: "dist.ProcessGroup", device: torch.device) -> None:
        self._group = group
        self._device = device
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self._last: collections.deque[torch.Tensor] = collections.deque(maxlen=64 + 4 * self.size)
        _living.add(self)

    def all_reduce_sum(self, values: memoryview) -> None:
        dist.all_reduce(self._kept(torch.frombuffer(values, dtype=torch.float32)), group=self._group)

    def broadcast(self, values: memoryview, root: int) -> None:
        source = dist.distributed_c10d.get_global_rank(self._group, root)
        dist.broadcast(self._kept(_bytes(values)), src=source, group=self._group)

    def all_gather(self, mine: memoryview, everything: memoryview) -> None:
        parts = [self._kept(part) for part in self._kept(_bytes(everything)).chunk(self.size)]
        dist.all_gather(parts, self._kept(_bytes(mine)), group=self._group)

    def all_to_all(self, send: memoryview, receive: memoryview) -> None:
        dist.all_to_all_single(self._kept(_bytes(receive)), self._kept(_bytes(send)), group=self._group)

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keeps the tensor for a while. A thread of the backend, if it were the last to let go of it, would need the interpreter's
        lock, and end the process if Python has ended."""
        self._last.append(tensor)
        return tensor

    def nccl_address(self) -> int:
        """The address of the group's ncclComm_t. Collective.

        :raises RuntimeError: if there is none
        """
        dist.all_reduce(self._kept(torch.zeros(1, device=self._device)), group=self._group)  # torch makes it at the first collective
        find = getattr(self._group._get_backend(self._device), "_comm_ptr", None)
        if find is None or not find():
            raise RuntimeError(
                f"slamb: the process group has no NCCL communicator for {self._device}; initialize it with the backend nccl, by a "
                f"torch whose ProcessGroupNCCL has _comm_ptr()"
            )
        return int(find())

    def require_equal(self, settings: dict[str, Any]) -> None:
        """Compares settings. Collective.

        :raises RuntimeError: on every rank, if they differ
        """
        everything: list[Any] = [None] * self.size
        dist.all_gather_object(everything, settings, group=self._group)
        for rank, other in enumerate(everything):
            for name, value in everything[0].items():
                if other.get(name) != value:
                    raise RuntimeError(
                        f"slamb: ranks differ in {name}: {value!r} on rank 0, {other.get(name)!r} on rank {rank}; construct the "
                        f"optimizer with the same arguments on all ranks"
                    )

    def gather_words(self, word: int) -> list[int]:
        """Every rank's word of 63 bits."""
        all_words = [self._kept(torch.zeros(1, dtype=torch.int64, device=self._device)) for _ in range(self.size)]
        own = self._kept(torch.tensor([word], dtype=torch.int64, device=self._device))
        dist.all_gather(all_words, own, group=self._group)
        return [int(one) for one in all_words]

    def gather_bytes(self, mine: torch.Tensor, to: int) -> Optional[list[torch.Tensor]]:
        """Every rank's tensor of bytes at rank `to`; None at the others. Their sizes may differ."""
        sizes = self.gather_words(mine.numel())
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=self._device)
        padded[: mine.numel()] = mine
        received = [torch.empty_like(padded) for _ in sizes] if self.rank == to else None
        for tensor in (padded, *(received or [])):
            self._kept(tensor)
        dist.gather(padded, received, dst=dist.distributed_c10d.get_global_rank(self._group, to), group=self._group)
        return None if received is None else [one[:size].to("cpu", copy=True) for one, size in zip(received, sizes)]


def _bytes(view: memoryview) -> torch.Tensor:
    return torch.frombuffer(view, dtype=torch.uint8)


# A process group that an object still holds when Python has ended makes torch end the process by a signal.
_living: "weakref.WeakSet[Ranks]" = weakref.WeakSet()


@atexit.register
def _release_groups() -> None:
    for ranks in list(_living):
        for tensor in ranks._last:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))  # lives on, for a thread may still hold it
        del ranks._group
