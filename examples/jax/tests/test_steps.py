"""What a step does beside its numbers: skipped steps, saved states, memory, one rank, and use with optax."""

import math
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import slamb.jax
from oracle import pieces_of
from training import (
    RATE,
    TENSORS,
    common_value,
    joined,
    make_gradients,
    make_optimizer,
    make_parameters,
    make_step,
    place,
    train,
)

# The warm-up of a 1-bit optimizer has the first two steps of the trainings below.
OPTIMIZERS = [
    *((recipe, compressor) for recipe in ("adamw", "lamb") for compressor in (None, "sign", "int8", "int4")),
    ("one_bit_adam", None),
    ("one_bit_lamb", None),
]
COMPRESSING = [(recipe, compressor) for recipe, compressor in OPTIMIZERS if compressor is not None or "one_bit" in recipe]


def make(recipe, compressor):
    return make_optimizer(recipe, compressor, **({"warm_up_steps": 2} if "one_bit" in recipe else {}))


def same(a, b):
    """True if two trees have the same bits."""
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("recipe, compressor", OPTIMIZERS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_value_that_is_not_finite_on_one_rank_skips_the_step_on_all(mesh, recipe, compressor, value):
    params, gradients = make_parameters(), make_gradients(5)
    gradients[2]["matrix"][3, 7, 5] = value  # of rank 3; the square of 3e38 is infinite
    history, states = train(make(recipe, compressor), mesh, params, gradients)
    assert same(history[1], history[2]) and not same(history[2], history[3])
    assert same(states[1]._replace(skipped=0), states[2]._replace(skipped=0))
    assert [int(state.skipped) for state in states] == [0, 0, 1, 1, 1]
    assert [int(state.count) for state in states] == [1, 2, 2, 3, 4]
    del gradients[2]
    without, _ = train(make(recipe, compressor), mesh, params, gradients)
    assert same(without[-1], history[-1])


@pytest.mark.parametrize("recipe, compressor", OPTIMIZERS)
def test_a_saved_state_continues_with_the_same_bits(mesh, tmp_path, recipe, compressor):
    params, gradients = make_parameters(), make_gradients(6)
    tx = make(recipe, compressor)
    whole, _ = train(tx, mesh, params, gradients)
    history, states = train(tx, mesh, params, gradients[:3])
    assert (np.abs(states[-1].worker_error).max(initial=0.0) > 0) == ((recipe, compressor) in COMPRESSING)
    np.savez(tmp_path / "state.npz", **states[-1]._asdict())
    saved = np.load(tmp_path / "state.npz")
    state = slamb.jax.State(**{name: place(saved[name], mesh, spec) for name, spec in tx.specs._asdict().items()})
    at, step = place(history[-1], mesh), make_step(tx, mesh)
    for its in gradients[3:]:
        at, state = step(at, state, place(its, mesh, P("ranks")))
    assert same(jax.tree.map(common_value, at), whole[-1])
    if (recipe, compressor) in COMPRESSING:  # the errors are needed
        state = slamb.jax.State(**{name: place(saved[name], mesh, spec) for name, spec in tx.specs._asdict().items()})
        state = state._replace(worker_error=place(np.zeros_like(saved["worker_error"]), mesh, P("ranks")))
        at, _ = step(place(history[-1], mesh), state, place(gradients[3], mesh, P("ranks")))
        assert not same(jax.tree.map(common_value, at), whole[3])


def buffers_of(tree):
    return [shard.data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]


@pytest.mark.parametrize("recipe, compressor", OPTIMIZERS)
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_donated_step_writes_in_place(mesh, recipe, compressor, check_vma):
    tx, gradients = make(recipe, compressor), make_gradients(2)
    at = place(make_parameters(), mesh)
    state = tx.init(at)
    step = make_step(tx, mesh, check_vma)
    compiled = step.lower(at, state, place(gradients[0], mesh, P("ranks"))).compile()
    shapes = re.findall(r"= f32\[([\d,]*)\]\S* copy\(", compiled.as_text())
    copied = sorted(size for shape in shapes if (size := math.prod(map(int, filter(None, shape.split(","))))) > 1)
    # 1-bit optimizers copy the gradients, where the program branches between codes and sums.
    assert copied == (sorted(t.size for t in TENSORS if t.size > 1) if "one_bit" in recipe else [])
    lasting = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves((at, state)))
    # Each array is padded.
    assert compiled.memory_analysis().alias_size_in_bytes >= lasting
    # Beside these there are only the mean gradient or copies of gradients, the mean of a chunk, and messages, each padded.
    message = (tx.sent_bytes(at, 4) - 6) // 6 if (recipe, compressor) in COMPRESSING else 0
    floats = sum(t.size for t in TENSORS) + state.server_error.shape[1]
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * floats + 14 * message + 4096
    for its in gradients:
        before, old = buffers_of((at, state)), (at, state)
        at, state = step(at, state, place(its, mesh, P("ranks")))
        jax.block_until_ready(at)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old) if leaf.size > 0)
        sizes = [leaf.size for leaf in jax.tree.leaves((at, state)) for _ in leaf.addressable_shards]
        assert [b for b, size in zip(before, sizes, strict=True) if size > 0] == [
            b for b, size in zip(buffers_of((at, state)), sizes, strict=True) if size > 0
        ]


