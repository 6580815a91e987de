"""Trainings of slamb.jax on made-up gradients, for the tests."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import slamb.jax
from oracle import Tensor

# Sizes that are multiples of nothing, more than a tile, fewer than the ranks, and one.
SHAPES = {"embedding": (101, 83), "matrix": (40, 31), "bias": (31,), "few": (3,), "scalar": ()}
TENSORS = [  # in the order of JAX's leaves: by name
    Tensor(31, decay=0.0, adapt=False),
    Tensor(101 * 83),
    Tensor(3),
    Tensor(40 * 31),
    Tensor(1, decay=0.0, compress=False),
]
MASK = {"embedding": True, "matrix": True, "bias": False, "few": True, "scalar": False}
ADAPT = {"embedding": True, "matrix": True, "bias": False, "few": True, "scalar": True}
COMPRESS = {"embedding": True, "matrix": True, "bias": True, "few": True, "scalar": False}
RATE = float(np.float32(0.01))

Tree = dict[str, np.ndarray]


def make_parameters(seed: int = 0, shapes: Any = None) -> Tree:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in (shapes or SHAPES).items()}


def make_gradients(steps: int, ranks: int = 4, seed: int = 1, shapes: Any = None) -> list[Tree]:
    """[steps], each a tree of [ranks, …]: a direction that all ranks share, and noise of each, of other sizes in each tensor. All
    are multiples of 2^-12, so their sums over ranks are exact in any order."""
    rng = np.random.default_rng(seed)
    all_steps = []
    common = {name: rng.normal(size=shape) for name, shape in (shapes or SHAPES).items()}
    for _ in range(steps):
        tree = {}
        for i, (name, shared) in enumerate(common.items()):
            noise = rng.normal(size=(ranks, *shared.shape))
            tree[name] = (np.round(4096 * 10.0 ** -(i % 3) * (0.3 * shared + noise)) / 4096).astype(np.float32)
        all_steps.append(tree)
    return all_steps


def make_optimizer(recipe: str, compressor: Optional[str], **options: Any) -> slamb.jax.Optimizer:
    """With the masks of TENSORS."""
    masks = {"mask": MASK, "compress": COMPRESS}
    if recipe.endswith("lamb"):
        masks["adapt"] = ADAPT
    if not recipe.startswith("one_bit"):
        masks["compressor"] = compressor
    return getattr(slamb.jax, recipe)(RATE, **{**masks, **options})


def place(tree: Any, mesh: jax.sharding.Mesh, spec: P = P()) -> Any:
    """On the mesh, in memory of JAX's own, so that it can be donated."""
    placed = jax.tree.map(lambda _: NamedSharding(mesh, spec), tree)
    return jax.jit(lambda t: jax.tree.map(jnp.array, t), out_shardings=placed)(tree)


def make_step(tx: slamb.jax.Optimizer, mesh: jax.sharding.Mesh, check_vma: bool = True, donate: bool = True) -> Any:
    """A compiled step(params, state, gradients): gradients [ranks, …]."""

    def step(params: Any, state: slamb.jax.State, gradients: Any) -> Any:
        own = jax.tree.map(lambda g: g[0], gradients)
        return tx.step(own, state, params)

    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), tx.specs, P("ranks")), out_specs=(P(), tx.specs), check_vma=check_vma
    )
    return jax.jit(mapped, donate_argnums=(0, 1) if donate else ())


def train(
    tx: slamb.jax.Optimizer, mesh: jax.sharding.Mesh, params: Tree, gradients: list[Tree], check_vma: bool = True
) -> tuple[list[Tree], list[slamb.jax.State]]:
    """Parameters, which are the same bits on all ranks, and the state after each step, as arrays of NumPy."""
    at = place(params, mesh)
    state = tx.init(at)
    step = make_step(tx, mesh, check_vma)
    history, states = [], []
    for its in gradients:
        at, state = step(at, state, place(its, mesh, P("ranks")))
        history.append(jax.tree.map(common_value, at))
        states.append(jax.tree.map(np.array, state))
    return history, states


def common_value(array: jax.Array) -> np.ndarray:
    """The value of an array that must have the same bits on all devices."""
    first, *others = [np.asarray(shard.data) for shard in array.addressable_shards]
    for other in others:
        assert first.tobytes() == other.tobytes(), "devices have different bits"
    return first


def tensors_of(tree: Tree) -> list[np.ndarray]:
    """In JAX's order of leaves."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def per_rank(tree: Tree) -> list[list[np.ndarray]]:
    """[ranks][tensors] of a tree of [ranks, …]."""
    leaves = tensors_of(tree)
    return [[leaf[rank] for leaf in leaves] for rank in range(len(leaves[0]))]


def moments_of(state_array: Any, tensors: list[Tensor]) -> list[np.ndarray]:
    """[tensors] of an array of a state, in which tensors begin at multiples of 16."""
    flat, first, parts = np.asarray(state_array), 0, []
    for tensor in tensors:
        parts.append(flat[first : first + tensor.size])
        first += 16 * -(-tensor.size // 16)
    return parts


def train_library(
    recipe: str,
    compressor: Optional[str],
    params: Tree,
    gradients: list[Tree],
    tensors: list[Tensor],
    warm_up: int = 1,
    bound: float = 0.0,
    seed: int = 0,
    max_norm: float = float("inf"),
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The same training by slamb's own optimizers: all parameters after each step, m and v, each end to end."""
    leaves = tensors_of(params)
    ranks = len(tensors_of(gradients[0])[0])
    data = [np.concatenate([leaf.ravel() for leaf in leaves])]
    for step in gradients:
        for own in per_rank(step):
            data.append(np.concatenate([g.ravel() for g in own]))
    words = [recipe, str(compressor), ranks, len(gradients), warm_up, bound, seed, max_norm, repr(RATE)]
    words += [f"{t.size}:{t.decay}:{int(t.adapt)}:{int(t.compress)}" for t in tensors]
    done = subprocess.run(
        [os.environ["SLAMB_JAX_REFERENCE"], *map(str, words)],
        input=np.concatenate(data).astype(np.float32).tobytes(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    numbers = np.frombuffer(done.stdout, np.float32).reshape(len(gradients) + 2, -1)
    return list(numbers[:-2]), numbers[-2], numbers[-1]


def joined(tree: Tree) -> np.ndarray:
    """All elements, end to end."""
    return np.concatenate([leaf.ravel() for leaf in tensors_of(tree)])
