"""The optimizers of all ranks: the library of many_ranks.cpp, called through ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Optional

import torch

_POINTER, _TEXT = ctypes.c_void_p, ctypes.c_char_p


class RanksError(Exception):
    """The library's text says what is wrong."""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("parameters", _POINTER),
        ("gradients", _POINTER),
        ("size", ctypes.c_uint64),
        ("weight_decay", ctypes.c_double),
        ("dimensions", ctypes.c_int),
        ("adapt", ctypes.c_int),
    ]


def load(file: Path) -> ctypes.CDLL:
    """
    :raises RanksError: if it is not there
    """
    try:
        library = ctypes.CDLL(str(file.resolve()))
    except OSError as error:
        raise RanksError(f"{file} cannot be loaded: {error}; examples/many_ranks/README.md says how to build it") from None
    library.many_ranks_error.argtypes, library.many_ranks_error.restype = [], _TEXT
    library.many_ranks_device.argtypes, library.many_ranks_device.restype = [], _TEXT
    of_new = [_TEXT, _TEXT, ctypes.c_int, ctypes.POINTER(_Tensor), ctypes.c_int]
    library.many_ranks_new.argtypes, library.many_ranks_new.restype = of_new, _POINTER
    library.many_ranks_step.argtypes, library.many_ranks_step.restype = [_POINTER, ctypes.c_double], ctypes.c_int
    library.many_ranks_sent_bytes.argtypes, library.many_ranks_sent_bytes.restype = [_POINTER], ctypes.c_int64
    library.many_ranks_free.argtypes, library.many_ranks_free.restype = [_POINTER], None
    return library


class Ranks:
    """An optimizer for each rank, in a thread of its own. To be used as a context, whose end ends the threads."""

    def __init__(
        self,
        library: ctypes.CDLL,
        optimizer: str,
        options: str,
        parameters: list[torch.Tensor],
        weight_decay: float,
        adapts_vectors: bool = False,
    ) -> None:
        """
        :param optimizer: its name in optimizers.cpp
        :param options: as "warm_up_steps=20 update_bound=off"
        :param parameters: float32, each ranks × the shape of one rank's, with a gradient, on the library's device
        :param weight_decay: of matrices; vectors do not decay
        :param adapts_vectors: False: their trust ratio is 1
        :raises RanksError: for a wrong name, option or number of ranks
        """
        for p in parameters:
            assert p.grad is not None and p.dtype == p.grad.dtype == torch.float32, "a tensor without gradient, or of another type"
            assert p.is_contiguous() and p.grad.is_contiguous(), "a tensor whose elements are not in order"
        self._library = library
        self._handle: Optional[int] = None
        self._held = [(p, p.grad) for p in parameters]  # whose memory the library has
        tensors = (_Tensor * len(parameters))()
        for tensor, p in zip(tensors, parameters):
            is_matrix = p.dim() > 2
            decay = weight_decay if is_matrix else 0.0
            tensor.parameters, tensor.gradients, tensor.size = p.data_ptr(), p.grad.data_ptr(), p[0].numel()
            tensor.weight_decay, tensor.dimensions, tensor.adapt = decay, p.dim() - 1, is_matrix or adapts_vectors
        ranks = len(parameters[0])
        self._handle = library.many_ranks_new(optimizer.encode(), options.encode(), ranks, tensors, len(tensors))
        self._require(self._handle is not None)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self._library.many_ranks_free(self._handle)
        self._handle = None

    def step(self, lr: float) -> None:
        """Every rank updates its parameters by its gradients.

        :raises RanksError: if a rank has failed; the others have ended then
        """
        assert all(p.grad is gradient for p, gradient in self._held), "a gradient that has moved"
        self._require(self._library.many_ranks_step(self._handle, lr) == 0)

    def sent_bytes(self) -> int:
        """By rank 0, as a bandwidth-optimal collective sends them."""
        sent = self._library.many_ranks_sent_bytes(self._handle)
        self._require(sent >= 0)
        return sent

    def _require(self, has_succeeded: bool) -> None:
        if not has_succeeded:
            raise RanksError(self._library.many_ranks_error().decode())