@pytest.mark.parametrize("compressor", [None, "int4"])
def test_a_step_without_donation_leaves_its_arguments(mesh, compressor):
    tx, gradients = make_optimizer("lamb", compressor), make_gradients(1)
    at = place(make_parameters(), mesh)
    state = tx.init(at)
    step = make_step(tx, mesh, donate=False)
    before = jax.tree.map(np.array, (at, state))
    first = step(at, state, place(gradients[0], mesh, P("ranks")))
    assert same(before, (at, state)) and not same(before[0], first[0])
    assert same(first, step(at, state, place(gradients[0], mesh, P("ranks"))))


@pytest.mark.parametrize("recipe, compressor", OPTIMIZERS)
def test_the_check_of_varying_axes_changes_no_bits(mesh, recipe, compressor):
    params, gradients = make_parameters(), make_gradients(3)
    checked, _ = train(make(recipe, compressor), mesh, params, gradients, check_vma=True)
    unchecked, _ = train(make(recipe, compressor), mesh, params, gradients, check_vma=False)
    assert same(checked, unchecked)


@pytest.mark.parametrize("recipe", ["adamw", "lamb"])
def test_one_rank_compresses_nothing_and_is_optax(recipe):
    params = make_parameters()
    gradients = [jax.tree.map(lambda g: g[0], its) for its in make_gradients(6, ranks=1)]
    ours = getattr(slamb.jax, recipe)(RATE, weight_decay=0.05, compressor="sign", axis_name=None)
    theirs = getattr(optax, recipe)(RATE, weight_decay=0.05)
    at, its = params, params
    state, other = ours.init(params), theirs.init(params)
    step = jax.jit(ours.step, donate_argnums=(1, 2))
    for gradient in gradients:
        at, state = step(gradient, state, jax.tree.map(jnp.array, at))
        updates, other = theirs.update(gradient, other, its)
        its = optax.apply_updates(its, updates)
    np.testing.assert_allclose(joined(at), joined(its), rtol=0, atol=3e-6)
    assert np.abs(joined(at) - joined(params)).max() > 0.02
    assert state.worker_error.shape == (1, 0) and int(state.count) == 6


@pytest.mark.parametrize("compressor", [None, "sign"])
def test_a_mesh_of_one_device_has_the_bits_of_no_mesh(compressor):
    alone = jax.make_mesh((1,), ("ranks",), devices=jax.devices()[:1])
    params, gradients = make_parameters(), make_gradients(3, ranks=1)
    history, _ = train(make_optimizer("lamb", compressor), alone, params, gradients)
    tx = make_optimizer("lamb", None, axis_name=None)
    at, state = params, tx.init(params)
    for its in gradients:
        at, state = jax.jit(tx.step)(jax.tree.map(lambda g: g[0], its), state, at)
    assert same(at, history[-1])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("compressor", ["sign", "int4"])
def test_ranks_may_be_one_of_several_axes(ranks, compressor):
    # Devices along "model" hold copies, and compute the same.
    params, gradients = make_parameters(), make_gradients(3, ranks=ranks)
    few = jax.make_mesh((ranks,), ("ranks",), devices=jax.devices()[:ranks])
    expected, _ = train(make_optimizer("lamb", compressor), few, params, gradients)
    if ranks == 2:
        both = jax.make_mesh((2, 2), ("model", "ranks"))
        history, _ = train(make_optimizer("lamb", compressor), both, params, gradients)
        assert same(history, expected)


