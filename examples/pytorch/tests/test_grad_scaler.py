"""Gradients that are scaled against underflow, by the protocols of GradScaler."""

import pytest
import torch
from conftest import (
    CLASSES,
    SHORT,
    VERSION,
    assert_same_bits,
    copies_of,
    follow_torch,
    give_gradients,
    make_parameters,
    parameters_of,
    skip_before,
    train,
)

import slamb.torch as st

SCALE = 1024.0

needs_a_scaler = skip_before(2, 3, "GradScaler for gradients in host memory")


def scaler_of(**options):
    return torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000, **options)


class OldScaler:
    """The part of torch.cuda.amp.GradScaler of torch 1.13 that step(grad_scaler=…) may use, in host memory."""

    def __init__(self, is_unscaled=False):
        self.is_unscaled = is_unscaled
        self._scale = torch.tensor(SCALE)
        stage = torch.cuda.amp.grad_scaler.OptState.UNSCALED if is_unscaled else torch.cuda.amp.grad_scaler.OptState.READY
        self.stage = stage
        self._per_optimizer_states = {}

    def _get_scale_async(self):
        return self._scale

    def _check_inf_per_device(self, optimizer):
        found = torch.zeros(2)
        for i, p in enumerate(parameters_of(optimizer)):
            found[i % 2] += float(not bool(torch.isfinite(p.grad).all()))
        return {torch.device("cpu"): found[0], "another": found[1]}

    def step(self, optimizer):
        self._per_optimizer_states[id(optimizer)] = {"stage": self.stage, "found_inf_per_device": {}}
        optimizer.step(grad_scaler=self)


def trained_alike(name, dtype=torch.float32, **settings):
    """An optimizer, its parameters, and a twin of both."""
    p = make_parameters(dtype=dtype)
    q = copies_of(p)
    return (CLASSES[name](p, **SHORT[name], **settings), p, CLASSES[name](q, **SHORT[name], **settings), q)


@pytest.mark.parametrize("name", CLASSES)
def test_a_scaler_unscales_the_gradients_of_a_single_rank_as_with_torchs_optimizers(name):
    """So wrappers see that a step was skipped, and gradients can be clipped."""
    make = CLASSES[name]
    assert make(make_parameters(), **SHORT[name])._step_supports_amp_scaling is False
    assert make(make_parameters(), fused=True, **SHORT[name])._step_supports_amp_scaling is True
    assert make(make_parameters(dtype=torch.float16), **SHORT[name])._step_supports_amp_scaling is True  # a scaler refuses


@needs_a_scaler
@pytest.mark.parametrize("fused", [None, True])
def test_a_step_that_a_scaler_skips_is_not_called_or_skips_itself(fused):
    p = make_parameters()
    optimizer = st.AdamW(p, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(1))
    for one in p:
        one.grad = torch.full_like(one, float("inf"))
    before, called = copies_of(p), []
    optimizer.register_step_pre_hook(lambda *_: called.append(True))
    scaler.step(optimizer)
    scaler.update()
    assert_same_bits(p, before)
    assert scaler.get_scale() == 4.0 and called == ([True] if fused else [])


@needs_a_scaler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CLASSES)
def test_scaled_gradients_give_the_same_bits_as_unscaled_ones(name, dtype):
    optimizer, p, twin, q = trained_alike(name, dtype)
    scaler = scaler_of()
    for step in range(1, 8):
        give_gradients(p, step)
        losses = sum((one * one.grad.detach().clone()).float().sum() for one in p)
        optimizer.zero_grad()
        scaler.scale(losses).backward()
        scaler.step(optimizer)
        scaler.update()
        train(twin, step, step)
        assert_same_bits(p, q)
    assert scaler.get_scale() == SCALE


@needs_a_scaler
@pytest.mark.parametrize("unscales", [False, True], ids=["scaled", "unscaled before"])
@pytest.mark.parametrize("name", CLASSES)
def test_an_infinite_gradient_skips_the_step_and_lowers_the_scale(name, unscales):
    optimizer, p, twin, q = trained_alike(name)
    scaler = scaler_of()
    for step in range(1, 8):
        is_bad = step in (1, 3, 6)
        give_gradients(p, step, scaler.get_scale() if step > 1 else SCALE)
        if step == 1:
            scaler.scale(torch.tensor(1.0))
        if is_bad:
            p[2].grad.view(-1)[4] = float("inf")
        before, scale = copies_of(p), scaler.get_scale()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (scale / 2 if is_bad else scale)
        if is_bad:
            assert_same_bits(p, before)
        else:
            train(twin, step, step)
            assert_same_bits(p, q)
    assert optimizer.statistics()["step"] == twin.statistics()["step"] == 4


