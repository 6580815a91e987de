"""Optimizers for JAX whose ranks exchange compressed gradients or momenta: `adamw`, `lamb`, `one_bit_adam` and `one_bit_lamb`.

An optimizer has the functions of one of optax, and `step`, which updates parameters in place:

    tx = slamb.jax.lamb(1e-2, compressor="int4", axis_name="ranks")
    state = tx.init(params)
    params, state = tx.step(gradients, state, params)  # in jax.shard_map over the axis "ranks"

docs/how-to/jax.md has a whole program.
"""

from slamb.jax._optimizers import adamw, lamb, one_bit_adam, one_bit_lamb
from slamb.jax._step import Optimizer, State

__all__ = ["Optimizer", "State", "adamw", "lamb", "one_bit_adam", "one_bit_lamb"]
