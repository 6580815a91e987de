"""Errors: each is raised when the program is traced, and says what would be right."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import slamb.jax
from training import ADAPT, MASK, make_gradients, make_optimizer, make_parameters, make_step, place, train


def trace(tx, mesh, params=None, state=None, gradients=None, specs=None, check_vma=True):
    """Traces a step; nothing runs."""
    params = place(make_parameters() if params is None else params, mesh)
    state = tx.init(params) if state is None else state
    gradients = place(make_gradients(1)[0] if gradients is None else gradients, mesh, P("ranks"))

    def step(params, state, gradients):
        return tx.step(jax.tree.map(lambda g: g[0], gradients), state, params)

    specs = tx.specs if specs is None else specs
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), specs, P("ranks")), out_specs=(P(), specs), check_vma=check_vma)
    jax.jit(mapped).lower(params, state, gradients)


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        ({"compressor": "int5"}, ValueError, "compressor is 'int5', but it must be one of (None, 'sign', 'int8', 'int4')"),
        ({"learning_rate": "fast"}, TypeError, "learning_rate is 'fast', but it must be a finite float32 ≥ 0, or a function"),
        ({"learning_rate": None}, TypeError, "learning_rate is None, but it must be a finite float32 ≥ 0, or a function"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate is -1.0, but it must be a finite float32 ≥ 0, or a function"),
        ({"learning_rate": 1e39}, ValueError, "learning_rate is 1e+39, but it must be a finite float32 ≥ 0, or a function"),
        ({"b1": 1.0}, ValueError, "b1 is 1.0, but it must be in [0, 1)"),
        ({"b2": np.nan}, ValueError, "b2 is nan, but it must be in [0, 1)"),
        ({"eps": 0.0}, ValueError, "eps is 0.0, but it must be a float32 of at least 1.2e-38"),
        ({"weight_decay": np.nan}, ValueError, "weight_decay is nan, but it must be a finite float32 ≥ 0"),
        ({"weight_decay": 1e39}, ValueError, "weight_decay is 1e+39, but it must be a finite float32 ≥ 0"),
        ({"max_gradient_norm": 0}, ValueError, "max_gradient_norm is 0, but it must be a finite float32 > 0, or None"),
        ({"max_gradient_norm": np.inf}, ValueError, "max_gradient_norm is inf, but it must be a finite float32 > 0, or None"),
        ({"axis_name": ("a", "b")}, TypeError, "axis_name is ('a', 'b'), but it must be the name of one axis"),
        ({"seed": -1}, ValueError, "seed is -1, but it must be in [0, 18446744073709551615]"),
        ({"seed": 1.5}, TypeError, "seed is 1.5, but it must be an integer"),
        ({"threads": 0}, ValueError, "threads is 0, but it must be in [1, 4096]"),
    ],
)
def test_arguments(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        slamb.jax.lamb(**{"learning_rate": 0.01, **arguments})


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        ({"warm_up_steps": 0}, ValueError, "warm_up_steps is 0, but it must be in [1, 2147483647]"),
        ({"update_bound": 0}, ValueError, "update_bound is 0, but it must be a finite float32 > 0, or 'adam', or None for no bound"),
        ({"update_bound": np.inf}, ValueError, "update_bound is inf, but it must be a finite float32 > 0, or 'adam', or None"),
        ({"update_bound": "lamb"}, TypeError, "update_bound is 'lamb', but it must be a finite float32 > 0, or 'adam', or None"),
        ({"compressor": "int4"}, TypeError, "unexpected keyword argument 'compressor'"),
    ],
)
def test_arguments_of_one_bit_optimizers(arguments, kind, message):
    for make in (slamb.jax.one_bit_adam, slamb.jax.one_bit_lamb):
        with pytest.raises(kind, match=re.escape(message)):
            make(0.01, **{"warm_up_steps": 10, **arguments})


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mask": {"matrix": True}}, "mask must be a pytree as params is, but it has no mask['bias'] and lacks 3 more"),
        ({"adapt": {**ADAPT, "more": True}}, "adapt must be a pytree as params is, but it has adapt['more'], which params has not"),
        ({"mask": {**MASK, "bias": 1}}, "mask['bias'] is 1, but it must be True or False"),
        ({"compress": lambda params: 1}, "compress must be a pytree as params is, but it has no compress['bias'] and lacks 4 more"),
    ],
)
def test_masks_are_checked_before_the_first_step(mesh, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        slamb.jax.lamb(0.01, **arguments).init(make_parameters(), mesh)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.int32])
def test_parameters_of_another_type(mesh, dtype):
    params = make_parameters()
    params["matrix"] = jnp.zeros((3, 4), dtype)
    message = f"params['matrix'] is {jnp.dtype(dtype).name}, but slamb.jax takes float32 alone"
    with pytest.raises(TypeError, match=re.escape(message)):
        make_optimizer("lamb", "int4").init(params, mesh)


def test_no_parameters(mesh):
    with pytest.raises(ValueError, match="params has no arrays"):
        slamb.jax.lamb(0.01).init({}, mesh)


def test_gradients_that_do_not_fit(mesh):
    tx = make_optimizer("lamb", "int4")
    gradients = make_gradients(1)[0]
    with pytest.raises(TypeError, match=re.escape("gradients['bias'] is bfloat16, but slamb.jax takes float32 alone")):
        trace(tx, mesh, gradients={**gradients, "bias": jnp.asarray(gradients["bias"], jnp.bfloat16)})
    with pytest.raises(ValueError, match=re.escape("gradients['bias'] has shape (30,), but params['bias'] has (31,)")):
        trace(tx, mesh, gradients={**gradients, "bias": gradients["bias"][:, 1:]})
    del gradients["bias"]
    with pytest.raises(ValueError, match=re.escape("gradients must be a pytree as params is, but it has no gradients['bias']")):
        trace(tx, mesh, gradients=gradients)


def test_a_tree_of_other_containers(mesh):
    tx = slamb.jax.lamb(0.01, mask=[True, True])
    with pytest.raises(ValueError, match=re.escape("but it is PyTreeDef([*, *]) in place of PyTreeDef((*, *))")):
        tx.init((np.zeros(3, np.float32), np.zeros(4, np.float32)), mesh)


def test_the_state_of_another_optimizer(mesh):
    params = place(make_parameters(), mesh)
    dense = make_optimizer("lamb", None)
    with pytest.raises(ValueError, match=re.escape("state.worker_error is float32[0, 0] on this rank, but for these parameters")):
        trace(make_optimizer("lamb", "int4"), mesh, state=dense.init(params), specs=dense.specs)
    with pytest.raises(TypeError, match="the state is a tuple, but it must be the State that init"):
        trace(make_optimizer("lamb", "int4"), mesh, state=(), specs=())
    alone = make_optimizer("lamb", None, axis_name=None)
    state = alone.init(make_parameters())._replace(count=3)
    with pytest.raises(ValueError, match=re.escape("state.count is int[] on this rank, but for these parameters, options and 1")):
        alone.step(make_parameters(), state, make_parameters())


def test_the_state_of_another_number_of_ranks(mesh):
    tx = make_optimizer("lamb", "int4")
    two = jax.make_mesh((2,), ("ranks",), devices=jax.devices()[:2])
    of_two = jax.tree.map(np.array, tx.init(place(make_parameters(), two)))
    placed = jax.tree.map(lambda a: place(a, mesh), of_two)
    # As it is in a program whose specs do not cut the errors; that of one row for each of four ranks cannot be passed at all.
    specs = jax.tree.map(lambda _: P(), tx.specs)
    with pytest.raises(ValueError, match=re.escape("state.worker_error is float32[2, 9696] on this rank")) as found:
        trace(tx, mesh, state=placed, specs=specs, check_vma=False)
    assert "in_specs=(…, tx.specs, …)" in str(found.value)
    doubled = of_two._replace(**{name: np.repeat(getattr(of_two, name), 2, axis=0) for name in ("worker_error", "server_error")})
    with pytest.raises(ValueError, match=re.escape("state.server_error is float32[1, ")):
        trace(tx, mesh, state=slamb.jax.State(*[place(a, mesh, s) for a, s in zip(doubled, tx.specs)]))


def test_a_step_without_the_axis():
    tx = make_optimizer("lamb", "int4")
    mesh = jax.make_mesh((4,), ("devices",))
    params = make_parameters()
    with pytest.raises(ValueError, match=re.escape("init() found no mesh with the axis 'ranks'; pass mesh=")):
        tx.init(params)
    with pytest.raises(ValueError, match=re.escape("The axes of the given mesh are ('devices',)")):
        tx.init(params, mesh)
    with pytest.raises(TypeError, match="mesh is 'ranks', but it must be a jax.sharding.Mesh"):
        tx.init(params, "ranks")
    with pytest.raises(TypeError, match="ranks is 2.5, but it must be an integer"):
        tx.sent_bytes(params, 2.5)
    gradients = jax.tree.map(lambda g: g[0], make_gradients(1)[0])
    with pytest.raises(ValueError, match=re.escape("step() was called without the axis 'ranks', over which ranks exchange")):
        jax.jit(tx.step)(gradients, make_optimizer("lamb", None, axis_name=None).init(params), params)


def test_gradients_that_jax_has_added_up(mesh):
    tx = make_optimizer("lamb", "int4")
    params, batch = place(make_parameters(), mesh), place(make_gradients(1)[0], mesh, P("ranks"))

    def step(params, state, batch, local):
        def loss(params):
            return sum(jnp.sum(p * b[0]) for p, b in zip(jax.tree.leaves(params), jax.tree.leaves(batch)))

        gradients = jax.grad(loss)(tx.local(params) if local else params)
        return tx.step(gradients, state, params)

    def traced(local, **options):
        mapped = jax.shard_map(
            lambda *its: step(*its, local),
            mesh=mesh,
            in_specs=(P(), tx.specs, P("ranks")),
            out_specs=(P(), tx.specs),
            **options,
        )
        return jax.jit(mapped)(params, tx.init(params), batch)[0]

    with pytest.raises(ValueError, match=re.escape("gradients['bias'] is the same on all ranks of the axis 'ranks'")) as found:
        traced(local=False)
    assert "Take it at tx.local(params)" in str(found.value)
    # Without the check of varying axes, and with tx.local, gradients are the rank's own: here the batch.
    expected, _ = make_step(tx, mesh)(place(make_parameters(), mesh), tx.init(params), batch)
    for its in (traced(local=True), traced(local=True, check_vma=False), traced(local=False, check_vma=False)):
        assert jax.tree.all(jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), its, expected))


def test_a_learning_rate_that_is_no_scalar(mesh):
    with pytest.raises(ValueError, match=re.escape("the learning rate has shape (2,), but it must be a scalar")):
        trace(slamb.jax.lamb(lambda count: jnp.ones(2)), mesh)


def test_a_learning_rate_that_ranks_do_not_share(mesh):
    tx = slamb.jax.lamb(lambda count: 0.01 * jax.lax.axis_index("ranks"), compressor="int4")
    with pytest.raises(ValueError, match=re.escape("learning_rate may differ along the axis 'ranks' of the mesh")):
        trace(tx, mesh)


@pytest.mark.parametrize("recipe, compressor", [("lamb", None), ("adamw", "int8"), ("one_bit_adam", None)])
@pytest.mark.parametrize("rate, said", [(jnp.nan, "-?nan"), (jnp.inf, "inf"), (-0.01, "-0[.]01")])
def test_a_schedule_that_returns_no_learning_rate(mesh, recipe, compressor, rate, said):
    options = {"warm_up_steps": 1} if recipe == "one_bit_adam" else {"compressor": compressor}
    tx = getattr(slamb.jax, recipe)(lambda count: jnp.float32(rate), **options)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"the learning rate is {said}0*, but it must be a finite number"):
        train(tx, mesh, make_parameters(), make_gradients(1))


def test_devices_that_are_not_the_host(monkeypatch):
    device = types.SimpleNamespace(platform="cuda")
    other = types.SimpleNamespace(shape={"ranks": 1}, devices=np.array([device]))
    with pytest.raises(ValueError, match="the mesh is on devices of the platform 'cuda', but slamb.jax computes in host memory"):
        slamb.jax.lamb(0.01).init(make_parameters(), other)
    monkeypatch.setattr(slamb.jax._step, "_devices_of", lambda leaves: [device])
    with pytest.raises(ValueError, match="params are on devices of the platform 'cuda', but slamb.jax computes in host memory"):
        slamb.jax.lamb(0.01, axis_name=None).init(make_parameters())


@pytest.mark.parametrize(
    "what, message",
    [
        ("params", "params['bias'] may differ along the axis 'ranks' of the mesh, but must be equal on its devices; pass what"),
        ("gradients", "gradients['bias'] may differ along the axis 'model' of the mesh, but must be equal on its devices; average"),
        ("state", "state.momentum may differ along the axis 'model' of the mesh, but must be equal on its devices; pass what"),
    ],
)
def test_values_that_differ_along_other_axes(what, message):
    both = jax.make_mesh((2, 2), ("model", "ranks"))
    tx = make_optimizer("lamb", "int4")
    params, gradients = place(make_parameters(), both), place(make_gradients(1, ranks=2)[0], both, P("ranks"))

    def step(params, state, gradients):
        own = jax.tree.map(lambda g: g[0], gradients)
        if what == "params":
            params = tx.local(params)
        if what == "gradients":
            own = jax.tree.map(lambda g: jax.lax.pcast(g, "model", to="varying"), own)
        if what == "state":
            state = state._replace(momentum=jax.lax.pcast(state.momentum, "model", to="varying"))
        return tx.step(own, state, params)

    mapped = jax.shard_map(step, mesh=both, in_specs=(P(), tx.specs, P("ranks")), out_specs=(P(), tx.specs))
    with pytest.raises(ValueError, match=re.escape(message)):
        jax.jit(mapped).lower(params, tx.init(params), gradients)


def test_a_single_rank_within_the_shard_map_of_others(mesh):
    tx = make_optimizer("lamb", None, axis_name=None)
    params, gradients = place(make_parameters(), mesh), place(make_gradients(1)[0], mesh, P("ranks"))
    mapped = jax.shard_map(
        lambda p, s, g: tx.step(jax.tree.map(lambda x: x[0], g), s, p), mesh=mesh, in_specs=(P(), P(), P("ranks")), out_specs=P()
    )
    with pytest.raises(ValueError, match=re.escape("gradients['bias'] may differ along the axis 'ranks' of the mesh")):
        jax.jit(mapped).lower(params, tx.init(params), gradients)