def test_update_returns_what_to_add(mesh):
    tx, gradients = make_optimizer("lamb", "int8"), make_gradients(1)
    at = place(make_parameters(), mesh)
    state = tx.init(at)

    def both(params, state, its):
        own = jax.tree.map(lambda g: g[0], its)
        after, _ = tx.step(own, state, params)
        updates, _ = tx.update(own, state, params)
        return after, optax.apply_updates(params, updates)

    mapped = jax.shard_map(both, mesh=mesh, in_specs=(P(), tx.specs, P("ranks")), out_specs=P())
    after, sums = jax.jit(mapped)(at, state, place(gradients[0], mesh, P("ranks")))
    np.testing.assert_allclose(joined(after), joined(sums), rtol=0, atol=5e-7)


def test_a_schedule_reads_the_number_of_steps_taken(mesh):
    params, gradients = make_parameters(), make_gradients(4)
    gradients[1]["bias"][0, 0] = np.nan  # a skipped step has no part in it
    schedule = optax.linear_schedule(0.02, 0.0, 10)
    tx = slamb.jax.adamw(schedule, weight_decay=0.0, compressor="int8")
    history, states = train(tx, mesh, params, gradients)
    rates = [0.02, 0.02, 0.018, 0.016]
    expected = joined(params)
    for parameters, rate, taken in zip(history, rates, [1, 0, 1, 1]):
        now = joined(parameters)
        moved = np.abs(now - expected).max() / rate
        assert (0.9 < moved < 1.6) if taken else moved == 0  # AdamW's first steps are as long as the rate
        expected = now
    assert int(states[-1].count) == 3


def test_init_within_shard_map_is_init_outside(mesh):
    tx = make_optimizer("lamb", "int4")
    params = place(make_parameters(), mesh)
    inside = jax.jit(jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=tx.specs))(params)
    outside = tx.init(params)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), inside) == jax.tree.map(lambda a: (a.shape, a.dtype), outside)
    assert all(a.sharding.is_equivalent_to(b.sharding, a.ndim) for a, b in zip(inside, outside))
    for its in (mesh, jax.make_mesh((4,), ("ranks",), axis_types=(AxisType.Auto,))):
        with jax.set_mesh(its):
            for state in (tx.init(make_parameters()), jax.jit(tx.init)(make_parameters())):
                assert same(state, outside)
                assert all(a.sharding.is_equivalent_to(b.sharding, a.ndim) for a, b in zip(state, outside))
    assert tx.init(make_parameters(), mesh).worker_error.sharding.spec == P("ranks")
    abstract = jax.eval_shape(lambda p: tx.init(p, mesh), params)
    assert abstract.momentum.shape == outside.momentum.shape
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
    assert same(tx.init(shapes, mesh), outside)


@pytest.mark.parametrize("compressor", [None, "sign", "int4"])
def test_several_steps_in_one_program_have_the_bits_of_single_ones(mesh, compressor):
    params, gradients = make_parameters(), make_gradients(4)
    tx = make_optimizer("lamb", compressor)
    history, _ = train(tx, mesh, params, gradients)
    at = place(params, mesh)

    def steps(params, state, all_gradients):
        def step(carry, its):
            return tx.step(jax.tree.map(lambda g: g[0], its), carry[1], carry[0]), None

        return jax.lax.scan(step, (params, state), all_gradients)[0]

    stacked = jax.tree.map(lambda *its: np.stack(its), *gradients)
    mapped = jax.shard_map(steps, mesh=mesh, in_specs=(P(), tx.specs, P(None, "ranks")), out_specs=(P(), tx.specs))
    at, _ = jax.jit(mapped, donate_argnums=(0, 1))(at, tx.init(at), place(stacked, mesh, P(None, "ranks")))
    assert same(jax.tree.map(common_value, at), history[-1])


@pytest.mark.parametrize("recipe", ["one_bit_adam", "one_bit_lamb"])
def test_one_rank_of_a_one_bit_optimizer_compresses_nothing(recipe):
    # With one rank the received momentum is its own: the numbers are those of ranks with equal gradients and no compression.
    params, gradients = make_parameters(), make_gradients(6, ranks=1)
    tx = make_optimizer(recipe, None, warm_up_steps=2, axis_name=None)
    at, state, step = params, tx.init(params), jax.jit(tx.step)
    momentum = np.zeros(state.momentum.shape, np.float64)
    for its in gradients:
        own = jax.tree.map(lambda g: g[0], its)
        at, state = step(own, state, at)
        flat = [np.pad(g.ravel(), (0, -g.size % 16)) for g in jax.tree.leaves(own)]
        momentum = 0.9 * momentum + 0.1 * np.concatenate(flat)
    assert int(state.frozen_at) == 2 and state.worker_error.size == 0
    np.testing.assert_allclose(state.momentum, momentum, rtol=0, atol=1e-6)
    assert np.abs(joined(at) - joined(params)).max() > 0.02


