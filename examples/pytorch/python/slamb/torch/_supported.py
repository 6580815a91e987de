"""Asks what can be constructed, without a model."""

from __future__ import annotations

from typing import Any, Union

import torch

from slamb.torch._optimizer import Optimizer


def is_supported(
    optimizer: type[Optimizer], device: Union[str, torch.device] = "cpu", dtype: torch.dtype = torch.float32, **arguments: Any
) -> bool:
    """True if this process can construct an optimizer with these arguments for parameters of this type on this device.

        slamb.torch.is_supported(slamb.torch.Slamb, "cuda", compressor="top_k", moments="8-bit")

    Exchanges nothing with other ranks, and takes a moment. The constructor itself says in its ValueError what would be right.

    :param optimizer: a class of slamb.torch
    :param arguments: those of the constructor, without params, process_group and shard_group
    :raises TypeError: if it is no such class, or has no such argument
    """
    if not (isinstance(optimizer, type) and issubclass(optimizer, Optimizer) and optimizer is not Optimizer):
        raise TypeError(f"slamb: is_supported() needs a class of slamb.torch, such as slamb.torch.Lamb, not {optimizer!r}")

    class Alone(optimizer):  # type: ignore[misc, valid-type]
        def _attach(self, process_group: Any, shard_group: Any) -> None:
            self._arguments["exchange"] = False
            super()._attach(None, None)

    where = torch.device(device)
    try:
        p = torch.zeros(1, dtype=dtype, device=where, requires_grad=True)
    except (RuntimeError, AssertionError, NotImplementedError):  # of a torch or a machine without such a device
        return False
    try:
        Alone([p], **arguments)
    except ValueError as error:
        if "has no setting" in str(error):
            raise TypeError(str(error)) from error
        return False
    return True
