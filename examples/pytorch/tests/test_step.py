"""What step() does around the update: closures, hooks, and gradients that are missing."""

import inspect
import os
import signal
import time

import pytest
import torch
from conftest import (
    CLASSES,
    SHORT,
    LambOracle,
    assert_near,
    assert_same_bits,
    copies_of,
    give_gradients,
    gradients_of,
    make_parameters,
    noise,
    skip_before,
    train,
)

import slamb.torch as st


def test_a_closure_is_called_once_with_gradients_enabled_and_its_loss_is_returned():
    p = make_parameters([(3, 2)])
    optimizer = st.AdamW(p, lr=0.1)
    before = p[0].detach().clone()
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = (p[0] ** 2).sum()
        loss.backward()
        calls.append(torch.is_grad_enabled())
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True]
    assert_near([loss], [(before**2).sum()])
    assert not torch.equal(p[0], before)
    assert optimizer.step(closure=closure) < loss


def test_a_step_without_closure_returns_nothing():
    p = make_parameters()
    give_gradients(p, 1)
    assert st.AdamW(p).step() is None


def test_a_closure_that_fails_leaves_everything_as_it_was():
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 2)
    before = copies_of(p), optimizer.state_dict()

    def closure():
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        optimizer.step(closure)
    assert_same_bits(copies_of(p), before[0])
    assert_same_bits(optimizer.state_dict(), before[1])


def test_an_unknown_argument_of_step_is_a_type_error():
    with pytest.raises(TypeError, match="foo"):
        st.AdamW(make_parameters()).step(foo=1)


@skip_before(2, 0, "hooks of steps")
def test_hooks_run_before_and_after_a_step_and_can_be_removed():
    p = make_parameters()
    optimizer = st.AdamW(p)
    seen = []
    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(("before", o.statistics()["step"])))
    after = optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(("after", o.statistics()["step"])))
    train(optimizer, 1, 2)
    before.remove()
    after.remove()
    train(optimizer, 3, 3)
    assert seen == [("before", 0), ("after", 1), ("before", 1), ("after", 2)]


@skip_before(2, 1, "hooks of state_dict")
def test_hooks_of_state_dict_and_load_state_dict_run():
    optimizer = st.AdamW(make_parameters())
    seen = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda o, sd: seen.append("after saving"))
    optimizer.register_load_state_dict_pre_hook(lambda o, sd: seen.append("before loading"))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("after loading"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before saving", "after saving", "before loading", "after loading"]


def test_steps_appear_in_the_profiler_of_torch():
    p = make_parameters()
    optimizer = st.Lamb(p)
    with torch.profiler.profile() as profile:
        train(optimizer, 1, 1)
    assert any("Optimizer.step#Lamb.step" in event.key for event in profile.key_averages())


def test_schedulers_see_that_step_was_called(recwarn):
    optimizer = st.AdamW(make_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(optimizer, 1, 1)
    schedule.step()
    assert not [warning for warning in recwarn if "lr_scheduler.step()" in str(warning.message)]


def test_zero_grad_removes_gradients_or_makes_them_zero():
    p = make_parameters()
    optimizer = st.AdamW(p, weight_decay=0.0)
    train(optimizer, 1, 1)
    optimizer.zero_grad(set_to_none=False)
    assert all(float(one.grad.abs().sum()) == 0.0 for one in p)
    optimizer.zero_grad(set_to_none=True)
    assert all(one.grad is None for one in p)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_is_the_same_with_both_forms_of_zero_grad(set_to_none):
    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = st.AdamW(p), st.AdamW(q)
    for step in range(1, 5):
        train(twin, step, step)
        optimizer.zero_grad(set_to_none=set_to_none)
        for i, one in enumerate(p):
            (one * noise(one.shape, 1000 * step + i + 1)).sum().backward()
        optimizer.step()
    assert_same_bits(p, q)


@pytest.mark.parametrize("name", CLASSES)
def test_parameters_without_gradient_stay_as_they_are(name):
    p = make_parameters()
    optimizer = CLASSES[name](p, weight_decay=0.5, **SHORT[name])
    before = copies_of(p)
    for step in range(1, 9):
        give_gradients(p, step)
        p[0].grad = p[3].grad = None
        optimizer.step()
        assert_same_bits([p[0], p[3]], [before[0], before[3]])
    assert not torch.equal(p[1], before[1])
    assert not torch.equal(p[2], before[2])


@pytest.mark.parametrize("name", CLASSES)
def test_a_step_without_any_gradient_changes_no_parameter(name):
    p = make_parameters()
    optimizer = CLASSES[name](p, weight_decay=0.5, **SHORT[name])
    before = copies_of(p)
    optimizer.step()
    assert_same_bits(p, before)


def test_parameters_that_need_no_gradient_stay_as_they_are():
    p = make_parameters()
    p[1].requires_grad_(False)
    before = copies_of(p)
    optimizer = st.AdamW(p, lr=0.1, weight_decay=0.5)
    for step in range(1, 4):
        optimizer.zero_grad()
        sum((one**2).sum() for one in p).backward()
        optimizer.step()
    assert_same_bits(p[1], before[1].detach())
    assert not torch.equal(p[0], before[0])


def test_a_gradient_that_appears_later_begins_with_moments_of_zero_at_the_step_of_all():
    p = make_parameters()
    optimizer = st.AdamW(p, lr=0.02)
    early, late = LambOracle(p[1:], adapt=False), LambOracle(p[:1], adapt=False)
    for step in range(1, 9):
        give_gradients(p, step)
        gradients = gradients_of(p)
        if step < 4:
            p[0].grad = None
            late.t += 1
        else:
            late.step(gradients[:1], 0.02)
        optimizer.step()
        early.step(gradients[1:], 0.02)
        assert_near(p, late.p + early.p)


def test_a_gradient_that_pauses_keeps_its_moments():
    p = make_parameters()
    optimizer = st.AdamW(p, lr=0.02)
    others, pausing = LambOracle(p[1:], adapt=False), LambOracle(p[:1], adapt=False)
    for step in range(1, 9):
        give_gradients(p, step)
        gradients = gradients_of(p)
        if step in (3, 4, 6):
            p[0].grad = None
            pausing.t += 1
        else:
            pausing.step(gradients[:1], 0.02)
        optimizer.step()
        others.step(gradients[1:], 0.02)
        assert_near(p, pausing.p + others.p)


@pytest.mark.parametrize("name", CLASSES)
def test_a_gradient_that_is_not_finite_is_skipped_where_the_optimizer_checks_them(name):
    p = make_parameters()
    settings = {"skip_non_finite": True} if name in ("adamw", "lamb") else {}
    optimizer = CLASSES[name](p, **SHORT[name], **settings)
    train(optimizer, 1, 2)
    before = copies_of(p)
    give_gradients(p, 3)
    p[1].grad[2] = float("inf")
    optimizer.step()
    assert_same_bits(p, before)
    statistics = optimizer.statistics()
    assert (statistics["step"], statistics["skipped_steps"]) == (2, 1)
    train(optimizer, 3, 3)
    assert optimizer.statistics()["step"] == 3


def test_a_gradient_that_is_not_finite_reaches_the_parameter_without_the_check_as_in_torch():
    p = make_parameters()
    optimizer = st.AdamW(p)
    give_gradients(p, 1)
    p[1].grad[2] = float("nan")
    optimizer.step()
    assert bool(torch.isnan(p[1][2]))


needs_versions = pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "increment_version"), reason="this torch cannot tell autograd of changes by others"
)