def test_a_warm_up_that_is_shorter_after_a_restart_ends_with_the_next_step(mesh):
    params, gradients = make_parameters(), make_gradients(5)
    history, states = train(make_optimizer("one_bit_lamb", None, warm_up_steps=9), mesh, params, gradients[:3])
    tx = make_optimizer("one_bit_lamb", None, warm_up_steps=2)
    state = slamb.jax.State(*[place(array, mesh, spec) for array, spec in zip(states[-1], tx.specs)])
    at, step = place(history[-1], mesh), make_step(tx, mesh)
    for its, frozen_at in zip(gradients[3:], [4, 4]):
        at, state = step(at, state, place(its, mesh, P("ranks")))
        assert int(state.frozen_at) == frozen_at
    expected, _ = train(make_optimizer("one_bit_lamb", None, warm_up_steps=4), mesh, params, gradients)
    assert same(jax.tree.map(common_value, at), expected[-1])


@pytest.mark.parametrize("recipe", ["lamb", "one_bit_lamb"])
def test_two_processes_have_the_bits_of_one(mesh, tmp_path, recipe):
    tx = make_optimizer(recipe, "int4", **({"warm_up_steps": 2} if "one_bit" in recipe else {}))
    expected, _ = train(tx, mesh, make_parameters(), make_gradients(5))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("two_processes.py")
    outputs = [tmp_path / f"{rank}.npy" for rank in range(2)]
    words = [[sys.executable, script, str(rank), str(port), recipe, output] for rank, output in enumerate(outputs)]
    processes = [subprocess.Popen(its, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for its in words]
    try:
        printed = [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(printed)
    for output in outputs:
        assert np.load(output).tobytes() == joined(expected[-1]).tobytes()


def test_sent_bytes_are_those_of_the_formulas(mesh):
    # 2 (N − 1) M + 8 n_w (N − 1)/N: one_bit_exchange.md (14), with M as (13) and one tensor of one element sent as a float
    params = make_parameters()
    n = sum(t.size for t in TENSORS if t.compress)
    pieces, codes = pieces_of(TENSORS, 4)
    for compressor, bits in (("sign", 1), ("int8", 8), ("int4", 4)):
        scales = [sum(-(-p.count // 128) for p in pieces if p.owner == rank) for rank in range(4)] if bits > 1 else [1]
        message = 128 * math.ceil((16 + 16 * math.ceil(max(scales) / 4) + bits / 8 * codes) / 128)
        assert make_optimizer("lamb", compressor).sent_bytes(params, 4) == 2 * 3 * message + 6
        assert make_optimizer("lamb", compressor).sent_bytes(params, 1) == 0
    assert make_optimizer("lamb", None).sent_bytes(params, 4) == 6 * (n + 1)


@pytest.mark.parametrize("bound", [0.5, None])
def test_the_bound_of_updates(mesh, bound):
    params, gradients = make_parameters(), make_gradients(4)
    tx = slamb.jax.one_bit_adam(RATE, weight_decay=0.0, warm_up_steps=2, update_bound=bound)
    history, _ = train(tx, mesh, params, gradients)
    moved = np.abs(joined(history[3]) - joined(history[2])).max() / RATE
    assert moved == pytest.approx(0.5, rel=1e-3) if bound == 0.5 else moved > 10


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("recipe, compressor", OPTIMIZERS)
def test_another_axis_may_be_automatic(kind, recipe, compressor):
    tx = make(recipe, compressor)
    params, gradients = make_parameters(), make_gradients(4, ranks=2)
    two = jax.make_mesh((2,), ("ranks",), devices=jax.devices()[:2])
    expected, _ = train(tx, two, params, gradients)
    both = jax.make_mesh((2, 2), ("ranks", "model"), axis_types=(kind, kind))
    step = jax.jit(
        jax.shard_map(
            lambda params, state, its: tx.step(jax.tree.map(lambda g: g[0], its), state, params),
            mesh=both,
            in_specs=(P(), tx.specs, P("ranks")),
            out_specs=(P(), tx.specs),
            axis_names={"ranks"},
        )
    )
    at = place(params, both)
    state = tx.init(at)
    for its in gradients:
        at, state = step(at, state, place(its, both, P("ranks")))
    assert joined(jax.tree.map(common_value, at)).tobytes() == joined(expected[-1]).tobytes()


@pytest.mark.parametrize("recipe, compressor", OPTIMIZERS)
def test_a_step_is_compiled_once(recipe, compressor):
    mesh = jax.make_mesh((4,), ("ranks",), axis_types=(AxisType.Auto,))
    tx = make(recipe, compressor)
    step = make_step(tx, mesh)
    params = place(make_parameters(), mesh)
    state = tx.init(params)
    for its in make_gradients(3):
        params, state = step(params, state, place(its, mesh, P("ranks")))
    assert step._cache_size() == 1


def test_masks_may_be_of_numpy(mesh):
    by_rank = make_optimizer("lamb", "int4", mask=lambda params: jax.tree.map(lambda p: np.greater(p.ndim, 1), params))
    by_name = make_optimizer("lamb", "int4", mask={name: np.ndim(value) > 1 for name, value in make_parameters().items()})
    one, other = (train(tx, mesh, make_parameters(), make_gradients(2))[0] for tx in (by_rank, by_name))
    assert joined(one[-1]).tobytes() == joined(other[-1]).tobytes()


def test_the_learning_rate_may_be_an_array_of_the_program(mesh):
    params, gradients = place(make_parameters(), mesh), make_gradients(1)
    expected, _ = train(slamb.jax.lamb(RATE, compressor="int4"), mesh, make_parameters(), gradients)

    def step(params, state, gradients, rate):
        tx = slamb.jax.lamb(rate, compressor="int4")
        return tx.step(jax.tree.map(lambda g: g[0], gradients), state, params)

    tx = slamb.jax.lamb(0.0, compressor="int4")
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), tx.specs, P("ranks"), P()), out_specs=(P(), tx.specs))
    after, _ = jax.jit(mapped)(params, tx.init(params), place(gradients[0], mesh, P("ranks")), jnp.float32(RATE))
    assert joined(jax.tree.map(common_value, after)).tobytes() == joined(expected[-1]).tobytes()


def test_a_saved_state_is_restored(mesh):
    tx = make("one_bit_lamb", None)
    params, gradients = make_parameters(), make_gradients(6)
    expected, _ = train(tx, mesh, params, gradients)
    history, states = train(tx, mesh, params, gradients[:3])
    saved = pickle.loads(pickle.dumps((history[-1], states[-1])))
    at = place(saved[0], mesh)
    state = tx.restore(saved[1], at)
    step = make_step(tx, mesh)
    for its in gradients[3:]:
        at, state = step(at, state, place(its, mesh, P("ranks")))
    assert joined(jax.tree.map(common_value, at)).tobytes() == joined(expected[-1]).tobytes()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_state_of_other_ranks_is_restored_without_errors(mesh, ranks):
    tx = make_optimizer("lamb", "int4")
    _, states = train(tx, mesh, make_parameters(), make_gradients(3))
    few = jax.make_mesh((ranks,), ("ranks",), devices=jax.devices()[:ranks])
    params = place(make_parameters(), few)
    with pytest.raises(ValueError, match=re.escape("if it is of another number of ranks, pass resets_errors=True")):
        tx.restore(states[-1], params)
    state = tx.restore(states[-1], params, resets_errors=True)
    for name in ("count", "momentum", "variance"):
        assert np.array(getattr(state, name)).tobytes() == np.array(getattr(states[-1], name)).tobytes()
    assert not np.any(state.worker_error) and not np.any(state.server_error) and np.any(states[-1].worker_error)
    make_step(tx, few)(params, state, place(make_gradients(1, ranks=ranks)[0], few, P("ranks")))


def test_a_state_of_other_parameters_is_not_restored(mesh):
    tx = make_optimizer("lamb", "int4")
    state = tx.init(make_parameters(), mesh)
    fewer = slamb.jax.lamb(0.01, compressor="int4")
    with pytest.raises(ValueError, match=re.escape("state.momentum is float32[9696], but for these parameters and options it must")):
        fewer.restore(state, {"bias": np.zeros(31, np.float32)}, mesh)
    with pytest.raises(TypeError, match=re.escape("the saved state is a list, but it must be a State: slamb.jax.State(*arrays)")):
        tx.restore(list(state), make_parameters(), mesh)
    with pytest.raises(ValueError, match=re.escape("state.count is int[], but for these parameters and options it must be int32[]")):
        tx.restore(state._replace(count=3), make_parameters(), mesh)
