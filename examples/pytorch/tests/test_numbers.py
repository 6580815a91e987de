"""Results in numbers, against torch.optim.AdamW and against oracles in double precision."""

import functools

import numpy as np
import pytest
import torch
from conftest import (
    CLASSES,
    SHAPES,
    SHORT,
    LambOracle,
    OneBitAdamOracle,
    OneBitLambOracle,
    SlambOracle,
    ZeroOneAdamOracle,
    assert_near,
    assert_same_bits,
    copies_of,
    follow_torch,
    give_gradients,
    gradients_of,
    make_parameters,
    noise,
    parameters_of,
    train,
)

import slamb.torch as st


def follow(optimizer, oracle, steps, rate=lambda step: 0.02, **tolerance):
    """Requires the optimizer to follow the oracle at each step."""
    parameters = parameters_of(optimizer)
    for step in range(1, steps + 1):
        give_gradients(parameters, step)
        gradients = gradients_of(parameters)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        oracle.step(gradients, rate(step))
        assert_near(parameters, oracle.p, **tolerance)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_adamw_equals_torch_adamw_over_30_steps(weight_decay):
    p = make_parameters()
    options = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": weight_decay}
    follow_torch(st.AdamW(p, **options), torch.optim.AdamW(copies_of(p), **options), 30)


def test_adamw_has_the_defaults_of_torch_adamw():
    p = make_parameters()
    follow_torch(st.AdamW(p), torch.optim.AdamW(copies_of(p)), 5)
    for name in ("lr", "betas", "eps", "weight_decay"):
        assert st.AdamW(copies_of(p)).defaults[name] == torch.optim.AdamW(copies_of(p)).defaults[name]


def test_adamw_equals_torch_adamw_with_a_rate_and_a_weight_decay_for_each_group():
    def groups(p):
        return [{"params": p[:2], "weight_decay": 0.2}, {"params": p[2:], "lr": 0.005, "weight_decay": 0.0}]

    p = make_parameters()
    follow_torch(st.AdamW(groups(p), lr=0.02), torch.optim.AdamW(groups(copies_of(p)), lr=0.02), 30)


def test_adamw_clips_by_the_norm_of_all_gradients_as_clip_grad_norm_does():
    p = make_parameters()
    follow_torch(
        st.AdamW(p, lr=0.02, eps=0.1, max_gradient_norm=0.5),
        torch.optim.AdamW(copies_of(p), lr=0.02, eps=0.1),
        20,
        before=lambda theirs: torch.nn.utils.clip_grad_norm_(theirs, 0.5),
    )


def test_adamw_without_bias_correction_follows_the_equations():
    p = make_parameters()
    oracle = LambOracle(p, adapt=False, corrected=False, eps=1e-3)
    follow(st.AdamW(p, eps=1e-3, bias_correction=False), oracle, 20)


@pytest.mark.parametrize(
    "settings, options",
    [
        ({}, {}),
        ({"trust_ratio_lower": 0.3, "trust_ratio_upper": 0.9}, {"lower": 0.3, "upper": 0.9}),
        ({"max_gradient_norm": 0.5, "eps": 0.1}, {"clip": 0.5, "eps": 0.1}),
        ({"bias_correction": False, "eps": 1e-2}, {"corrected": False, "eps": 1e-2}),
    ],
    ids=["plain", "clamped", "clipped", "uncorrected"],
)
def test_lamb_follows_the_equations(settings, options):
    p = make_parameters()
    oracle = LambOracle(p, **{"eps": 1e-6, **options})
    follow(st.Lamb(p, **settings), oracle, 30, rate=lambda step: 0.03 / step)


def test_lamb_follows_the_equations_with_groups_that_decay_or_adapt_differently():
    p = make_parameters()
    oracle = LambOracle(p, decay=[0.1, 0.0, 0.0, 0.0], adapt=[True, False, False, True], eps=1e-6)
    groups = [
        {"params": p[:1], "weight_decay": 0.1},
        {"params": p[1:3], "adapt": False},
        {"params": p[3:]},
    ]
    follow(st.Lamb(groups, weight_decay=0.0), oracle, 20)