@needs_a_scaler
def test_gradients_that_were_unscaled_and_clipped_before_the_step_are_not_unscaled_again():
    p = make_parameters()
    optimizer, reference = st.AdamW(p, lr=0.02, eps=0.1), torch.optim.AdamW(copies_of(p), lr=0.02, eps=0.1)
    scaler = scaler_of()
    scaler.scale(torch.tensor(1.0))
    plain_step = optimizer.step

    def scaled_step():
        for one in p:
            one.grad *= SCALE
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(p, 0.5)
        optimizer.step = plain_step
        scaler.step(optimizer)
        optimizer.step = scaled_step
        scaler.update()

    optimizer.step = scaled_step
    follow_torch(optimizer, reference, 8, before=lambda theirs: torch.nn.utils.clip_grad_norm_(theirs, 0.5))


@needs_a_scaler
def test_clipping_by_the_optimizer_uses_unscaled_gradients():
    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = (st.AdamW(one, max_gradient_norm=0.5, eps=0.1) for one in (p, q))
    scaler = scaler_of()
    scaler.scale(torch.tensor(1.0))
    for step in range(1, 5):
        give_gradients(p, step, SCALE)
        scaler.step(optimizer)
        scaler.update()
        train(twin, step, step)
        assert_same_bits(p, q)


@needs_a_scaler
def test_a_step_without_the_scaler_after_one_with_it_uses_gradients_as_they_are():
    optimizer, p, twin, q = trained_alike("lamb")
    scaler = scaler_of()
    scaler.scale(torch.tensor(1.0))
    give_gradients(p, 1, SCALE)
    scaler.step(optimizer)
    train(optimizer, 2, 3)
    train(twin, 1, 3)
    assert_same_bits(p, q)
    assert not hasattr(optimizer, "grad_scale")


@needs_a_scaler
def test_a_scaler_that_is_disabled_changes_nothing():
    optimizer, p, twin, q = trained_alike("adamw")
    scaler = scaler_of(enabled=False)
    for step in range(1, 4):
        give_gradients(p, step)
        scaler.step(optimizer)
        scaler.update()
        train(twin, step, step)
    assert_same_bits(p, q)


@needs_a_scaler
def test_a_scaler_works_with_groups_that_were_added_later():
    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = st.AdamW(p[:2]), st.AdamW(q[:2])
    train(optimizer, 1, 2)
    train(twin, 1, 2)
    optimizer.add_param_group({"params": p[2:]})
    twin.add_param_group({"params": q[2:]})
    scaler = scaler_of()
    scaler.scale(torch.tensor(1.0))
    give_gradients(p, 3, SCALE)
    p[0].grad[0, 0] = float("inf")
    before = copies_of(p)
    scaler.step(optimizer)
    scaler.update(SCALE)
    assert_same_bits(p, before)
    give_gradients(p, 4, SCALE)
    scaler.step(optimizer)
    train(twin, 4, 4)
    assert_same_bits(p, q)


def test_scale_and_overflow_flag_can_be_attributes_as_the_scaler_of_torch_2_sets_them():
    optimizer, p, twin, q = trained_alike("adamw")
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(SCALE), torch.tensor(0.0)
    train(optimizer, 1, 2, SCALE)
    train(twin, 1, 2)
    assert_same_bits(p, q)
    optimizer.found_inf = torch.tensor(1.0)
    train(optimizer, 3, 3, SCALE)
    assert_same_bits(p, q)
    assert optimizer.statistics()["skipped_steps"] == 1


@pytest.mark.parametrize("name, value", [("grad_scale", torch.ones(2)), ("found_inf", torch.tensor(0.0, dtype=torch.float64))])
def test_scales_and_flags_of_another_type_or_size_are_rejected(name, value):
    optimizer, p, twin, q = trained_alike("adamw")
    setattr(optimizer, name, value)
    give_gradients(p, 1)
    with pytest.raises(ValueError, match=f"{name} must be one torch.float32"):
        optimizer.step()
    delattr(optimizer, name)
    train(optimizer, 1, 1)
    train(twin, 1, 1)
    assert_same_bits(p, q)


@pytest.mark.parametrize("name", CLASSES)
def test_the_protocol_of_torch_1_unscales_and_skips(name):
    optimizer, p, twin, q = trained_alike(name)
    scaler = OldScaler()
    for step in range(1, 7):
        give_gradients(p, step, SCALE)
        if step in (2, 5):
            p[1].grad[3] = float("inf")
            before = copies_of(p)
            scaler.step(optimizer)
            assert_same_bits(p, before)
            continue
        scaler.step(optimizer)
        train(twin, step, step)
        assert_same_bits(p, q)


def test_the_protocol_of_torch_1_does_not_unscale_twice():
    optimizer, p, twin, q = trained_alike("adamw", eps=0.1)
    for step in range(1, 4):
        give_gradients(p, step)
        OldScaler(is_unscaled=True).step(optimizer)
        train(twin, step, step)
        assert_same_bits(p, q)


@pytest.mark.skipif(VERSION >= (2, 0), reason="the old protocol is that of torch 1")
def test_the_stand_in_has_what_the_scaler_of_torch_1_has():
    scaler = torch.cuda.amp.GradScaler(enabled=False)
    for name in ("_get_scale_async", "_check_inf_per_device", "step"):
        assert callable(getattr(scaler, name)) and callable(getattr(OldScaler(), name))
