"""Parameters of which each rank has a part: which ranks hold them together, and which part is this rank's.

Such parameters are DTensors, of FSDP2 (`fully_shard`) and of tensor parallelism, and those of FullyShardedDataParallel (FSDP1), which
are plain tensors of one dimension: each is a piece of a parameter that FSDP1 has laid beside others and cut anywhere.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist

from slamb.torch._ranks import group_of, is_initialized, ranks_of
from slamb.torch._tensors import is_flattened, is_sharded


class Groups(NamedTuple):
    """The process groups of an optimizer."""

    exchange: Optional["dist.ProcessGroup"]  #: the ranks that hold the same shard as this one; None: nothing is exchanged
    shards: Optional["dist.ProcessGroup"]  #: the ranks that hold one model together; None: each has all of it


class Piece(NamedTuple):
    """The part of a parameter that this rank has."""

    shape: tuple[int, ...]  #: of the whole parameter; -1 for sizes that are not known
    number: int  #: equal on ranks of the shard group that have the same elements; -1: no other rank has them

    @property
    def size(self) -> int:
        """The number of elements of the whole parameter; 0 if it is not known."""
        return 0 if -1 in self.shape else math.prod(self.shape)


class _Holders(NamedTuple):
    """The ranks over which one parameter lies."""

    pieces: tuple[int, ...]  #: those with the parts of one whole parameter, of which this rank has one
    averaged: tuple[int, ...]  #: those over which something else has combined the gradient
    own: int  #: the place of this rank in `pieces`
    shape: tuple[int, ...]
    group: Optional["dist.ProcessGroup"]  #: of `pieces`; None: torch has none


def groups_of_parameters(
    parameters: Sequence[torch.Tensor],
    process_group: Optional["dist.ProcessGroup"],
    shard_group: Optional["dist.ProcessGroup"],
    exchanges: bool,
) -> Groups:
    """The groups over which an optimizer of these parameters exchanges, and takes sums.

    :param process_group: as the user has given it
    :param shard_group: as the user has given it. None: found from the parameters
    :param exchanges: False: nothing is exchanged
    :raises ValueError: if they do not fit the parameters, or have to be given
    """
    if not is_initialized():
        if shard_group is not None:
            raise ValueError(
                "slamb: shard_group was given, but torch.distributed is not initialized; call "
                "torch.distributed.init_process_group() first"
            )
        return Groups(group_of(process_group) if exchanges else None, None)
    found = holders_of(parameters)
    holders = [one for one in found.values() if one is not None]
    if shard_group is None:
        shard_group = _common_group(holders)
    elif dist.get_rank(shard_group) < 0:
        raise ValueError("slamb: this process is not in shard_group; construct the optimizer with a group that has this process")
    if shard_group is None and not holders:
        return Groups(group_of(process_group) if exchanges else None, None)
    shards = [dist.get_rank()] if shard_group is None else ranks_of(shard_group)
    for number, p in enumerate(parameters):
        _require_held(f"parameter {number}", found[id(p)], shards)
    if not exchanges:
        return Groups(None, shard_group)
    together = {*shards, *(rank for one in holders for rank in one.averaged)}
    if process_group is None:
        if len(together) < dist.get_world_size():
            raise ValueError(
                f"slamb: the parameters of this rank are held by the ranks {sorted(together)}, but torch.distributed has "
                f"{dist.get_world_size()} ranks, and process_group was not given; pass process_group=, the group of the ranks that "
                f"have the same shard as this one, for example mesh['replicate'].get_group(); if something else averages gradients "
                f"over them, pass exchange=False"
            )
        return Groups(None, shard_group)
    common = sorted(together.intersection(ranks_of(group_of(process_group))))
    if common != [dist.get_rank()]:
        raise ValueError(
            f"slamb: process_group and the ranks that hold the parameters together have the ranks {common} in common, but only "
            f"this one, {dist.get_rank()}, can be in both. process_group is for ranks whose gradients nothing has averaged yet: "
            f"shard the model by fully_shard(model, mesh=mesh['shard']) and pass process_group=mesh['replicate'].get_group(); or "
            f"leave out process_group, if a mesh with two dimensions averages the gradients"
        )
    return Groups(group_of(process_group), shard_group)


def holders_of(parameters: Sequence[torch.Tensor]) -> dict[int, Optional[_Holders]]:
    """The ranks over which each parameter lies, by its id; None for one that each rank has whole, by itself.

    :raises ValueError: for a DTensor that is no parameter of this rank
    """
    handles = _handles(parameters)
    found: dict[int, Optional[_Holders]] = {}
    of_meshes: dict[Any, _Holders] = {}  # to look at each mesh once
    for number, p in enumerate(parameters):
        if is_sharded(p):
            _require_parameter(number, p)
            key = id(p.device_mesh), _cut_dimensions(p)  # type: ignore[attr-defined]
            if key not in of_meshes:
                of_meshes[key] = _of_mesh(p)
            found[id(p)] = of_meshes[key]._replace(shape=tuple(p.shape))
        elif id(p) in handles:
            found[id(p)] = _of_handle(*handles[id(p)])
        else:
            found[id(p)] = None
    return found


def piece_of(
    name: str,
    p: torch.Tensor,
    its: Optional[_Holders],
    ranks: Optional[list[int]],
    dimensions: Optional[int],
) -> Piece:
    """What this rank has of a parameter.

    :param name: of the parameter, for messages
    :param its: what `holders_of` has found
    :param ranks: of the shard group; None: there is none
    :param dimensions: of the whole parameter, as the user says; None: as found
    :raises ValueError: if the shard group does not hold it
    """
    shape = tuple(p.shape) if its is None else its.shape
    if is_flattened(p) and (its is None or is_row(p)):
        shape = (-1,)
    if dimensions is not None and dimensions != len(shape):
        shape = (-1,) * dimensions
    if ranks is None:
        return Piece(shape, -1)
    if its is None:
        return Piece(shape, -1 if is_flattened(p) else 0)
    _require_held(name, its, ranks)
    return Piece(shape, -1 if len(its.pieces) == len(ranks) else its.own)


def _require_held(name: str, its: Optional[_Holders], ranks: list[int]) -> None:
    """
    :param ranks: of the shard group
    :raises ValueError: if parts of the parameter are elsewhere
    """
    if its is not None and not set(its.pieces) <= set(ranks):
        raise ValueError(
            f"slamb: {name} is cut over the ranks {list(its.pieces)}, but shard_group has the ranks {ranks}; shard_group must be "
            f"the group of all ranks that hold one model together, for example mesh['shard'].get_group()"
        )


def _common_group(holders: Iterable[_Holders]) -> Optional["dist.ProcessGroup"]:
    """The group of ranks that hold all these parameters together; None if each rank has all of them.

    :raises ValueError: if it has to be given
    """
    largest = max(holders, key=lambda one: len(one.pieces), default=None)
    if largest is None or len(largest.pieces) == 1:
        return None
    for one in holders:
        if not set(one.pieces) <= set(largest.pieces):
            raise ValueError(
                f"slamb: some parameters are cut over the ranks {list(largest.pieces)}, and others over {list(one.pieces)}; pass "
                f"shard_group=, the group of all ranks that hold one model together"
            )
    if len(largest.pieces) == dist.get_world_size():
        return dist.group.WORLD
    if largest.group is None:
        raise ValueError(
            f"slamb: parameters are cut along several dimensions of a mesh, over the ranks {list(largest.pieces)}; pass "
            f"shard_group=, the group of these ranks, for example mesh['shard', 'tp']._flatten().get_group()"
        )
    return largest.group


# ------------------------------------------------------------------------------------------------------------------ DTensors


def _require_parameter(number: int, p: Any) -> None:
    """
    :raises ValueError: for a DTensor that is no parameter of this rank
    """
    if any(one.is_partial() for one in p.placements):
        raise ValueError(
            f"slamb: parameter {number} has the placements {tuple(p.placements)}, but its elements must be replicated or sharded"
        )
    if p.device_mesh.get_coordinate() is None:
        raise ValueError(
            f"slamb: parameter {number} is a DTensor of a mesh that does not have this rank; construct the optimizer with the "
            f"parameters of this rank"
        )


def _cut_dimensions(p: Any) -> tuple[int, ...]:
    """The dimensions of the mesh along which a parameter is cut."""
    return tuple(i for i, one in enumerate(p.placements) if not one.is_replicate() and p.device_mesh.size(i) > 1)


def _of_mesh(p: Any) -> _Holders:
    mesh, cut = p.device_mesh, _cut_dimensions(p)
    here = mesh.get_coordinate()
    pieces = mesh.mesh[tuple(slice(None) if i in cut else here[i] for i in range(mesh.ndim))].flatten().tolist()
    return _Holders(
        tuple(pieces),
        tuple(mesh.mesh.flatten().tolist()),
        pieces.index(dist.get_rank()),
        tuple(p.shape),
        mesh.get_group(cut[0]) if len(cut) == 1 else None,
    )


def is_consecutive(p: Any) -> bool:
    """True if parts of a parameter, laid end to end in the order of their ranks, are the whole."""
    if not is_sharded(p):
        return True
    cut = _cut_dimensions(p)
    return not cut or (len(cut) == 1 and bool(p.placements[cut[0]].is_shard(0)))


# --------------------------------------------------------------------------------------------------------------------- FSDP1


def is_row(p: torch.Tensor) -> bool:
    """True for a parameter of FSDP1 that is a row of several parameters: without use_orig_params=True."""
    return bool(getattr(p, "_is_flat_param", False))


def _handles(parameters: Sequence[torch.Tensor]) -> dict[int, tuple[Any, tuple[int, ...]]]:
    """What FSDP1 keeps about each of its parameters, by its id: its handle, and the shape of the whole parameter.

    A parameter does not know its handle, so all objects of the process are looked at.
    """
    if not any(map(is_flattened, parameters)):
        return {}
    from torch.distributed.fsdp import _flat_param

    found: dict[int, tuple[Any, tuple[int, ...]]] = {}
    wanted = {id(p) for p in parameters if is_flattened(p)}
    for handle in gc.get_objects():
        if type(handle) is not _flat_param.FlatParamHandle:
            continue
        row = handle.flat_param
        if id(row) in wanted:
            found[id(row)] = handle, tuple(row.shape)
        for p, shape in zip(row._params or [], row._shapes):
            if id(p) in wanted:
                found[id(p)] = handle, tuple(shape)
    return found


def reshard_fsdp1(parameters: Sequence[torch.Tensor]) -> None:
    """Frees the whole parameters that FSDP1 keeps after a forward pass that no backward pass follows. The next forward pass would use
    them, whatever was written to the pieces since."""
    for handle in {id(its): its for its, _ in _handles(parameters).values()}.values():
        if handle.uses_sharded_strategy:
            handle.reshard(True)


def _of_handle(handle: Any, shape: tuple[int, ...]) -> _Holders:
    its = ranks_of(handle.process_group)
    is_cut = handle.uses_sharded_strategy
    # With a hybrid strategy FSDP1 averages gradients over all ranks.
    averaged = range(dist.get_world_size()) if "HYBRID" in handle._sharding_strategy.name else its
    here = dist.get_rank()
    pieces = its if is_cut else [here]
    return _Holders(tuple(pieces), tuple(averaged), pieces.index(here), shape, handle.process_group)
