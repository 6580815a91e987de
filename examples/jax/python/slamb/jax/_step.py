"""The step of an optimizer: three calls of the compiled library, and the collectives of JAX between them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from slamb.jax._library import Sizes, sizes_of

Tree = Any  # a pytree
Learning = Union[float, jax.Array, Callable[[jax.Array], Any]]
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
    warm_up_steps: int = 0
    update_bound: float = 0.0


class State(NamedTuple):
    """What an optimizer keeps. Arrays are of all tensors, end to end: tensors begin at multiples of 16 elements.

    All but the errors are equal on all ranks. Each rank has a row of its own of the errors. Arrays that an optimizer does not need have
    no elements. Save and load all of them.
    """

    count: jax.Array  # int32: steps taken
    skipped: jax.Array  # int32: steps that were skipped, because the gradient of a rank was not finite
    frozen_at: jax.Array  # int32: the steps of the warm-up of a 1-bit optimizer; 0: it has not ended
    momentum: jax.Array  # float32 [elements]
    variance: jax.Array  # float32 [elements]
    fresh_variance: jax.Array  # float32 [elements], of 1-bit LAMB
    ratios: jax.Array  # float32 [2, tensors, 2], of 1-bit LAMB: mean ratio and factor, then signal scale and its reciprocal
    worker_error: jax.Array  # float32 [ranks, elements]: what compression has lost of the rank's signals
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
        has_rows = self._axis_name is not None and self._settings.compressor is not None
        own = PartitionSpec(self._axis_name) if has_rows else PartitionSpec()
        return State(*[PartitionSpec()] * 7, own, own)

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
        shapes = self._shapes(sizes_of(self._text(params, ranks)), ranks, rows, len(leaves))

        def zeros() -> State:
            state = State(*[jnp.zeros(shape, jnp.float32 if shape else jnp.int32) for shape in shapes])
            if is_inside and self.specs.worker_error != PartitionSpec():
                own = {name: _varying(getattr(state, name), (self._axis_name,)) for name in ("worker_error", "server_error")}
                state = state._replace(**own)
            if state.ratios.size > 0:
                state = state._replace(ratios=state.ratios + jnp.array([[[0.0, 1.0]], [[1.0, 1.0]]], jnp.float32))
            if is_explicit:
                state = jax.tree.map(jax.sharding.reshard, state, placed)
            return state

        # Results of a compiled function have memory of their own, which can be donated.
        placed = None if mesh is None else jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.specs)
        # Within jax.jit, the types of arrays on an explicit axis say where they are.
        is_explicit = isinstance(mesh, jax.sharding.AbstractMesh) and AxisType.Explicit in mesh.axis_types
        return zeros() if is_inside else jax.jit(zeros, out_shardings=placed)()

    def restore(self, saved: State, params: Tree, mesh: Optional[jax.sharding.Mesh] = None, *, resets_errors: bool = False) -> State:
        """A saved state, distributed over the mesh as `init` does it.

        :param saved: the state of this optimizer for parameters of these sizes, as arrays of NumPy or JAX. A state does not
            say of which optimizer it is
        :param params, mesh: as of `init`
        :param resets_errors: if the state is of another number of ranks, compression errors begin with 0; else it is refused
        :raises ValueError, TypeError: as `init`, or if the state is of other parameters or of another number of ranks
        """
        fresh = self.init(params, mesh)
        if not isinstance(saved, State):
            raise TypeError(f"the saved state is a {type(saved).__name__}, but it must be a State: slamb.jax.State(*arrays)")
        restored = []
        for name, old, new in zip(State._fields, saved, fresh):
            if _kind_of(old) == _kind_of(new):
                restored.append(jax.device_put(old, new.sharding))
            elif name not in ("worker_error", "server_error"):
                raise ValueError(
                    f"state.{name} is {_kind_of(old)}, but for these parameters and options it must be {_kind_of(new)}"
                )
            elif resets_errors:
                restored.append(new)
            else:
                raise ValueError(
                    f"state.{name} is {_kind_of(old)}, but for these parameters and ranks it must be {_kind_of(new)}; if it is "
                    f"of another number of ranks, pass resets_errors=True: then errors begin with 0"
                )
        return State(*restored)

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
        leaves = _parameters(params)
        own = _gradients(gradients, params)
        text = self._text(params, ranks)
        sizes = sizes_of(text)
        self._require_state(state, sizes, ranks, len(leaves))
        self._require_axes(gradients, state, params)
        if ranks > 1:
            self._require_own(gradients)
        rate = self._learning_rate(state.count) if callable(self._learning_rate) else self._learning_rate
        rate = jnp.asarray(rate, jnp.float32)
        if rate.shape != ():
            raise ValueError(f"the learning rate has shape {rate.shape}, but it must be a scalar")
        _require_axes_in(frozenset(), learning_rate=rate, advice="make it of what all ranks have, as by jax.lax.pmean")
        call = _Call(text, sizes, ranks, axis_name, rate)
        if not self._compresses(ranks):
            after, leaves = call.by_sums(state, leaves, own)
        else:
            has_warm_up = self._settings.recipe.startswith("one_bit")
            after, leaves = call.by_codes(state, leaves, own, has_warm_up)
        return jax.tree.unflatten(jax.tree.structure(params), leaves), after

    def update(self, gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        """Takes a step, but returns what to add to the parameters, for `optax.apply_updates`. This needs memory for a copy of the
        parameters, and the sum is rounded once more. The arguments are those of `step`."""
        after, state = self.step(gradients, state, params)
        return jax.tree.map(lambda new, old: new - old, after, params), state

    def sent_bytes(self, params: Tree, ranks: int) -> int:
        """Bytes that a rank sends in a step, if collectives send as little as they can. Of a 1-bit optimizer: after the warm-up.

        :raises ValueError, TypeError: as `init`
        """
        leaves = _parameters(params)
        sizes = sizes_of(self._text(params, integer_in("ranks", ranks, 1, 2**31 - 1)))
        floats = sizes.dense if self._compresses(ranks) else sum(leaf.size for leaf in leaves)
        return 2 * (ranks - 1) * sizes.message + 8 * floats * (ranks - 1) // ranks

    def _compresses(self, ranks: int) -> bool:
        return ranks > 1 and self._settings.compressor is not None

    def _mesh_of(self, leaves: list[Any], mesh: Optional[jax.sharding.Mesh]) -> Optional[jax.sharding.Mesh]:
        axis_name = self._axis_name
        if mesh is not None and not isinstance(getattr(mesh, "shape", None), Mapping):
            raise TypeError(f"mesh is {mesh!r}, but it must be a jax.sharding.Mesh")
        if axis_name is None:
            _require_host("params are", _devices_of(leaves))
            return None
        meshes = [mesh] if mesh is not None else [*_meshes_of(leaves), _current_mesh()]
        for found in meshes:
            if axis_name not in found.shape:
                continue
            if not isinstance(found, jax.sharding.AbstractMesh):
                _require_host("the mesh is", found.devices.flat)
            return found
        raise ValueError(
            f"init() found no mesh with the axis {axis_name!r}; pass mesh= (within jax.jit, parameters need not show theirs); or "
            f"put the parameters on one by jax.device_put(params, NamedSharding(mesh, PartitionSpec())), or construct the optimizer "
            f"with axis_name=None for a single rank" + (f". The axes of the given mesh are {tuple(mesh.shape)}" if mesh is not None else "")
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

    def _shapes(self, sizes: Sizes, ranks: int, rows: int, tensors: int) -> State:
        codes = (sizes.state, sizes.codes) if self._compresses(ranks) else (0, 0)
        ratios = (2, tensors if sizes.ratios > 0 else 0, 2)
        if self._settings.compressor is None:
            rows = 0
        return State((), (), (), (sizes.state,), (sizes.state,), (sizes.fresh,), ratios, (rows, codes[0]), (rows, codes[1]))

    def _require_state(self, state: State, sizes: Sizes, ranks: int, tensors: int) -> None:
        expected = self._shapes(sizes, ranks, 1, tensors)
        if not isinstance(state, State):
            raise TypeError(f"the state is a {type(state).__name__}, but it must be the State that init() or step() returned")
        for name, array, shape in zip(State._fields, state, expected):
            right = _kind_of(jax.ShapeDtypeStruct(shape, jnp.int32 if shape == () else jnp.float32))
            if _kind_of(array) != right:
                raise ValueError(
                    f"state.{name} is {_kind_of(array)} on this rank, but for these parameters, options and {ranks} ranks it must "
                    f"be {right}; pass the state that init() or restore() returned for them, and give jax.shard_map the specs of "
                    f"the optimizer for it: in_specs=(…, tx.specs, …)"
                )

    # Where JAX knows on which axes values vary: parameters and moments must be equal on all devices, and the rest on all of a rank.
    def _require_axes(self, gradients: Tree, state: State, params: Tree) -> None:
        own = frozenset() if self._axis_name is None else frozenset({self._axis_name})
        common = state._replace(worker_error=None, server_error=None)
        _require_axes_in(
            frozenset(), params=params, state=common, advice="pass what jax.shard_map was given with the specs P() and tx.specs"
        )
        errors = {"worker_error": state.worker_error, "server_error": state.server_error}
        _require_axes_in(own, state=errors, advice="give jax.shard_map the specs of the optimizer: tx.specs")
        _require_axes_in(own, gradients=gradients, advice="average them over the other axes by jax.lax.pmean")

    # Gradients that vary on no axis have been added up.
    def _require_own(self, gradients: Tree) -> None:
        if not _varies(jax.lax.axis_index(self._axis_name), self._axis_name):
            return
        for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
            if not _varies(gradient, self._axis_name):
                raise ValueError(
                    f"gradients{jax.tree_util.keystr(path)} is the same on all ranks of the axis {self._axis_name!r}, but must be "
                    f"each rank's own: jax.grad has added up the gradients of all ranks, because the parameters are the same on "
                    f"all. Take it at tx.local(params), and leave out jax.lax.pmean of the gradients. Mark a constant, as the zero "
                    f"gradient of a frozen parameter, by tx.local too"
                )


class _Call(NamedTuple):
    """A step of an optimizer, on one rank."""

    text: str
    sizes: Sizes
    ranks: int
    axis_name: Optional[str]
    rate: jax.Array

    def by_codes(
        self, state: State, params: list[Any], gradients: list[Any], has_warm_up: bool
    ) -> tuple[State, list[Any]]:
        """With codes of the gradients, or of momenta after a warm-up with sums of the gradients."""
        if has_warm_up:
            messages, gradients = self._exchange_by_phase(state, gradients)
        else:
            messages = self._exchange(state, gradients)
        lasting = [*state, *params]
        _, *after = _run(
            "slamb_update",
            [self._rank(), self.rate, *messages, *lasting, *gradients],
            [self._fresh((self.sizes.mean,), jnp.float32), *map(jax.typeof, lasting)],
            {"settings": self.text},
            aliases={2 + len(messages) + i: 1 + i for i in range(len(lasting))},
        )
        return State(*after[: len(state)]), after[len(state) :]

    # The messages of both phases and what belongs to them, as slamb_update takes them.
    def _exchange(self, state: State, gradients: list[Any]) -> list[jax.Array]:
        sizes, axis_name, attributes = self.sizes, self.axis_name, {"settings": self.text}
        sent, dense = _run(
            "slamb_encode",
            [self._rank(), state.count, state.frozen_at, state.momentum, state.ratios, state.worker_error, *gradients],
            [self._fresh((self.ranks, sizes.message), jnp.uint8), self._fresh((sizes.dense,), jnp.float32)],
            attributes,
        )
        received = jax.lax.all_to_all(sent, axis_name, split_axis=0, concat_axis=0, tiled=True)
        averaged, mean = _run(
            "slamb_average",
            [self._rank(), state.count, received, state.server_error],
            [self._fresh((sizes.message,), jnp.uint8), self._fresh((sizes.codes,), jnp.float32)],
            attributes,
        )
        received = jax.lax.all_gather(averaged, axis_name)
        if sizes.dense > 0:
            dense = _varying(jax.lax.psum(dense, axis_name), _axes_of(sent))
        return [received, sent, averaged, dense, mean]

    # The same, or in the warm-up sums of the gradients in their place. The update is behind the branches, so that it is in place.
    def _exchange_by_phase(self, state: State, gradients: list[Any]) -> tuple[list[jax.Array], list[jax.Array]]:
        results = jax.eval_shape(self._exchange, state, gradients)
        axes = frozenset().union(*map(_axes_of, [self._rank(), *state, *gradients]))

        def varying(values: Any) -> list[jax.Array]:
            return [_varying(value, axes) for value in values]

        def codes(state: State, gradients: list[Any]) -> tuple[list[jax.Array], list[jax.Array]]:
            return varying(self._exchange(state, gradients)), varying(gradients)

        def sums(state: State, gradients: list[Any]) -> tuple[list[jax.Array], list[jax.Array]]:
            nothing = [jnp.zeros(result.shape, result.dtype) for result in results]
            return varying(nothing), varying(jax.lax.psum(tuple(gradients), self.axis_name))

        return jax.lax.cond(state.frozen_at > 0, codes, sums, state, gradients)

    def by_sums(self, state: State, params: list[Any], gradients: list[Any]) -> tuple[State, list[Any]]:
        """With sums of the gradients over ranks."""
        if self.ranks > 1:
            gradients = jax.lax.psum(tuple(gradients), self.axis_name)
        common = state[:-2]  # without the errors
        lasting = [*common, *params]
        after = _run(
            "slamb_update_dense",
            [self._rank(), self.rate, *lasting, *gradients],
            list(map(jax.typeof, lasting)),
            {"settings": self.text},
            aliases={2 + i: i for i in range(len(lasting))},
        )
        return State(*after[: len(common)], *state[-2:]), after[len(common) :]

    # A result of a call, which is of this rank.
    def _fresh(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.typeof(_varying(jnp.zeros(shape, dtype), _axes_of(self._rank())))

    def _rank(self) -> jax.Array:
        return jax.lax.axis_index(self.axis_name) if self.ranks > 1 else jnp.zeros((), jnp.int32)


def _run(
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


def _require_axes_in(allowed: frozenset[str], advice: str, **trees: Tree) -> None:
    for what, tree in trees.items():
        for path, value in jax.tree_util.tree_leaves_with_path(tree):
            if others := sorted(_axes_of(value) - allowed):
                raise ValueError(
                    f"{what}{jax.tree_util.keystr(path)} may differ along the axis {others[0]!r} of the mesh, but must be equal on "
                    f"its devices; {advice}"
                )


def _varies(value: jax.Array, axis_name: str) -> bool:
    return axis_name in _axes_of(value)


def _varying(value: jax.Array, axes: Any) -> jax.Array:
    new = tuple(sorted(set(axes) - _axes_of(value)))
    if not new:
        return value
    return jax.lax.pcast(value, new, to="varying")


def _kind_of(array: Any) -> str:
    """Its type and shape, as float32[3, 4]."""
    return f"{getattr(array, 'dtype', type(array).__name__)}{list(np.shape(array))}"


def _require_host(what: str, devices: Iterable[Any]) -> None:
    for device in devices:
        if device.platform != "cpu":
            raise ValueError(
                f"{what} on devices of the platform {device.platform!r}, but slamb.jax computes in host memory: use "
                f"jax.devices('cpu')"
            )


def _devices_of(leaves: list[Any]) -> set[Any]:
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)]
    return set().union(*[array.devices() for array in arrays])


def _meshes_of(leaves: list[Any]) -> list[Any]:
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    return [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]


def _current_mesh() -> Any:
    """That of `jax.set_mesh`; without axes if there is none."""
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # within jax.jit
        return jax.sharding.get_abstract_mesh()


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
    _require_same_tree("gradients", gradients, params)
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


def integer_in(name: str, value: object, least: int, most: int) -> int:
    """
    :raises TypeError, ValueError: if it is none, or out of range
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, but it must be an integer") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, but it must be in [{least}, {most}]")
    return number