@needs_versions
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autograd_sees_that_a_step_has_changed_parameters(dtype):
    p = make_parameters([(3, 2)], dtype)
    optimizer = st.AdamW(p)
    give_gradients(p, 1)
    loss = (p[0] ** 2).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autograd_sees_no_change_of_parameters_without_gradient(dtype):
    p = make_parameters([(3, 2), (3, 2)], dtype)
    optimizer = st.AdamW(p)
    p[0].grad = torch.ones_like(p[0])
    loss = (p[1] ** 2).sum()
    optimizer.step()
    loss.backward()
    assert_near([p[1].grad], [2 * p[1].detach()])


def test_the_calls_for_several_ranks_work_with_a_single_process():
    p = make_parameters()
    optimizer = st.Slamb(p, **SHORT["slamb"])
    train(optimizer, 1, 3)
    before = copies_of(p)
    optimizer.broadcast_parameters()
    optimizer.synchronize_parameters()
    optimizer.compare_ranks()
    optimizer.consolidate_state_dict()
    assert_same_bits(p, before)
    seen = []
    assert optimizer.with_averaged_parameters(lambda: seen.append(copies_of(p)) or "result") == "result"
    assert_same_bits(seen[0], before)


def test_an_error_of_an_evaluation_with_averaged_parameters_reaches_the_caller():
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 2)

    def evaluate():
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        optimizer.with_averaged_parameters(evaluate)
    train(optimizer, 3, 3)
    assert optimizer.statistics()["step"] == 3


def exit_status_of(function):
    """The exit status of a process that runs the function; negative for a signal."""
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    for _ in range(200):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "it did not end"


def test_a_process_that_fails_has_its_own_exit_status():
    assert exit_status_of(lambda: None) == 0
    assert exit_status_of(lambda: 1 / 0) == 1
    assert exit_status_of(lambda: os.kill(os.getpid(), signal.SIGSEGV)) == -signal.SIGSEGV


@skip_before(2, 0, "default device")
def test_another_default_device_of_torch_does_not_matter():
    def run():
        p = [torch.nn.Parameter(noise((4, 3), 1)), torch.nn.Parameter(noise((4, 6), 4)[:, ::2])]
        gradients = [noise((4, 3), 2), noise((4, 3), 3)]
        torch.set_default_device("meta")
        optimizer = st.AdamW(p, threads=1)
        for one, gradient in zip(p, gradients):
            one.grad = gradient
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()

    assert exit_status_of(run) == 0


def test_step_takes_the_arguments_that_torch_and_its_scaler_look_for():
    parameters = inspect.signature(st.AdamW.step).parameters
    assert "closure" in parameters
    assert "grad_scaler" not in parameters  # torch >= 2 would use its old protocol, and warn