def test_lamb_without_adaptation_of_groups_without_weight_decay_gives_them_ratio_1():
    p = make_parameters()
    oracle = LambOracle(p, decay=[0.1, 0.1, 0.0, 0.0], adapt=[True, True, False, False], eps=1e-6)
    groups = [{"params": p[:2], "weight_decay": 0.1}, {"params": p[2:], "weight_decay": 0.0}]
    follow(st.Lamb(groups, adapt_without_weight_decay=False), oracle, 20)


def test_lamb_moves_a_tensor_of_zeros_with_ratio_1():
    p = [torch.nn.Parameter(torch.zeros(4, 3)), torch.nn.Parameter(noise((5,), 1))]
    follow(st.Lamb(p), LambOracle(p, eps=1e-6), 3)


def test_a_step_with_gradients_of_zero_is_weight_decay_alone():
    p = make_parameters()
    before = copies_of(p)
    optimizer = st.AdamW(p, lr=0.1, weight_decay=0.5)
    for one in p:
        one.grad = torch.zeros_like(one)
    optimizer.step()
    assert_near(p, [0.95 * one.detach() for one in before])


@pytest.mark.parametrize("bounds", [{}, {"lower": 0.2, "upper": 0.5}], ids=["default", "clamped"])
def test_slamb_that_sends_everything_follows_the_equations(bounds):
    p = make_parameters()
    settings = {f"trust_ratio_{name}": value for name, value in bounds.items()}
    follow(st.Slamb(p, k=1.0, **settings), SlambOracle(p, eps=1e-6, **bounds), 20)


def test_slamb_with_top_k_follows_the_equations_with_the_ages_of_elements():
    p = make_parameters()
    oracle = SlambOracle(p, k=0.3, beta3=0.6, eps=1e-6)
    follow(st.Slamb(p, k=0.3, beta3=0.6, compressor="top_k", dense_below=0), oracle, 15)


def test_slamb_leaves_small_tensors_whole_by_default():
    p = make_parameters()
    follow(st.Slamb(p, k=0.3, compressor="top_k"), SlambOracle(p, eps=1e-6), 5)


def test_slamb_clips_by_the_norm_of_all_gradients():
    p = make_parameters()
    oracle = SlambOracle(p, eps=0.1, clip=0.5)
    follow(st.Slamb(p, k=1.0, eps=0.1, max_gradient_norm=0.5), oracle, 10)


def test_one_bit_adam_follows_the_equations_before_and_after_its_warm_up():
    p = make_parameters()
    oracle = OneBitAdamOracle(p, warm_up=6, eps=1e-2)
    follow(st.OneBitAdam(p, warm_up_steps=6, eps=1e-2), oracle, 15)


def test_one_bit_adam_sends_signs_with_both_compression_errors_as_the_equations_say():
    p = make_parameters()
    oracle = OneBitAdamOracle(p, warm_up=6, compressed=True, eps=1e-2)
    optimizer = st.OneBitAdam(p, warm_up_steps=6, eps=1e-2, compress_single_rank=True)
    follow(optimizer, oracle, 15, rtol=1e-4, atol=1e-5)


def test_one_bit_adam_does_not_move_elements_that_had_no_gradient_in_the_warm_up():
    p = make_parameters([(4, 3)])
    before = p[0].detach().clone()
    optimizer = st.OneBitAdam(p, lr=0.1, weight_decay=0.0, warm_up_steps=2, compress_single_rank=True)
    for step in range(1, 6):
        give_gradients(p, step)
        p[0].grad[1] = 0.0
        optimizer.step()
    assert_same_bits(p[0][1], before[1])
    assert not torch.equal(p[0], before)


def test_the_warm_up_of_one_bit_adam_is_adamw_without_bias_correction():
    p = make_parameters()
    q = copies_of(p)
    adam, one_bit = st.AdamW(p, bias_correction=False), st.OneBitAdam(q, warm_up_steps=8)
    train(adam, 1, 8)
    train(one_bit, 1, 8)
    assert_near(q, p, rtol=1e-6)
    train(adam, 9, 9)
    train(one_bit, 9, 9)
    with pytest.raises(AssertionError):
        assert_near(q, p, rtol=1e-6)


def test_one_bit_lamb_follows_the_equations_before_and_after_its_warm_up():
    p = make_parameters(((6, 5), (7,), (3, 2, 4)))
    oracle = OneBitLambOracle(p, warm_up=6, eps=1e-2, decay=0.05)
    follow(st.OneBitLamb(p, warm_up_steps=6, eps=1e-2, weight_decay=0.05), oracle, 15)


