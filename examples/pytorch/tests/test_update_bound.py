"""The bound of updates, docs/algorithms/update_bound.md, against values that follow from its equations."""

import copy
import inspect
import math
import pickle

import numpy as np
import pytest
import torch
from conftest import (
    CLASSES,
    OneBitAdamOracle,
    OneBitLambOracle,
    SlambOracle,
    ZeroOneAdamOracle,
    assert_near,
    assert_same_bits,
    contents,
    copies_of,
    give_gradients,
    gradients_of,
    make_parameters,
    noise,
    train,
)

import slamb.torch as st

BOUNDED = [name for name in CLASSES if name not in ("adamw", "lamb")]
FREEZING = [name for name in BOUNDED if name != "slamb"]
MARGIN = 1.0 + 1e-4  # moments and parameters are rounded to floats

# What one process computes, with oracles of the same settings, and the last step before the variance is frozen.
ORACLES = {
    "slamb": (SlambOracle, {"compressor": "top_k", "k": 0.3, "beta3": 0.6, "dense_below": 0}, {"k": 0.3, "beta3": 0.6}),
    "one_bit_adam": (OneBitAdamOracle, {"warm_up_steps": 6}, {"warm_up": 6}),
    "one_bit_lamb": (OneBitLambOracle, {"warm_up_steps": 6}, {"warm_up": 6}),
    "zero_one_adam": (
        ZeroOneAdamOracle,
        {"variance_freeze_step": 6, "variance_update_scaler": 2},
        {"freeze_step": 6, "update_scaler": 2},
    ),
}


def largest_direction(beta1, beta2, gradients=20000):
    """The largest |m|/√v that any gradients make, without bias correction. By Cauchy and Schwarz it is √(Σ a_k²/b_k), where
    m = Σ a_k g_k and v = Σ b_k g_k²."""
    k = np.arange(gradients)
    a, b = (1 - beta1) * beta1**k, (1 - beta2) * beta2**k
    return math.sqrt(float(np.sum(a * a / b)))


def pair(name, bound, **options):
    """Parameters; their optimizer with a bound, which can be "adam" or None; and its oracle with the same number, or infinity."""
    oracle, settings, its_settings = ORACLES[name]
    p = make_parameters(((6, 5), (7,), (3, 2, 4)))
    number = math.inf if bound in (None, "adam") else bound
    made = CLASSES[name](p, update_bound=bound, eps=1e-6, **settings, **options)
    return p, made, oracle(p, eps=1e-6, bound=number, **its_settings)


def rising(step):
    """Gradients that are a thousand times as large once the variance is frozen."""
    return 1e-3 if step <= 6 else 1.0


def follow(p, optimizer, oracle, steps, factor=lambda step: 1.0, **tolerance):
    """Requires the optimizer to follow the oracle in these steps."""
    for step in steps:
        give_gradients(p, step, factor(step))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        optimizer.step()
        oracle.step(gradients_of(p), 1e-3)
        assert_near(p, oracle.p, **tolerance)


# ------------------------------------------------------------------------------------------------------------ The bound


@pytest.mark.parametrize("bound", [0.25, 1.5])
@pytest.mark.parametrize("name", BOUNDED)
def test_updates_follow_the_equations_with_a_bound_that_is_a_number(name, bound):
    follow(*pair(name, bound), range(1, 16))


@pytest.mark.parametrize("name", BOUNDED)
def test_updates_follow_the_equations_of_the_papers_without_a_bound(name):
    follow(*pair(name, None), range(1, 12), rising, rtol=1e-4)


@pytest.mark.parametrize("name", FREEZING)
def test_adams_own_bound_holds_updates_by_a_variance_that_was_frozen_too_small(name):
    p, optimizer, oracle = pair(name, "adam")
    # The gradients that the variance is made of. Refreshes of 0/1 Adam, at τ = step + 1, are in steps 1, 2, 3 and 5.
    known = [1, 2, 3, 3, 4] if name == "zero_one_adam" else [math.inf] * 6
    for step in range(1, 16):
        gradients = known[step - 1] if step <= len(known) else known[-1] if name == "zero_one_adam" else 6
        oracle.bound = largest_direction(0.9, 0.999) / math.sqrt(1.0 - 0.999**gradients) * (1.0 + 2.0**-16)  # (4), (5)
        follow(p, optimizer, oracle, [step], rising)
    assert oracle.is_at_bound()


def test_adams_own_bound_has_the_documented_values():
    assert abs(largest_direction(0.9, 0.999) - 7.27) < 0.005
    assert abs(largest_direction(0.9, 0.999) - 0.1 / math.sqrt(0.001 * (1 - 0.81 / 0.999))) < 1e-6


