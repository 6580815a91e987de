"""The numbers of slamb.jax: the equations of docs/algorithms in double precision, and the bits of the library's own optimizers."""

import dataclasses

import numpy as np
import pytest

from oracle import Exchange, OneBitTraining, Training, draws, philox, pieces_of
from training import (
    RATE,
    SHAPES,
    TENSORS,
    joined,
    make_gradients,
    make_optimizer,
    make_parameters,
    moments_of,
    per_rank,
    tensors_of,
    train,
    train_library,
)

STEPS = 8
WARM_UP = 4
COMPRESSORS = [None, "sign", "int8", "int4"]
COMPRESSED = [dataclasses.replace(tensor, compress=True) for tensor in TENSORS]


def oracle_of(recipe, compressor, params, **faults):
    exchange = None if compressor is None else Exchange(TENSORS, 4, compressor, **faults)
    return Training(recipe, TENSORS, tensors_of(params), RATE, exchange)


def differing(training, history, gradients):
    """The part of all elements that ever differ by more than rounding can explain."""
    far = 0
    for parameters, its in zip(history, gradients):
        training.step(per_rank(its))
        expected = np.concatenate(training.parameters)
        far = max(far, np.mean(np.abs(joined(parameters) - expected) > 2e-5 * (1 + np.abs(expected))))
    return far


def test_philox_is_that_of_its_paper():
    # Random123's known answers: kat_vectors, philox 4x32 10
    assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 2**64 - 1
    assert philox(ones, ones, ones) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert 0.0 < draws(7, 3, 5, 1000).min() and draws(7, 3, 5, 1000).max() < 1.0


