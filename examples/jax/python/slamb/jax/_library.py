"""The compiled library: its functions for XLA, and the sizes of the arrays that they take."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import jax

TARGETS = ("slamb_encode", "slamb_average", "slamb_update", "slamb_update_dense")


class Sizes(NamedTuple):
    """Elements of the arrays of one rank."""

    state: int  # floats of m, of v and of the worker error: tensors begin at multiples of 16
    mean: int  # floats of the mean gradient; 0 if it is not received
    message: int  # bytes of a message
    codes: int  # floats of the server error
    dense: int  # floats of tensors that are always exchanged as floats
    fresh: int  # floats of the fresh variance
    ratios: int  # floats of trust ratios and signal scales



def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(__file__).with_name("libslamb_jax.so")))
    library.slamb_jax_sizes.restype = ctypes.c_char_p
    library.slamb_jax_sizes.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)]
    for target in TARGETS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return library


_library = _load()


def sizes_of(settings: str) -> Sizes:
    """
    :param settings: as src/settings.hpp reads them
    :raises ValueError: names the option that is out of range
    """
    sizes = (ctypes.c_int64 * len(Sizes._fields))()
    message = _library.slamb_jax_sizes(settings.encode(), sizes)
    if message is not None:
        raise ValueError(message.decode())
    return Sizes(*sizes)