def test_slamb_in_one_process_never_passes_adams_own_bound():
    """Its m and v are of the same gradients."""
    p = make_parameters([(40, 30)])
    q = copies_of(p)
    bounded, free = st.Slamb(p, k=0.25, dense_below=0), st.Slamb(q, k=0.25, dense_below=0, update_bound=None)
    for step in range(1, 30):
        train(bounded, step, step, factor=1.1**step)
        train(free, step, step, factor=1.1**step)
    assert_same_bits(p, q)


@pytest.mark.parametrize("name", FREEZING)
def test_no_bound_is_the_same_to_the_bit_as_a_bound_that_nothing_reaches(name):
    results = {}
    for bound in (None, math.inf, 1e30, "adam"):
        p, optimizer, _ = pair(name, bound)
        for step in range(1, 16):
            train(optimizer, step, step, rising(step))
        results[bound] = contents(p)
    assert results[None] == results[math.inf] == results[1e30] != results["adam"]


@pytest.mark.parametrize("name", FREEZING)
def test_adams_own_is_the_default(name):
    results = []
    for settings in ({}, {"update_bound": "adam"}, {"update_bound": None}):
        p = make_parameters()
        optimizer = CLASSES[name](p, **ORACLES[name][1], **settings)
        for step in range(1, 12):
            train(optimizer, step, step, rising(step))
        results.append(contents(p))
    assert results[0] == results[1] != results[2]
    assert inspect.signature(CLASSES["slamb"]).parameters["update_bound"].default == "adam"


# --------------------------------------------------------------------------- An element whose gradient comes late

ROWS, WIDTH, RATE = 100, 8, 1e-3
LATE = ROWS - 1  # the row of the token that comes after 210 steps
LATE_SETTINGS = {
    "one_bit_adam": {"warm_up_steps": 200},
    "one_bit_lamb": {"warm_up_steps": 200},
    "zero_one_adam": {"variance_freeze_step": 200},
}


def embedding_gradient(step):
    """Of a batch of 32 tokens: of 0 … 98 at first, and of 99 after 210 steps."""
    gradient = torch.zeros(ROWS, WIDTH)
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, LATE, (32,), generator=generator) if step <= 210 else torch.full((32,), LATE)
    return gradient.index_add_(0, tokens, 0.1 * torch.randn(32, WIDTH, generator=generator))


def optimizer_of(embedding, name, bound, **settings):
    """With a trust ratio of 1."""
    group = {"params": [embedding], "adapt": False}
    return CLASSES[name]([group], lr=RATE, weight_decay=0.0, update_bound=bound, **LATE_SETTINGS[name], **settings)


def moves_of_late_row(name, bound, steps=10, **settings):
    """By how many learning rates the elements of the late row move in each step from its first gradient on; its first gradient;
    the embedding, and its optimizer."""
    p = torch.nn.Parameter(0.01 * noise((ROWS, WIDTH), 1))
    optimizer = optimizer_of(p, name, bound, **settings)
    for step in range(1, 211):
        p.grad = embedding_gradient(step)
        optimizer.step()
    moves = []
    for step in range(211, 211 + steps):
        before = p.detach().double()
        p.grad = embedding_gradient(step)
        optimizer.step()
        moves.append((p.detach().double() - before)[LATE].numpy() / RATE)
    return np.stack(moves), embedding_gradient(211)[LATE].double().numpy(), p, optimizer


@pytest.mark.parametrize("name", FREEZING)
def test_without_a_bound_a_late_row_moves_by_thousands_of_learning_rates(name):
    moves, gradient, _, _ = moves_of_late_row(name, None, steps=1)
    np.testing.assert_allclose(moves[0], -0.1 * gradient / 1e-8, rtol=1e-4)  # v = 0
    assert np.abs(moves).max() > 1000.0


@pytest.mark.parametrize("name", FREEZING)
def test_a_late_row_begins_a_variance_of_its_own_and_stays_within_adams_bound_of_it(name):
    moves, gradient, _, optimizer = moves_of_late_row(name, "adam")
    # (7): |m|/√v = (1 - β1)/√(1 - β2)
    np.testing.assert_allclose(moves[0], -np.sign(gradient) * 0.1 / math.sqrt(0.001), rtol=1e-3)
    # (4), the bound of a variance that takes every gradient: 7.27. (5), of the variance that was frozen, is 17.1.
    assert np.abs(moves).max() <= largest_direction(0.9, 0.999) * MARGIN
    assert np.abs(moves[1:]).min() > 0.0
    assert optimizer.statistics(with_norms=True)["late_elements"] == WIDTH


@pytest.mark.parametrize("name", FREEZING)
def test_a_late_row_moves_within_the_bound_when_signs_are_sent(name):
    moves, _, _, _ = moves_of_late_row(name, "adam", compress_single_rank=True)
    assert np.abs(moves).max() <= largest_direction(0.9, 0.999) * MARGIN
    assert np.abs(moves).sum(0).min() > 0.0  # each element has moved, once the exchange has learnt of its gradient


