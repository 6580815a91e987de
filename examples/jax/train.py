"""Trains a small network on four devices of the processor: python examples/jax/train.py [none | sign | int8 | int4]"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import slamb.jax
from jax.sharding import NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("ranks",))

rng = np.random.default_rng(1)
teacher = rng.normal(size=(64, 10))
params = {
    "hidden": (rng.normal(size=(64, 256)) / 8).astype(np.float32),
    "hidden_bias": np.zeros(256, np.float32),
    "out": (rng.normal(size=(256, 10)) / 16).astype(np.float32),
}


def batch_of(size):
    x = rng.normal(size=(size, 64))
    return x.astype(np.float32), (x @ teacher).argmax(1)


def logits_of(params, x):
    return jax.nn.relu(x @ params["hidden"] + params["hidden_bias"]) @ params["out"]


def loss_of(params, batch):
    x, label = batch
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits_of(params, x)), label[:, None], 1))


compressor = sys.argv[1] if len(sys.argv) > 1 else "int4"
tx = slamb.jax.lamb(0.02, compressor=None if compressor == "none" else compressor, axis_name="ranks")


def train_step(params, state, batch):
    loss, gradients = jax.value_and_grad(loss_of)(tx.local(params), batch)
    params, state = tx.step(gradients, state, params)
    return params, state, loss[None]


specs = (P(), tx.specs, P("ranks"))
step = jax.jit(jax.shard_map(train_step, mesh=mesh, in_specs=specs, out_specs=specs), donate_argnums=(0, 1))

params = jax.device_put(params, NamedSharding(mesh, P()))
state = tx.init(params)
for _ in range(300):  # 64 examples for each device
    batch = jax.device_put(batch_of(256), NamedSharding(mesh, P("ranks")))
    params, state, loss = step(params, state, batch)

x, label = batch_of(4096)
correct = np.mean(np.argmax(logits_of(jax.device_get(params), x), 1) == label)
print(f"{compressor}: loss {loss.mean():.3f}, {100 * correct:.1f} % correct, {tx.sent_bytes(params, 4)} bytes sent per rank and step")
