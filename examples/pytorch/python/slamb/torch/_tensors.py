"""Parameters and gradients as addresses, which are found anew at each step, because frameworks move tensors."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any, Optional, cast

import torch

from slamb import _native

_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

# Of many tensors by `map`, without an instruction of Python for each.
_gradient_of = operator.attrgetter("grad")
_type_of = operator.attrgetter("dtype")
_address_of = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous
_shape_of = operator.attrgetter("shape")
_is_negated = torch.Tensor.is_neg  # the memory has the values without the sign, as in the imaginary part of a conjugate


def _exists(gradient: Optional[torch.Tensor]) -> bool:
    return gradient is not None


Strides = tuple[int, ...]


def _find_increment_version() -> Optional[Callable[[Sequence[torch.Tensor]], None]]:
    """Tells autograd that tensors have changed, so that a backward pass through their older values is an error, as with torch's
    own optimizers. None if this torch has no such function."""
    increment: Any = getattr(torch.autograd.graph, "increment_version", None)

    def one_by_one(tensors: Sequence[torch.Tensor]) -> None:
        for one in tensors:
            increment(one)

    try:
        if increment is not None:
            increment([torch.zeros(1, device="cpu")])
    except TypeError:  # older torch takes one tensor
        return one_by_one
    return cast(Optional[Callable[[Sequence[torch.Tensor]], None]], increment)


_increment_version = _find_increment_version()


def is_sharded(tensor: torch.Tensor) -> bool:
    """True for a DTensor of torch.distributed, of which this rank has a part."""
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def is_flattened(tensor: torch.Tensor) -> bool:
    """True for a parameter of FullyShardedDataParallel (FSDP1), of which this rank has a piece, or which is a row of pieces."""
    return bool(getattr(tensor, "_fsdp_flattened", False))


def is_lazy(tensor: torch.Tensor) -> bool:
    """True for a parameter of a lazy module whose shape is not known yet."""
    return bool(torch.nn.parameter.is_lazy(tensor))  # type: ignore[no-untyped-call, unused-ignore]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def like_parameter(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A tensor of this rank's part of a parameter, as a DTensor in the same memory if the parameter is one."""
    if not is_sharded(parameter):
        return local
    dtensor: Any = type(parameter)
    with torch.no_grad():
        made: torch.Tensor = dtensor.from_local(
            local,
            parameter.device_mesh,  # type: ignore[attr-defined]
            parameter.placements,  # type: ignore[attr-defined]
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    return made


def row_major(shape: Sequence[int]) -> Strides:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    elements = 1
    for size in reversed(shape):
        strides.insert(0, elements)
        elements *= max(size, 1)
    return tuple(strides)


def has_strides(tensor: torch.Tensor, strides: Strides) -> bool:
    """True if the elements lie so. Strides of dimensions of size 1 do not matter."""
    return tensor.numel() == 0 or all(
        own == wanted for own, wanted, size in zip(tensor.stride(), strides, tensor.shape) if size != 1
    )


def is_order_of(strides: Strides, shape: Sequence[int]) -> bool:
    """True if elements with these strides fill a piece of memory without gaps."""
    if len(strides) != len(shape):
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill a piece of memory without gaps, in any order of dimensions, as in channels_last."""
    return tensor.numel() == 0 or is_order_of(tensor.stride(), tensor.shape)


def require_separate(tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Rejects tensors of which one element is at the same place as another.

    :raises ValueError: names the two
    """
    by_storage: dict[tuple[int, int], list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in tensors:
        if tensor.numel() > 0:
            first = tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()
            by_storage.setdefault((first, tensor.element_size()), []).append((name, tensor))
    for sharing in by_storage.values():
        if len(sharing) == 1:
            continue
        last = max(
            t.storage_offset() + sum(stride * (size - 1) for stride, size in zip(t.stride(), t.shape)) for _, t in sharing
        )
        owners = torch.full((last + 1,), -1, dtype=torch.int32, device="cpu")
        for number, (name, tensor) in enumerate(sharing):
            places = owners.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            other = int(places.max())
            if other >= 0:
                raise ValueError(f"slamb: {name} overlaps {sharing[other][0]}; parameters must not share memory")
            places.fill_(number)


class Tensors:
    """The parameters of an optimizer, and where they and their gradients are.

    Moments are stored in the order in which a parameter's elements lay when the optimizer was constructed. The optimizer works in
    the memory of a parameter that still lies so, and of a gradient that lies so. Others are copied for each step, as are
    parameters with gaps.

    Of a DTensor it is this rank's part.

    :param numbers: of the parameters, for messages
    :param strides: the order of parameters, by their number here, as `reordered` returns it; None: that in which they lie
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        keeps_masters: bool,
        numbers: Optional[Sequence[int]] = None,
        strides: Optional[dict[int, Strides]] = None,
    ) -> None:
        self.given = list(parameters)
        self.are_sharded = any(map(is_sharded, self.given))
        self.parameters = list(map(local_part, self.given))
        self._numbers = range(len(self.given)) if numbers is None else numbers
        self.device = self.parameters[0].device
        self.types = [self._type_name(i, p) for i, p in enumerate(self.parameters)]
        self._dtypes = [p.dtype for p in self.parameters]
        self.shapes = [p.shape for p in self.parameters]
        self.strides = [
            p.stride() if strides is None and is_dense(p) else row_major(p.shape) for p in self.parameters
        ]
        for i, given in (strides or {}).items():
            if not (0 <= i < len(self.parameters) and is_order_of(given, self.parameters[i].shape)):
                raise ValueError(f"slamb: strides {given} are no order of the elements of {self._name(i)}")
            self.strides[i] = given
        self._are_all_row_major = not self.reordered()
        self._staged: dict[tuple[int, torch.dtype], torch.Tensor] = {}  # copies of gradients; graphs use them, so none is dropped
        self._shadows: dict[int, torch.Tensor] = {}  # copies of parameters that lie otherwise
        self._find_places()
        # Describes contiguous tensors in one call. Older torch has no such table.
        table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        self._layouts = None if table is None else _native.TensorLayouts.of(table, self.parameters)
        self._gradient_layouts = self._layouts  # of gradients, whose types may differ from the parameters'
        # Float copies of parameters of 16 bits, which steps read and update.
        self.masters: dict[int, torch.Tensor] = {}
        self._versions: dict[int, int] = {}  # of parameters with a master, as this optimizer has left them
        self._reloads_in_graphs: set[int] = set()  # masters that only a captured step has read again, which may never be replayed
        if keeps_masters:
            for i, p in enumerate(self.parameters):
                if p.dtype != torch.float32:
                    if p.is_inference():
                        raise ValueError(
                            f"slamb: {self._name(i)} was made in torch.inference_mode(), so a change of it cannot be noticed; "
                            f"make the model outside of it, or construct the optimizer with rounding='stochastic'"
                        )
                    self.masters[i] = self._stored(i).to(torch.float32)
                    self._versions[i] = p._version
        self.data = self._addresses()
        self.gradient_types = list(self.types)
        self.gradients = self._gradient_addresses()

    def reordered(self) -> dict[int, Strides]:
        """The strides of the parameters whose order is not that of a contiguous tensor."""
        return {
            i: strides
            for i, (p, strides) in enumerate(zip(self.parameters, self.strides))
            if p.numel() > 0
            and any(a != b for a, b, size in zip(strides, row_major(p.shape), p.shape) if size != 1)
        }

    def master_addresses(self) -> list[int]:
        return [self.masters[i].data_ptr() if i in self.masters else 0 for i in range(len(self.parameters))]

    def has_moved(self) -> bool:
        """Finds the parameters again. True if one has moved since the last call.

        :raises ValueError: if one has another shape, type or device than at the construction, or shares memory
        """
        if self.are_sharded:
            self.parameters = list(map(local_part, self.given))
        if self._are_all_plain and self._contiguous_addresses(self.parameters, self._layouts) == self.data:
            return False
        for i, p in enumerate(self.parameters):
            if p.dtype != self._dtypes[i] or p.shape != self.shapes[i] or p.device != self.device:
                raise ValueError(
                    f"slamb: {self._name(i)} had shape {tuple(self.shapes[i])} and type {self._dtypes[i]} on {self.device} when "
                    f"the optimizer was constructed, and has shape {tuple(p.shape)} and type {p.dtype} on {p.device} now; "
                    f"construct the optimizer after the model has been converted"
                )
            self._type_name(i, p)  # rejects other layouts
        self._find_places()
        before, self.data = self.data, self._addresses()
        for i in self.masters:
            if not before or before[i] != self.data[i]:
                self._reload_master(i)
        return before != self.data

    def have_gradients_moved(self) -> bool:
        """Finds the gradients again. True if one has moved, come or gone, or has another type than at the last call.

        :raises ValueError: for a gradient that is not dense
        """
        before, types = self.gradients, self.gradient_types
        self.gradients = self._gradient_addresses()
        return before != self.gradients or types is not self.gradient_types

    def forget_places(self) -> None:
        """The next calls find that everything has moved."""
        self.data, self.gradients = [], []

    def lie_as_before(self) -> bool:
        """True if no parameter has moved since the last call of `has_moved`. Changes nothing."""
        now = list(map(local_part, self.given)) if self.are_sharded else self.parameters
        return len(self.data) == len(now) and all(
            p.dtype == self._dtypes[i]
            and p.shape == self.shapes[i]
            and p.device == self.device
            and has_strides(p, self.strides[i]) == (i not in self._shadows)
            and (i in self._shadows or p.data_ptr() == self.data[i])
            for i, p in enumerate(now)
        )

    def have_gradients_as_before(self) -> bool:
        """True if the same parameters have a gradient as at the last call of `have_gradients_moved`. Changes nothing."""
        return len(self.gradients) == len(self.given) and all(
            (p.grad is not None) == (at != 0) for p, at in zip(self.given, self.gradients) if p.numel() > 0
        )

    def before_step(self, is_captured: bool = False) -> None:
        """Takes over what others have written to parameters that steps do not read in place.

        :param is_captured: the step is captured into a graph, so this happens at its replays
        """
        for i, shadow in self._shadows.items():
            shadow.copy_(self.parameters[i].detach())
        for i, version in self._versions.items():
            if self.parameters[i]._version != version:
                self._reload_master(i)
                if is_captured:
                    self._reloads_in_graphs.add(i)
                else:
                    self._reloads_in_graphs.discard(i)

    def after_step(self, with_gradient_only: bool = False) -> None:
        """Writes to the parameters what was not written in place, and tells autograd that they have changed.

        :param with_gradient_only: only parameters that have a gradient have changed
        """
        for i, shadow in self._shadows.items():
            self.parameters[i].detach().copy_(shadow)
        if _increment_version is not None:
            if with_gradient_only and 0 in self.gradients:
                _increment_version([p for p, gradient in zip(self.given, self.gradients) if gradient])
            else:
                _increment_version(self.given)
        for i in self._versions:  # -1: the next step reads it again
            self._versions[i] = -1 if i in self._reloads_in_graphs else self.parameters[i]._version

    def reload_masters(self) -> None:
        """Where a master copy, rounded, is not the parameter, the copy becomes the parameter."""
        for i, shadow in self._shadows.items():
            shadow.copy_(self.parameters[i].detach())
        for i in self.masters:
            self._reload_master(i)

    def set_master(self, i: int, master: torch.Tensor) -> None:
        """Replaces the master copy of parameter i, and the parameter, which is the copy, rounded."""
        self.masters[i].copy_(master.detach())
        with torch.no_grad():
            self.parameters[i].copy_(self.masters[i])
            if i in self._shadows:
                self._shadows[i].copy_(self.masters[i])
        self._versions[i] = self.parameters[i]._version

    def arrays_of_gradients(self) -> list[tuple[int, int, str]]:
        """The address, the number of elements and the type of each gradient that exists."""
        return [
            (at, p.numel(), type_name)
            for at, p, type_name in zip(self.gradients, self.parameters, self.gradient_types)
            if at and p.numel() > 0
        ]

    def _name(self, i: int) -> str:
        return f"parameter {self._numbers[i]}"

    def _type_name(self, i: int, p: torch.Tensor) -> str:
        if p.device != self.device:
            raise ValueError(
                f"slamb: {self._name(i)} is on {p.device}, but {self._name(0)} is on {self.device}; all must be on one device"
            )
        if p.layout != torch.strided:
            raise ValueError(f"slamb: {self._name(i)} has layout {p.layout}, but it must be dense (torch.strided)")
        if getattr(p, "is_nested", False):
            raise ValueError(f"slamb: {self._name(i)} is nested, but it must be a plain tensor")
        if any(stride == 0 and size > 1 for stride, size in zip(p.stride(), p.shape)):
            raise ValueError(f"slamb: {self._name(i)} is expanded, so its elements share memory; use a clone() of it")
        if p.is_neg():
            raise ValueError(f"slamb: {self._name(i)} is a negated view; use its resolve_neg()")
        if p.device.type != "meta" and p.numel() > 0 and not p.data_ptr():
            raise ValueError(f"slamb: {self._name(i)} is a {type(p).__name__}, which has no memory of its own")
        name = _TYPES.get(p.dtype)
        if name is None:
            raise ValueError(
                f"slamb: {self._name(i)} has type {p.dtype}, but it must be torch.float32, torch.bfloat16 or torch.float16, or "
                f"have requires_grad=False; convert the model, for example by model.float()"
            )
        return name

    def _stored(self, i: int) -> torch.Tensor:
        return self._shadows[i] if i in self._shadows else self.parameters[i].detach()

    def _find_places(self) -> None:
        self._are_all_plain = self._are_all_row_major and all(p.is_contiguous() for p in self.parameters)
        if self._are_all_plain:
            self._shadows.clear()
            return  # the compiled optimizer finds memory that is shared
        require_separate([(self._name(i), p) for i, p in enumerate(self.parameters)])
        for i, (p, strides) in enumerate(zip(self.parameters, self.strides)):
            if has_strides(p, strides):
                self._shadows.pop(i, None)
            elif i not in self._shadows:
                self._shadows[i] = torch.empty_strided(p.shape, strides, dtype=p.dtype, device=p.device)
                self._shadows[i].copy_(p.detach())

    def _addresses(self) -> list[int]:
        if not self._shadows:
            return list(map(_address_of, self.parameters))
        return [self._stored(i).data_ptr() for i in range(len(self.parameters))]

    def _contiguous_addresses(self, tensors: list[Any], layouts: Optional[_native.TensorLayouts]) -> Optional[list[int]]:
        """The addresses of tensors of these types and shapes that are contiguous; 0 for None. The usual case, without an
        instruction of Python for each tensor. None if it is another case.

        :param layouts: None: torch is too old to describe tensors; they must have the types and shapes of the parameters
        """
        if layouts is not None:
            return layouts.addresses(tensors)
        with contextlib.suppress(TypeError, RuntimeError):  # one is None, or sparse
            if (
                all(map(_is_contiguous, tensors))
                and list(map(_type_of, tensors)) == self._dtypes
                and list(map(_shape_of, tensors)) == self.shapes
            ):
                addresses = list(map(_address_of, tensors))
                if all(addresses):
                    return addresses
        return None

    def _gradient_addresses(self) -> list[int]:
        """The addresses of the gradients, 0 for those that do not exist. Copies those that do not lie as their parameters do."""
        gradients = list(map(_gradient_of, self.given))
        if self.are_sharded:
            gradients = [None if g is None else self._local_gradient(i, g) for i, g in enumerate(gradients)]
        if self._are_all_row_major:
            addresses = self._contiguous_addresses(gradients, self._gradient_layouts)
            if addresses is not None and not any(map(_is_negated, gradients if all(addresses) else filter(_exists, gradients))):
                if self._gradient_layouts is None:
                    self._set_gradient_types(self.types)  # that was the condition
                return addresses
        addresses = [0 if g is None else self._gradient_address(i, g) for i, g in enumerate(gradients)]
        types = [
            was if g is None else _TYPES.get(g.dtype, "float32") for g, was in zip(gradients, self.gradient_types)
        ]
        if self._set_gradient_types(types) and self._layouts is not None and all(addresses):
            table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
            self._gradient_layouts = _native.TensorLayouts.of(table, gradients)
        return addresses

    def _local_gradient(self, i: int, g: Any) -> torch.Tensor:
        if not is_sharded(g):
            return cast(torch.Tensor, g)
        placements = getattr(self.given[i], "placements", None)
        if g.placements != placements:
            raise ValueError(
                f"slamb: the gradient of {self._name(i)} has the placements {tuple(g.placements)}, but the parameter has "
                f"{placements if placements is None else tuple(placements)}; call p.grad = p.grad.redistribute(placements=p.placements) "
                f"before step(), as for the parameters of SequenceParallel, whose gradients no rank has added up"
            )
        return local_part(g)

    def _set_gradient_types(self, types: list[str]) -> bool:
        """True if they have changed. Then `gradient_types` is another list."""
        if types == self.gradient_types:
            return False
        self.gradient_types = list(types)
        return True

    def _gradient_address(self, i: int, g: torch.Tensor) -> int:
        if g.layout != torch.strided:
            raise ValueError(
                f"slamb: the gradient of {self._name(i)} has layout {g.layout}, but it must be dense; construct "
                f"torch.nn.Embedding with sparse=False"
            )
        if g.shape != self.parameters[i].shape or g.device != self.device:
            raise ValueError(
                f"slamb: the gradient of {self._name(i)} has shape {tuple(g.shape)} on {g.device}, but the parameter has "
                f"{tuple(self.parameters[i].shape)} on {self.device}"
            )
        if g.numel() > 0 and not g.data_ptr():
            raise ValueError(f"slamb: the gradient of {self._name(i)} is a {type(g).__name__}, which has no memory of its own")
        if g.dtype in _TYPES and has_strides(g, self.strides[i]) and not g.is_neg():
            return g.data_ptr()
        dtype = g.dtype if g.dtype in _TYPES else torch.float32
        staged = self._staged.get((i, dtype))
        if staged is None:
            staged = self._staged[i, dtype] = torch.empty_strided(g.shape, self.strides[i], dtype=dtype, device=self.device)
        staged.copy_(g.detach())
        return staged.data_ptr()

    def _reload_master(self, i: int) -> None:
        stored, master = self._stored(i), self.masters[i]
        master.copy_(torch.where(master.to(stored.dtype) == stored, master, stored.to(torch.float32)))
        self._versions[i] = self.parameters[i]._version
