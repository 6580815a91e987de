"""One of two processes that train together, with two devices each: two_processes.py RANK PORT RECIPE OUTPUT"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_collective_call_terminate_timeout_seconds=600"

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, port, recipe, output = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
jax.distributed.initialize(f"localhost:{port}", 2, rank)

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

from training import joined, make_gradients, make_optimizer, make_parameters, make_step

mesh = jax.make_mesh((4,), ("ranks",))
tx = make_optimizer(recipe, "int4", **({"warm_up_steps": 2} if "one_bit" in recipe else {}))


def placed(tree, spec):
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(lambda a: jax.make_array_from_callback(a.shape, sharding, lambda index: a[index]), tree)


at = placed(make_parameters(), P())
state = tx.init(at)
step = make_step(tx, mesh)
for gradients in make_gradients(5):
    at, state = step(at, state, placed(gradients, P("ranks")))
np.save(output, joined(jax.tree.map(lambda a: np.asarray(a.addressable_shards[1].data), at)))