def _values_of_mask(name: str, mask: Mask, params: Tree) -> list[bool]:
    """
    :raises ValueError: if the mask is not a tree of bools like the parameters
    """
    if mask is None:
        return [True] * jax.tree.structure(params).num_leaves
    values = mask(params) if callable(mask) else mask
    _require_same_tree(name, values, params)
    leaves = jax.tree_util.tree_leaves_with_path(values)
    for path, value in leaves:
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{name}{jax.tree_util.keystr(path)} is {value!r}, but it must be True or False")
    return [bool(value) for _, value in leaves]


def _require_same_tree(name: str, tree: Tree, params: Tree) -> None:
    """
    :raises ValueError: names an array that only one of the trees has
    """
    structure = jax.tree.structure(params)
    if jax.tree.structure(tree) == structure:
        return

    def names_of(its: Tree) -> list[str]:
        return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(its)]

    own, expected = names_of(tree), names_of(params)
    missing, more = (sorted(set(a) - set(b)) for a, b in ((expected, own), (own, expected)))
    if missing:
        difference = f"has no {name}{missing[0]}" + (f" and lacks {len(missing) - 1} more" if len(missing) > 1 else "")
    elif more:
        difference = f"has {name}{more[0]}, which params has not"
    else:
        difference = f"is {_shortened(jax.tree.structure(tree))} in place of {_shortened(structure)}"
    raise ValueError(f"{name} must be a pytree as params is, but it {difference}")


def _shortened(structure: Any) -> str:
    text = str(structure)
    return text if len(text) <= 200 else text[:200] + "…"
