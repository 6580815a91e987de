"""Parameters and gradients as addresses, which are found anew at each step, because frameworks move tensors."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Optional

import torch


def _find_increment_version() -> Optional[Callable[[Sequence[torch.Tensor]], None]]:
    """Tells autograd that tensors have changed, so that a backward pass through their older values is an error, as with torch's
    own optimizers. None if this torch has no such function for several tensors."""
    increment = getattr(torch.autograd.graph, "increment_version", None)
    try:
        if increment is not None:
            increment([torch.zeros(1)])
    except TypeError:
        return None
    return increment


_increment_version = _find_increment_version()

_gradient_of = operator.attrgetter("grad")
_type_of = operator.attrgetter("dtype")
_address_of = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous

_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill a piece of memory without gaps, in any order of dimensions, as in channels_last."""
    if tensor.numel() == 0:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def type_name(number: int, tensor: torch.Tensor) -> str:
    """The name of a parameter's type.

    :raises ValueError: names what is not supported
    """
    if tensor.layout != torch.strided:
        raise ValueError(f"slamb: parameter {number} has layout {tensor.layout}, but it must be dense (torch.strided)")
    name = _TYPES.get(tensor.dtype)
    if name is None:
        raise ValueError(
            f"slamb: parameter {number} has type {tensor.dtype}, but it must be torch.float32, torch.bfloat16 or "
            f"torch.float16"
        )
    return name


class Tensors:
    """The parameters of an optimizer, and where they and their gradients are.

    The optimizer works in the memory of a parameter that fills it without gaps, and of a gradient that lies as its parameter
    does. Others are copied for each step.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], keeps_masters: bool) -> None:
        self.parameters = list(parameters)
        self.device = self.parameters[0].device
        for i, p in enumerate(self.parameters):
            if p.device != self.device:
                raise ValueError(
                    f"slamb: parameter {i} is on {p.device}, but parameter 0 is on {self.device}; all must be on one device"
                )
        self.types = [type_name(i, p) for i, p in enumerate(self.parameters)]
        # Float copies of parameters of 16 bits, which steps read and update.
        self.masters: dict[int, torch.Tensor] = {}
        self._versions: dict[int, int] = {}  # of parameters with a master, as this optimizer has left them
        self._shadows: dict[int, torch.Tensor] = {}  # contiguous copies of parameters with gaps
        self._staged: dict[int, torch.Tensor] = {}  # copies of gradients
        self._dtypes = [p.dtype for p in self.parameters]
        self._are_all_plain = False
        self._find_layouts()
        if keeps_masters:
            for i, p in enumerate(self.parameters):
                if p.dtype != torch.float32:
                    self.masters[i] = self._stored(i).to(torch.float32)
                    self._versions[i] = p._version
        self.data = self._addresses()
        self.gradients = self.gradient_addresses()

    def master_addresses(self) -> list[int]:
        return [self.masters[i].data_ptr() if i in self.masters else 0 for i in range(len(self.parameters))]

    def has_moved(self) -> bool:
        """Finds the parameters again. True if one has moved since the last call."""
        if not self._shadows and self._addresses() == self.data:
            return False
        for i, (p, type_before) in enumerate(zip(self.parameters, self.types)):
            if p.device != self.device:
                raise ValueError(
                    f"slamb: parameter {i} was on {self.device} when the optimizer was constructed, and is on {p.device} now; "
                    f"construct the optimizer after the model has been moved"
                )
            if type_name(i, p) != type_before:
                raise ValueError(
                    f"slamb: parameter {i} had type {type_before} when the optimizer was constructed, and has {p.dtype} "
                    f"now; construct the optimizer after the model has been converted"
                )
        self._find_layouts()
        before, self.data = self.data, self._addresses()
        return before != self.data

    def have_gradients_moved(self) -> bool:
        """Finds the gradients again. True if one has moved, come or gone since the last call."""
        before, self.gradients = self.gradients, self.gradient_addresses()
        return before != self.gradients

    def gradient_addresses(self) -> list[int]:
        """The addresses of the gradients, 0 for those that do not exist. Copies those that do not lie as their parameters do.

        :raises ValueError: for a gradient that is not dense
        """
        gradients = list(map(_gradient_of, self.parameters))
        if self._are_all_plain:
            # The usual case, in a few passes in C. A gradient that does not exist, or is sparse, has no address.
            with contextlib.suppress(TypeError, RuntimeError):
                addresses = list(map(_address_of, gradients))
                if list(map(_type_of, gradients)) == self._dtypes and all(map(_is_contiguous, gradients)):
                    return addresses
        return [0 if g is None else self._gradient_address(i, g) for i, g in enumerate(gradients)]

    def before_step(self) -> None:
        """Takes over what others have written to parameters that steps do not read in place."""
        for i, shadow in self._shadows.items():
            shadow.copy_(self.parameters[i].detach())
        for i, version in self._versions.items():
            if self.parameters[i]._version != version:
                self._reload_master(i)

    def after_step(self) -> None:
        """Writes to the parameters what steps did not write in place, and tells autograd that all have changed."""
        for i, shadow in self._shadows.items():
            self.parameters[i].detach().copy_(shadow)
        if _increment_version is not None:
            _increment_version(self.parameters)
        for i in self._versions:
            self._versions[i] = self.parameters[i]._version

    def _reload_master(self, i: int) -> None:
        """Where a master copy, rounded, is not the parameter, the copy becomes the parameter."""
        stored, master = self._stored(i), self.masters[i]
        master.copy_(torch.where(master.to(stored.dtype) == stored, master, stored.to(torch.float32)))
        self._versions[i] = self.parameters[i]._version

    def bytes_of_gradients(self) -> list[tuple[int, int]]:
        """The address and the number of bytes of each gradient that exists."""
        return [
            (at, p.numel() * p.element_size()) for at, p in zip(self.gradients, self.parameters) if at and p.numel() > 0
        ]

    def _stored(self, i: int) -> torch.Tensor:
        return self._shadows[i] if i in self._shadows else self.parameters[i].detach()

    def _find_layouts(self) -> None:
        self._are_all_plain = all(p.is_contiguous() for p in self.parameters)
        for i, p in enumerate(self.parameters):
            if is_dense(p):
                self._shadows.pop(i, None)
            elif i not in self._shadows or self._shadows[i].shape != p.shape:
                self._shadows[i] = p.detach().clone(memory_format=torch.contiguous_format)

    def _addresses(self) -> list[int]:
        if not self._shadows:
            return list(map(_address_of, self.parameters))
        return [self._stored(i).data_ptr() for i in range(len(self.parameters))]

    def _gradient_address(self, i: int, g: torch.Tensor) -> int:
        if g.layout != torch.strided:
            raise ValueError(
                f"slamb: the gradient of parameter {i} has layout {g.layout}, but it must be dense; construct "
                f"torch.nn.Embedding with sparse=False"
            )
        stored = self._stored(i)
        if g.dtype == stored.dtype and g.stride() == stored.stride():
            return g.data_ptr()
        staged: Optional[torch.Tensor] = self._staged.get(i)
        if staged is None or staged.stride() != stored.stride() or staged.shape != stored.shape:
            staged = self._staged[i] = torch.empty_strided(
                stored.shape, stored.stride(), dtype=stored.dtype, device=stored.device
            )
        staged.copy_(g.detach())
        return staged.data_ptr()
