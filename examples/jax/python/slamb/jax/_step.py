"""The step of an optimizer: three calls of the compiled library, and the collectives of JAX between them."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from slamb.jax._library import Sizes, sizes_of

Tree = Any  # a pytree
Learning = Union[float, Callable[[jax.Array], Any]]
Mask = Union[None, Tree, Callable[[Tree], Tree]]


class Settings(NamedTuple):
    """The options of an optimizer that the compiled library reads."""

    recipe: str
    compressor: Optional[str]
    b1: float
    b2: float
    eps: float
    weight_decay: float
    max_gradient_norm: float
    seed: int
    threads: int


class State(NamedTuple):
    """What an optimizer keeps. Arrays of all tensors, end to end: tensors begin at multiples of 16 elements.

    The first four are equal on all ranks. Each rank has a row of its own of the last two, which have no elements without a
    compressor. Save and load all of them.
    """

    count: jax.Array  # int32: steps taken
    skipped: jax.Array  # int32: steps that were skipped, because the gradient of a rank was not finite
    momentum: jax.Array  # float32 [elements]
    variance: jax.Array  # float32 [elements]
    worker_error: jax.Array  # float32 [ranks, elements]: what compression has lost of the rank's gradients
    server_error: jax.Array  # float32 [ranks, elements of a chunk]: what it has lost of their mean over the rank's chunk


class Optimizer:
    """An optimizer of `slamb.jax`, with its options. It has no state of its own."""

    def __init__(self, settings: Settings, learning_rate: Learning, axis_name: Optional[str], masks: dict[str, Mask]):
        self._settings = settings
        self._learning_rate = learning_rate
        self._axis_name = axis_name
        self._masks = masks

    @property
    def specs(self) -> State:
        """The PartitionSpecs of a state, for `in_specs` and `out_specs` of `jax.shard_map`."""
        own = PartitionSpec() if self._axis_name is None else PartitionSpec(self._axis_name)
        return State(*[PartitionSpec()] * 4, own, own)

    def init(self, params: Tree, mesh: Optional[jax.sharding.Mesh] = None) -> State:
        """The state before the first step, distributed over the mesh.

        :param params: float32 arrays, or their shapes and types
        :param mesh: with the axis of the ranks. None: that of the parameters, or that of `jax.set_mesh`
        :raises ValueError, TypeError: names the parameter or the option, and what would be right
        """
        leaves = _parameters(params)
        is_inside = self._axis_name is not None and mesh is None and _size_within(self._axis_name) is not None
        if is_inside:
            ranks, rows, mesh = _size_within(self._axis_name), 1, None
        else:
            mesh = self._mesh_of(leaves, mesh)
            ranks = rows = 1 if mesh is None else mesh.shape[self._axis_name]
        sizes = sizes_of(self._text(params, ranks))
        codes = (sizes.state, sizes.codes) if self._compresses(ranks) else (0, 0)

        def zeros() -> State:
            counts = [jnp.zeros((), jnp.int32) for _ in range(2)]
            moments = [jnp.zeros(sizes.state, jnp.float32) for _ in range(2)]
            own = [jnp.zeros((rows, size), jnp.float32) for size in codes]
            if is_inside:
                own = [_varying(array, (self._axis_name,)) for array in own]
            return State(*counts, *moments, *own)

        # Results of a compiled function have memory of their own, which can be donated.
        placed = None if mesh is None else jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.specs)
        return zeros() if is_inside else jax.jit(zeros, out_shardings=placed)()

    def local(self, params: Tree) -> Tree:
        """The parameters, marked as this rank's, so that `jax.grad` returns the gradient of this rank. Without it
        `jax.grad` in `jax.shard_map` adds up the gradients of all ranks, unless that has `check_vma=False`. It computes nothing."""
        if self._axis_name is None:
            return params
        return jax.tree.map(lambda p: _varying(p, (self._axis_name,)), params)

    def step(self, gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        """Takes a step: exchanges the gradients, and updates parameters and state.

        Call it under `jax.shard_map` over the axis of the ranks, in `jax.jit` with the arguments that hold `params` and `state`
        donated: then both are updated in place. If a gradient of any rank is not finite, all ranks skip the step.

        :param gradients: of this rank, float32, as the parameters
        :param params: float32, equal on all ranks
        :returns: the new parameters and the new state
        :raises ValueError, TypeError: when the program is traced; names what is wrong, and what would be right
        """
        axis_name = self._axis_name
        if axis_name is None:
            ranks = 1
        else:
            ranks = _size_within(axis_name)
            if ranks is None:
                raise ValueError(
                    f"step() was called without the axis {axis_name!r}, over which ranks exchange; call it under "
                    f"jax.shard_map over a mesh with this axis, or construct the optimizer with axis_name=None for a single rank"
                )
        text = self._text(params, ranks)
        sizes = sizes_of(text)
        leaves = _parameters(params)
        own = _gradients(gradients, params)
        self._require_state(state, sizes, ranks)
        if ranks > 1:
            self._require_own(own)
        rate = self._learning_rate(state.count) if callable(self._learning_rate) else self._learning_rate
        rate = jnp.asarray(rate, jnp.float32)
        if rate.shape != ():
            raise ValueError(f"the learning rate has shape {rate.shape}, but it must be a scalar")
        if self._compresses(ranks):
            after, leaves = _step_by_codes(text, sizes, ranks, axis_name, rate, state, leaves, own)
        else:
            sums = list(jax.lax.psum(tuple(own), axis_name)) if ranks > 1 else own
            after, leaves = _step_by_sums(text, rate, state, leaves, sums)
        return jax.tree.unflatten(jax.tree.structure(params), leaves), after

    def update(self, gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        """Takes a step, but returns what to add to the parameters, for `optax.apply_updates`. This needs memory for a copy of the
        parameters, and the sum is rounded once more. The arguments are those of `step`."""
        after, state = self.step(gradients, state, params)
        return jax.tree.map(lambda new, old: new - old, after, params), state

    def _compresses(self, ranks: int) -> bool:
        return ranks > 1 and self._settings.compressor is not None

    def _mesh_of(self, leaves: list[Any], mesh: Optional[jax.sharding.Mesh]) -> Optional[jax.sharding.Mesh]:
        axis_name = self._axis_name
        if axis_name is None:
            return None
        meshes = [mesh] if mesh is not None else [
            sharding.mesh for leaf in leaves if isinstance(sharding := getattr(leaf, "sharding", None), NamedSharding)
        ] + [jax.sharding.get_mesh()]
        for found in meshes:
            if axis_name not in found.shape:
                continue
            if isinstance(found, jax.sharding.AbstractMesh):
                return found
            if (platform := found.devices.flat[0].platform) != "cpu":
                raise ValueError(
                    f"the mesh has devices of the platform {platform!r}, but slamb.jax computes in host memory: make it "
                    f"of jax.devices('cpu')"
                )
            return found
        raise ValueError(
            f"init() found no mesh with the axis {axis_name!r}; pass mesh=, or put the parameters on one by "
            f"jax.device_put(params, NamedSharding(mesh, PartitionSpec())), or construct the optimizer with axis_name=None for a "
            f"single rank" + (f". The axes of the given mesh are {tuple(mesh.shape)}" if mesh is not None else "")
        )

    # The settings as src/settings.hpp reads them.
    def _text(self, params: Tree, ranks: int) -> str:
        values = self._settings._asdict()
        values["compressor"] = self._settings.compressor if self._compresses(ranks) else "none"
        decay = values.pop("weight_decay")
        masks = [_values_of_mask(name, mask, params) for name, mask in self._masks.items()]
        lines = [f"{name} {value}" for name, value in values.items()] + [f"ranks {ranks}"]
        for leaf, decays, adapts, compresses in zip(jax.tree.leaves(params), *masks):
            lines.append(f"tensor {leaf.size} {decay if decays else 0.0} {int(adapts)} {int(compresses)}")
        return "\n".join(lines)

    def _require_state(self, state: State, sizes: Sizes, ranks: int) -> None:
        codes = (sizes.state, sizes.codes) if self._compresses(ranks) else (0, 0)
        expected = State((), (), (sizes.state,), (sizes.state,), (1, codes[0]), (1, codes[1]))
        if not isinstance(state, State):
            raise TypeError(f"the state is a {type(state).__name__}, but it must be the State that init() or step() returned")
        for name, array, shape in zip(State._fields, state, expected):
            dtype = jnp.int32 if shape == () else jnp.float32
            if array.shape == shape and array.dtype == dtype:
                continue
            raise ValueError(
                f"state.{name} is {array.dtype}{list(array.shape)} on this rank, but for these parameters, options and {ranks} "
                f"ranks it must be {jnp.dtype(dtype).name}{list(shape)}; pass the state that init() returned for them, and give "
                f"jax.shard_map the specs of the optimizer for it: in_specs=(…, tx.specs, …)"
            )

    # Where JAX knows on which axes values vary, gradients that vary on none have been added up.
    def _require_own(self, gradients: list[jax.Array]) -> None:
        if not _varies(jax.lax.axis_index(self._axis_name), self._axis_name):
            return
        for gradient in gradients:
            if not _varies(gradient, self._axis_name):
                raise ValueError(
                    f"a gradient is the same on all ranks of the axis {self._axis_name!r}, so compressing it would save nothing: "
                    f"jax.grad has added up the gradients of all ranks, because the parameters are the same on all. Take it at "
                    f"tx.local(params), and leave out jax.lax.pmean of the gradients"
                )


def _step_by_codes(
    text: str,
    sizes: Sizes,
    ranks: int,
    axis_name: str,
    rate: jax.Array,
    state: State,
    params: list[jax.Array],
    gradients: list[jax.Array],
) -> tuple[State, list[jax.Array]]:
    rank = jax.lax.axis_index(axis_name)
    attributes = {"settings": text, "ranks": ranks}

    def fresh(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.eval_shape(lambda its: jnp.broadcast_to(its, shape).astype(dtype), rank)

    sent, dense = _call(
        "slamb_encode",
        [state.count, rank, state.worker_error, *gradients],
        [fresh((ranks, sizes.message), jnp.uint8), fresh((sizes.dense,), jnp.float32)],
        attributes,
    )
    received = jax.lax.all_to_all(sent, axis_name, split_axis=0, concat_axis=0, tiled=True)
    averaged, mean = _call(
        "slamb_average",
        [state.count, rank, received, state.server_error],
        [fresh((sizes.message,), jnp.uint8), fresh((sizes.codes,), jnp.float32)],
        attributes,
    )
    received = jax.lax.all_gather(averaged, axis_name)
    if sizes.dense > 0:
        dense = jax.lax.psum(dense, axis_name)
    lasting = [*state, *params]
    _, *after = _call(
        "slamb_update",
        [rank, rate, received, sent, averaged, dense, mean, *lasting, *gradients],
        [fresh((sizes.elements,), jnp.float32), *map(jax.typeof, lasting)],
        attributes,
        aliases={7 + i: 1 + i for i in range(len(lasting))},
    )
    return State(*after[: len(state)]), after[len(state) :]


def _step_by_sums(
    text: str, rate: jax.Array, state: State, params: list[jax.Array], sums: list[jax.Array]
) -> tuple[State, list[jax.Array]]:
    lasting = [state.count, state.skipped, state.momentum, state.variance, *params]
    after = _call(
        "slamb_update_dense",
        [rate, *lasting, *sums],
        list(map(jax.typeof, lasting)),
        {"settings": text},
        aliases={1 + i: i for i in range(len(lasting))},
    )
    return state._replace(count=after[0], skipped=after[1], momentum=after[2], variance=after[3]), after[4:]


def _call(
    target: str,
    operands: list[jax.Array],
    results: list[Any],
    attributes: dict[str, Any],
    aliases: Optional[dict[int, int]] = None,
) -> list[jax.Array]:
    # Operands must vary on the same axes; results are as they say.
    axes = frozenset().union(*map(_axes_of, operands))
    operands = [_varying(operand, axes) for operand in operands]
    return jax.ffi.ffi_call(target, results, input_output_aliases=aliases)(*operands, **attributes)


# The axes of jax.shard_map on which a value varies; none if it does not check them.
def _axes_of(value: jax.Array) -> frozenset[str]:
    kind = jax.typeof(value)
    axes = getattr(kind, "vma", None)  # until JAX 0.9
    return kind.manual_axis_type.varying if axes is None else axes


def _varies(value: jax.Array, axis_name: str) -> bool:
    return axis_name in _axes_of(value)


def _varying(value: jax.Array, axes: Any) -> jax.Array:
    new = tuple(sorted(set(axes) - _axes_of(value)))
    if not new:
        return value
    return jax.lax.pcast(value, new, to="varying")


def _size_within(axis_name: str) -> Optional[int]:
    """The number of ranks, within `jax.shard_map` over the axis; else None."""
    try:
        return jax.lax.axis_size(axis_name)
    except NameError:
        return None


def _parameters(params: Tree) -> list[Any]:
    """
    :raises TypeError: if one is not float32
    :raises ValueError: if there is none
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params has no arrays; it must be a pytree of float32 arrays")
    for path, leaf in leaves:
        _require_float32("params", path, leaf, "keep float32 parameters, and convert them where the model uses them")
    return [leaf for _, leaf in leaves]