@pytest.mark.parametrize("name", FREEZING)
def test_a_late_row_moves_by_at_most_a_bound_that_is_a_number(name):
    moves, gradient, _, _ = moves_of_late_row(name, 2.0)
    np.testing.assert_allclose(moves[0], -np.sign(gradient) * 2.0, rtol=1e-3)  # 3.16 without it
    assert np.abs(moves).max() <= 2.0 * MARGIN


@pytest.mark.parametrize("name", FREEZING)
@pytest.mark.parametrize("bound", [None, "adam", 2.0])
def test_a_training_with_a_late_row_continues_from_a_state_bit_for_bit(name, bound):
    _, _, p, optimizer = moves_of_late_row(name, bound, steps=3)
    q = torch.nn.Parameter(p.detach().clone())
    resumed = optimizer_of(q, name, bound)
    resumed.load_state_dict(optimizer.state_dict())
    for step in range(214, 220):
        for one, its in ((p, optimizer), (q, resumed)):
            one.grad = embedding_gradient(step)
            its.step()
        assert_same_bits(q, p)
    assert_same_bits(resumed.state_dict(), optimizer.state_dict())


# ------------------------------------------------------------------------------------------- States, copies, statistics


@pytest.mark.parametrize("name", BOUNDED)
def test_a_state_can_be_loaded_with_another_bound_which_then_holds(name):
    p, first, oracle = pair(name, None)
    follow(p, first, oracle, range(1, 10))
    q = copies_of(p)
    second = CLASSES[name](q, update_bound=0.25, eps=1e-6, **ORACLES[name][1])
    second.load_state_dict(first.state_dict())
    oracle.bound = 0.25
    follow(q, second, oracle, range(10, 16))
    assert oracle.is_at_bound()


@pytest.mark.parametrize("name", FREEZING)
def test_a_late_row_of_a_state_stays_within_another_bound(name):
    _, _, p, optimizer = moves_of_late_row(name, "adam", steps=3)
    for bound in (2.0, None):
        q = torch.nn.Parameter(p.detach().clone())
        resumed = optimizer_of(q, name, bound)
        resumed.load_state_dict(optimizer.state_dict())
        q.grad = embedding_gradient(214)
        resumed.step()
        moved = (q.detach() - p.detach()).double().abs() / RATE
        assert 0.0 < moved[LATE].min() and moved.isfinite().all()
        assert bound is None or moved.max() <= bound * MARGIN


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda all: pickle.loads(pickle.dumps(all))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("bound", [0.25, None])
@pytest.mark.parametrize("name", FREEZING)
def test_copies_keep_the_bound(name, bound, make_copy):
    p, optimizer, _ = pair(name, bound)
    q, default, _ = pair(name, "adam")
    for one in (optimizer, default):
        for step in range(1, 6):
            train(one, step, step, rising(step))
    r, copied = make_copy((p, optimizer))
    for one in (optimizer, copied, default):
        for step in range(6, 16):
            train(one, step, step, rising(step))
    assert_same_bits(r, p)
    assert contents(r) != contents(q)


@pytest.mark.parametrize("name", BOUNDED)
def test_statistics_count_elements_at_the_bound_also_of_added_groups(name):
    p = make_parameters(((6, 5), (3, 2, 4)))
    optimizer = CLASSES[name](p[:1], update_bound=1e-6, **ORACLES[name][1])
    train(optimizer, 1, 8)
    assert optimizer.statistics(with_norms=True)["bounded_elements"] == 30  # any momentum is far above the bound
    optimizer.add_param_group({"params": p[1:]})
    train(optimizer, 9, 9)
    assert optimizer.statistics(with_norms=True)["bounded_elements"] == 30 + 24
    assert "bounded_elements" not in optimizer.statistics()


@pytest.mark.parametrize("name", FREEZING)
def test_statistics_count_the_elements_at_the_bound_as_the_equations_do(name):
    p, optimizer, oracle = pair(name, 0.25)
    for step in range(1, 16):
        follow(p, optimizer, oracle, [step])
        found = optimizer.statistics(with_norms=True)
        assert (found["bounded_elements"], found["late_elements"]) == (oracle.count_at_bound(), 0)
    assert 0 < oracle.count_at_bound() < sum(one.numel() for one in p)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_optimizers_without_the_option_count_no_elements(name):
    optimizer = CLASSES[name](make_parameters())
    train(optimizer, 1, 3)
    found = optimizer.statistics(with_norms=True)
    assert (found["bounded_elements"], found["late_elements"]) == (0, 0)


# ------------------------------------------------------------------------------- The helpers of these tests can fail


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("wrong", [0.26, math.inf])
def test_following_another_bound_fails(name, wrong):
    p, optimizer, oracle = pair(name, 0.25)
    oracle.bound = wrong
    with pytest.raises(AssertionError):
        follow(p, optimizer, oracle, range(1, 16))