def test_zero_one_adam_follows_the_equations_before_and_after_its_variance_is_frozen():
    p = make_parameters()
    oracle = ZeroOneAdamOracle(p, freeze_step=9, update_scaler=2, eps=1e-2)
    follow(st.ZeroOneAdam(p, variance_freeze_step=9, variance_update_scaler=2, eps=1e-2), oracle, 15)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    "one, other",
    [
        ({"beta1": 0.7, "beta2": 0.9}, {"betas": (0.7, 0.9)}),
        ({"epsilon": 0.03}, {"eps": 0.03}),
        ({"max_grad_norm": 0.3, "eps": 0.1}, {"max_gradient_norm": 0.3, "eps": 0.1}),
    ],
    ids=["betas", "eps", "max_grad_norm"],
)
def test_both_spellings_of_a_setting_mean_the_same(name, one, other):
    p = make_parameters()
    q, r = copies_of(p), copies_of(p)
    train(CLASSES[name](p, lr=0.02, **SHORT[name], **one), 1, 6)
    train(CLASSES[name](q, lr=0.02, **SHORT[name], **other), 1, 6)
    train(CLASSES[name](r, lr=0.02, **SHORT[name]), 1, 6)
    assert_same_bits(p, q)
    with pytest.raises(AssertionError):
        assert_same_bits(p, r)


@pytest.mark.parametrize(
    "name, one, other",
    [
        ("one_bit_adam", {"freeze_step": 2}, {"warm_up_steps": 2}),
        ("one_bit_lamb", {"freeze_step": 2}, {"warm_up_steps": 2}),
        ("zero_one_adam", {"var_freeze_step": 3}, {"variance_freeze_step": 3}),
        ("zero_one_adam", {"var_update_scaler": 1}, {"variance_update_scaler": 1}),
        (
            "zero_one_adam",
            {"var_freeze_step": 3, "local_step_scaler": 2, "local_step_clipper": 4, "compress_single_rank": True},
            {
                "variance_freeze_step": 3,
                "local_interval_scaler": 2,
                "local_interval_clipper": 4,
                "compress_single_rank": True,
            },
        ),
    ],
)
def test_the_names_of_deepspeed_mean_the_same(name, one, other):
    p = make_parameters()
    q, r = copies_of(p), copies_of(p)
    train(CLASSES[name](p, **one), 1, 8)
    train(CLASSES[name](q, **other), 1, 8)
    train(CLASSES[name](r), 1, 8)
    assert_same_bits(p, q)
    with pytest.raises(AssertionError):
        assert_same_bits(p, r)


@pytest.mark.parametrize("moments", ["bf16-momentum", "8-bit"])
@pytest.mark.parametrize("name", ["adamw", "lamb", "slamb"])
def test_moments_of_fewer_bits_stay_near_those_of_float32(name, moments):
    p = make_parameters([(32, 32)])
    q = copies_of(p)
    start = p[0].detach().clone()
    settings = {"k": 1.0} if name == "slamb" else {}
    train(CLASSES[name](p, lr=0.01, **settings), 1, 20)
    train(CLASSES[name](q, lr=0.01, moments=moments, **settings), 1, 20)
    assert not torch.equal(p[0], q[0])
    assert torch.dist(p[0].detach(), q[0].detach()) < 0.2 * torch.dist(p[0].detach(), start)


def moves_with_a_gradient_of(value, optimizer, steps=3):
    """The steps of 1000 elements in learning rates. The gradient of one of them has this value in the first step."""
    p = torch.nn.Parameter(noise((1000,), 1))
    made = optimizer([p], lr=1e-3, weight_decay=0.0)
    moves = []
    for step in range(steps):
        before = p.detach().clone()
        p.grad = noise((1000,), 2 + step)
        if step == 0:
            p.grad[123] = value
        made.step()
        moves.append((p.detach() - before).double() / 1e-3)
    return torch.stack(moves)


ADAM_OF_ONE_RATIO = functools.partial(st.Lamb, trust_ratio_lower=1.0, trust_ratio_upper=1.0)
ADAM_OF_EIGHT_BITS = functools.partial(st.AdamW, moments="8-bit")


