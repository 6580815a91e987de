"""Four devices of the processor are the ranks of all tests."""

import os

# XLA ends a program of which a device comes to a collective a minute after the others, as on a machine with much other work.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 --xla_cpu_collective_call_terminate_timeout_seconds=600"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((4,), ("ranks",))