def _gradients(gradients: Tree, params: Tree) -> list[jax.Array]:
    """
    :raises TypeError, ValueError: if they do not fit the parameters
    """
    if jax.tree.structure(gradients) != jax.tree.structure(params):
        raise ValueError(
            f"the gradients are {jax.tree.structure(gradients)}, but they must be as the parameters: "
            f"{jax.tree.structure(params)}"
        )
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    for (path, gradient), param in zip(leaves, jax.tree.leaves(params)):
        _require_float32("gradients", path, gradient, "take them at float32 parameters, or convert them by astype")
        if gradient.shape != param.shape:
            name = jax.tree_util.keystr(path)
            raise ValueError(f"gradients{name} has shape {gradient.shape}, but params{name} has {param.shape}")
    return [gradient for _, gradient in leaves]


def _require_float32(what: str, path: Any, leaf: Any, advice: str) -> None:
    dtype = getattr(leaf, "dtype", type(leaf).__name__)
    if dtype != jnp.float32:
        raise TypeError(f"{what}{jax.tree_util.keystr(path)} is {dtype}, but slamb.jax takes float32 alone: {advice}")


def _values_of_mask(name: str, mask: Mask, params: Tree) -> list[bool]:
    """
    :raises ValueError: if the mask is not a tree of bools like the parameters
    """
    structure = jax.tree.structure(params)
    if mask is None:
        return [True] * structure.num_leaves
    values = mask(params) if callable(mask) else mask
    leaves = jax.tree.leaves(values)
    if jax.tree.structure(values) != structure or not all(isinstance(value, bool) for value in leaves):
        raise ValueError(f"{name} is {values!r}, but it must be a pytree of bools as the parameters are: {structure}")
    return leaves