@pytest.mark.parametrize("value", [2e19, -2e19, 1e20, 1e25, 1e30, 3e38])
@pytest.mark.parametrize("optimizer", [st.AdamW, ADAM_OF_ONE_RATIO, ADAM_OF_EIGHT_BITS], ids=["adamw", "lamb", "8-bit"])
def test_a_gradient_whose_square_is_no_float_moves_its_element_by_no_more_than_adam_does(optimizer, value):
    moves = moves_with_a_gradient_of(value, optimizer)
    assert bool(torch.isfinite(moves).all())
    assert float(moves.abs().max()) < 7.28  # update_bound.md (2), which holds for any gradients
    if optimizer is not ADAM_OF_EIGHT_BITS:  # whose elements share scales
        others = torch.arange(1000) != 123
        assert_same_bits(moves[:, others], moves_with_a_gradient_of(0.1, optimizer)[:, others])


@pytest.mark.parametrize("value", [2e19, 1e20, 1e25, 1e30, 3e38])
def test_a_gradient_whose_square_is_no_float_does_not_stop_its_tensor_in_lamb(value):
    moves, usual = (moves_with_a_gradient_of(one, st.Lamb)[:, :123] for one in (value, 0.1))
    assert_near([moves.numpy()], [usual.numpy()], rtol=0.03, atol=1e-3)


@pytest.mark.parametrize("value", [2e19, 1e20, 1e25, 1e30, 3e38])
def test_a_gradient_whose_square_is_no_float_is_finite_in_torch_adamw_too(value):
    assert bool(torch.isfinite(moves_with_a_gradient_of(value, torch.optim.AdamW)).all())


def test_the_number_of_threads_does_not_change_the_result():
    p = make_parameters([(300, 100), (7,)])
    q = copies_of(p)
    train(st.Lamb(p, threads=1), 1, 3)
    train(st.Lamb(q, threads=2), 1, 3)
    assert_same_bits(p, q)


# ------------------------------------------------------------------------------- The helpers of these tests can fail


@pytest.mark.parametrize(
    "mutation",
    [
        {"betas": (0.9, 0.9985)},
        {"betas": (0.899, 0.999)},
        {"eps": 1e-4},
        {"decay": 0.02},
        {"adapt": False},
        {"lower": 0.5},
        {"corrected": False},
        {"clip": 3.0},
    ],
    ids=lambda mutation: next(iter(mutation)),
)
def test_following_a_lamb_with_other_options_fails(mutation):
    p = make_parameters()
    with pytest.raises(AssertionError):
        follow(st.Lamb(p), LambOracle(p, **{"eps": 1e-6, **mutation}), 10)


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("slamb", SlambOracle, {"k": 0.3}),
        ("one_bit_adam", OneBitAdamOracle, {"warm_up": 2}),
        ("one_bit_lamb", OneBitLambOracle, {"warm_up": 2}),
        ("zero_one_adam", ZeroOneAdamOracle, {"freeze_step": 2, "update_scaler": 16}),
    ],
)
def test_following_another_schedule_fails(name, right, wrong):
    p = make_parameters()
    with pytest.raises(AssertionError):
        follow(CLASSES[name](p, eps=1e-2), right(p, eps=1e-2, **wrong), 10)


def test_following_torch_with_another_rate_fails():
    p = make_parameters()
    with pytest.raises(AssertionError):
        follow_torch(st.AdamW(p, lr=0.01), torch.optim.AdamW(copies_of(p), lr=0.0101), 3)


def test_near_fails_for_one_element_or_a_missing_tensor():
    arrays = [np.ones(3), np.zeros(2)]
    assert_near(arrays, [np.ones(3), np.zeros(2)])
    with pytest.raises(AssertionError):
        assert_near(arrays, [np.ones(3), np.array([0.0, 1e-3])])
    with pytest.raises(AssertionError):
        assert_near(arrays, arrays[:1])


def test_same_bits_fails_for_another_sign_of_zero_or_another_type():
    assert_same_bits({"a": [torch.zeros(2)]}, {"a": [torch.zeros(2)]})
    for other in (-torch.zeros(2), torch.zeros(2, dtype=torch.int32), torch.zeros(2, 1)):
        with pytest.raises(AssertionError):
            assert_same_bits({"a": [torch.zeros(2)]}, {"a": [other]})


def test_the_tensors_of_these_tests_have_several_numbers_of_dimensions():
    assert {len(shape) for shape in SHAPES} == {0, 1, 2, 3}