@pytest.mark.parametrize("recipe", ["adamw", "lamb"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_training_follows_the_equations(mesh, recipe, compressor):
    params, gradients = make_parameters(), make_gradients(STEPS)
    history, states = train(make_optimizer(recipe, compressor), mesh, params, gradients)
    state = states[-1]
    training = oracle_of(recipe, compressor, params)
    # A draw decides differently where L|x|/α + U is within a float's rounding of an integer.
    allowed = 0.0 if compressor in (None, "sign") else 1e-3
    assert differing(training, history, gradients) <= allowed
    for mine, its in ((state.momentum, training.momentum), (state.variance, training.variance)):
        mine = np.concatenate(moments_of(mine, TENSORS))
        scale = np.abs(np.concatenate(its)).max()
        assert np.mean(np.abs(mine - np.concatenate(its)) > 1e-5 * scale) <= allowed
    if compressor is None:
        assert state.worker_error.shape == state.server_error.shape == (0, 0)
        return
    for rank in range(4):
        mine = np.concatenate(moments_of(state.worker_error[rank], TENSORS))
        its = np.concatenate(training.exchange.worker[rank])
        assert np.abs(its).max() > 0.01
        assert np.mean(np.abs(mine - its) > 1e-5 * (1 + np.abs(its).max())) <= allowed
        for piece in training.exchange.pieces:
            if piece.owner != rank:
                continue
            mine = state.server_error[rank, piece.code : piece.code + piece.count]
            its = training.exchange.server[piece.tensor][piece.first : piece.first + piece.count]
            assert np.mean(np.abs(mine - its) > 1e-5 * (1 + np.abs(its).max())) <= (0 if allowed == 0 else 0.05)


@pytest.mark.parametrize("fault", ["keeps_worker_error", "swaps_chunks"])
def test_the_comparison_finds_a_fault(mesh, fault):
    params, gradients = make_parameters(), make_gradients(STEPS)
    history, _ = train(make_optimizer("adamw", "sign"), mesh, params, gradients)
    faulty = oracle_of("adamw", "sign", params, **{fault: fault != "keeps_worker_error"})
    assert differing(faulty, history, gradients) > 0.1


@pytest.mark.parametrize("recipe", ["adamw", "lamb"])
@pytest.mark.parametrize("compressor", ["sign", "int8", "int4"])
@pytest.mark.parametrize("max_norm", [float("inf"), 0.5])
def test_a_training_has_the_bits_of_the_library(mesh, recipe, compressor, max_norm):
    params, gradients = make_parameters(), make_gradients(STEPS)
    options = {"compress": None} if max_norm == float("inf") else {"compress": None, "max_gradient_norm": max_norm}
    options |= {} if compressor == "sign" else {"seed": 2**63 + 5}
    history, states = train(make_optimizer(recipe, compressor, **options), mesh, params, gradients)
    expected, momentum, variance = train_library(
        recipe, compressor, params, gradients, COMPRESSED, seed=options.get("seed", 0), max_norm=max_norm
    )
    for mine, its in zip(history, expected, strict=True):
        assert joined(mine).tobytes() == its.tobytes()
    assert np.concatenate(moments_of(states[-1].momentum, TENSORS)).tobytes() == momentum.tobytes()
    assert np.concatenate(moments_of(states[-1].variance, TENSORS)).tobytes() == variance.tobytes()


@pytest.mark.parametrize("recipe", ["one_bit_adam", "one_bit_lamb"])
@pytest.mark.parametrize("has_late_elements", [False, True])
def test_a_one_bit_training_follows_the_equations(mesh, recipe, has_late_elements):
    params, gradients = make_parameters(), make_gradients(WARM_UP + STEPS)
    if has_late_elements:  # rows without a gradient in the warm-up, which then get one on some ranks
        for its in gradients[: WARM_UP + 2]:
            its["embedding"][:, 17:23] = 0.0
    history, states = train(make_optimizer(recipe, None, warm_up_steps=WARM_UP), mesh, params, gradients)
    assert [int(s.frozen_at) for s in states] == [0] * (WARM_UP - 1) + [WARM_UP] * (STEPS + 1)
    training = OneBitTraining(recipe, TENSORS, tensors_of(params), RATE, Exchange(TENSORS, 4, "sign"), WARM_UP)
    assert differing(training, history, gradients) == 0.0
    variance = np.concatenate(moments_of(states[-1].variance, TENSORS))
    assert np.abs(np.abs(variance) - np.concatenate(training.variance)).max() < 1e-5 * variance.max()
    assert (variance < 0).sum() == (6 * 83 if has_late_elements else 0)  # v of late elements is stored as −v
    if recipe == "one_bit_lamb":
        np.testing.assert_allclose(states[-1].ratios[0, :, 0], training.mean_ratio, rtol=1e-5)
        np.testing.assert_allclose(states[-1].ratios[0, :, 1], training.factor, rtol=1e-5)
        np.testing.assert_allclose(states[-1].ratios[1, :, 0], training.scale, rtol=1e-5)
    faulty = OneBitTraining(
        recipe, TENSORS, tensors_of(params), RATE, Exchange(TENSORS, 4, "sign", keeps_worker_error=False), WARM_UP
    )
    assert differing(faulty, history, gradients) > 0.1


@pytest.mark.parametrize("recipe", ["one_bit_adam", "one_bit_lamb"])
@pytest.mark.parametrize("has_late_elements", [False, True])
@pytest.mark.parametrize("bound", ["adam", 3.0, None])
def test_a_one_bit_training_has_the_bits_of_the_library(mesh, recipe, has_late_elements, bound):
    params, gradients = make_parameters(), make_gradients(WARM_UP + STEPS)
    if has_late_elements:
        for its in gradients[: WARM_UP + 2]:
            its["embedding"][:, 17:23] = 0.0
    tx = make_optimizer(recipe, None, warm_up_steps=WARM_UP, compress=None, update_bound=bound)
    history, states = train(tx, mesh, params, gradients)
    number = {"adam": 0.0, None: float("inf")}.get(bound, bound)
    expected, momentum, variance = train_library(
        recipe, "sign", params, gradients, COMPRESSED, warm_up=WARM_UP, bound=number
    )
    for mine, its in zip(history, expected, strict=True):
        assert joined(mine).tobytes() == its.tobytes()
    assert np.concatenate(moments_of(states[-1].momentum, TENSORS)).tobytes() == momentum.tobytes()
    assert np.concatenate(moments_of(states[-1].variance, TENSORS)).tobytes() == variance.tobytes()


@pytest.mark.parametrize(
    "recipe, compressor", [("adamw", None), ("lamb", None), ("adamw", "sign"), ("lamb", "int4"), ("one_bit_lamb", None)]
)
def test_dense_tensors_have_the_bits_of_the_library(mesh, recipe, compressor):
    # XLA adds the ranks' gradients in an order of its own; the sums of these are exact.
    params, gradients = make_parameters(), make_gradients(STEPS)
    options = {"warm_up_steps": STEPS} if recipe.startswith("one_bit") else {}
    history, _ = train(make_optimizer(recipe, compressor, **options), mesh, params, gradients)
    expected, _, _ = train_library(recipe, compressor, params, gradients, TENSORS, warm_up=STEPS)
    for mine, its in zip(history, expected, strict=True):
        assert joined(mine).tobytes() == its.tobytes()


def test_the_library_notices_another_seed(mesh):
    params, gradients = make_parameters(), make_gradients(2)
    history, _ = train(make_optimizer("adamw", "int4", seed=1), mesh, params, gradients)
    expected, _, _ = train_library("adamw", "int4", params, gradients, TENSORS, seed=2)
    assert joined(history[-1]).tobytes() != expected[-1].tobytes()


@pytest.mark.parametrize("compressor", ["sign", "int8", "int4"])
def test_nothing_is_lost(mesh, compressor):
    # (10) of one_bit_exchange.md, over all steps: the sum of the received means and the errors are the sum of the mean gradients.
    # With β1 = β2 = 0, m is the received mean of the last step.
    params, gradients = make_parameters(), make_gradients(STEPS)
    tx = make_optimizer("adamw", compressor, b1=0.0, b2=0.0)
    _, states = train(tx, mesh, params, gradients)
    total = sum(np.mean([np.concatenate([g.ravel() for g in own]) for own in per_rank(its)], axis=0) for its in gradients)
    received = sum(np.concatenate(moments_of(state.momentum, TENSORS)) for state in states)
    state = states[-1]
    kept = np.mean([np.concatenate(moments_of(row, TENSORS)) for row in state.worker_error], axis=0)
    first = np.cumsum([0] + [t.size for t in TENSORS])
    for piece in pieces_of(TENSORS, 4)[0]:
        at = first[piece.tensor] + piece.first
        kept[at : at + piece.count] += state.server_error[piece.owner, piece.code : piece.code + piece.count]
    np.testing.assert_allclose(received + kept, total, rtol=0, atol=1e-4)
    assert np.abs(kept).max() > 0.02


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (127,), (128, 1), (4 * 128 + 1,), (8192, 8193, 5)])
@pytest.mark.parametrize("compressor", ["sign", "int4"])
def test_tensors_of_any_size_have_the_bits_of_the_library(mesh, sizes, compressor):
    shapes = {f"t{i}": (size,) for i, size in enumerate(sizes)}
    tensors = [dataclasses.replace(TENSORS[1], size=size) for size in sizes]
    params, gradients = make_parameters(shapes=shapes), make_gradients(3, shapes=shapes)
    tx = make_optimizer("lamb", compressor, mask=None, compress=None, adapt=None)
    history, _ = train(tx, mesh, params, gradients)
    expected, _, _ = train_library("lamb", compressor, params, gradients, tensors)
    for mine, its in zip(history, expected, strict=True):
        assert joined(mine).tobytes() == its.tobytes()


def test_the_tensors_of_the_tests_are_those_of_the_oracle():
    assert [int(np.prod(SHAPES[name])) for name in sorted(SHAPES)] == [t.size for t in TENSORS]
