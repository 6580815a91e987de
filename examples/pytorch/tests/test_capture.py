"""Steps that are captured into a CUDA graph, as far as the host can show it: what is refused, with the reason and without effect,
and what a captured step leaves behind. tests/gpu/test_graphs.py replays graphs."""

import copy

import pytest
import torch
from conftest import CLASSES, SHORT, assert_same_bits, copies_of, give_gradients, make_parameters, train

import slamb.torch as st
from slamb.torch import _capture

# Settings with which a step can be captured after the first three.
CAPTURABLE = {
    "adamw": {},
    "lamb": {"max_gradient_norm": 1.0},
    "slamb": {"local_steps": 0, "dense_below": 0},
    "one_bit_adam": {"warm_up_steps": 2, "compress_single_rank": True},
    "one_bit_lamb": {"warm_up_steps": 2, "compress_single_rank": True},
}


class Capture:
    """Within it the optimizers find that their work is captured. It is executed at once."""

    is_on = False

    def __enter__(self):
        self.is_on = True

    def __exit__(self, *_):
        self.is_on = False


@pytest.fixture
def capture(monkeypatch):
    capture = Capture()
    monkeypatch.setattr(_capture, "is_captured", lambda stream: capture.is_on)
    return capture


def made(name, parameters, **settings):
    return CLASSES[name](parameters, lr=0.02, **{**CAPTURABLE[name], **settings})


def refused(optimizer, capture, reason):
    """Requires that a captured step is refused for this reason, and that it has no effect."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters], {key: dict(entry) for key, entry in optimizer.state.items()}
    with capture, pytest.raises(RuntimeError) as error:
        optimizer.step()
    text = str(error.value)
    assert text.startswith(f"slamb: step() cannot be captured into a CUDA graph, because {reason}"), text
    assert "\n" not in text and ". " not in text
    assert_same_bits(parameters, before[0])
    assert {key: dict(entry) for key, entry in optimizer.state.items()} == before[1]


def test_nothing_is_captured_without_a_stream():
    assert not _capture.is_captured(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_a_captured_step_passes_all_checks_and_computes_what_others_compute(capture, name, dtype):
    p = make_parameters(dtype=dtype)
    q = copies_of(p)
    ours, theirs = made(name, p), made(name, q)
    train(ours, 1, 3)
    train(theirs, 1, 6)
    with capture:
        train(ours, 4, 5)
    train(ours, 6, 6)
    assert_same_bits(p, q)
    assert ours.statistics()["step"] == theirs.statistics()["step"]


def test_steps_whose_number_matters_are_refused(capture):
    for name, settings, reason in (
        ("zero_one_adam", {}, "the schedules of 0/1 Adam follow the number of the step"),
        ("slamb", {}, "only some of its steps exchange the parameters; construct the optimizer with local_steps=0"),
        ("slamb", {"local_steps": 7}, "only some of its steps exchange the parameters"),
        ("slamb", {"local_steps": 0, "compressor": "top_k", "k": 0.1}, "with top_k the rank that chooses follows from the number"),
    ):
        p = make_parameters()
        optimizer = CLASSES[name](p, **{**SHORT[name], **settings})
        train(optimizer, 1, 2)
        give_gradients(p, 3)
        refused(optimizer, capture, reason)
        optimizer.step()
        assert optimizer.statistics()["step"] == 3


def test_the_first_step_is_refused(capture):
    p = make_parameters()
    optimizer = st.AdamW(p)
    give_gradients(p, 1)
    refused(optimizer, capture, "some parameters have not taken a step yet")
    copied = copy.deepcopy(optimizer)
    give_gradients([q for group in copied.param_groups for q in group["params"]], 1)
    refused(copied, capture, "the optimizer has not taken a step yet")
    optimizer.step()
    with capture:
        optimizer.step()
    optimizer.reset_state()
    refused(optimizer, capture, "some parameters have not taken a step yet")


def test_what_has_changed_since_the_last_step_is_refused(capture):
    def stepped():
        p = make_parameters()
        p[3].requires_grad_(False)
        optimizer = st.AdamW(p)
        for step in (1, 2):
            give_gradients(p[:3], step)
            optimizer.step()
        give_gradients(p[:3], 3)
        return optimizer, p

    optimizer, p = stepped()
    p[3].requires_grad_(True)
    refused(optimizer, capture, "some parameters have not taken a step yet")

    optimizer, p = stepped()
    optimizer.param_groups[0]["params"].append(torch.nn.Parameter(torch.zeros(2)))
    refused(optimizer, capture, "some parameters have not taken a step yet")

    optimizer, p = stepped()
    optimizer.param_groups[0]["weight_decay"] = 0.5
    refused(optimizer, capture, "options of parameter group 0 have changed since the last step")

    optimizer, p = stepped()
    del optimizer.param_groups[0]["betas"]
    refused(optimizer, capture, "options of parameter group 0 have changed since the last step")

    optimizer, p = stepped()
    p[1].data = p[1].detach().clone()
    refused(optimizer, capture, "parameters have moved since the last step")

    optimizer, p = stepped()
    p[1].grad = None
    refused(optimizer, capture, "other parameters have a gradient than in the last step")

    optimizer, p = stepped()
    optimizer.state[p[0]]["exp_avg"] = torch.ones_like(p[0])
    refused(optimizer, capture, "optimizer.state has changed since the last step")
    optimizer.step()
    with capture:
        optimizer.step()


def test_a_step_that_would_compare_gradients_is_refused(capture):
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 1)
    optimizer._parts[0]._must_compare_gradients = True
    give_gradients(p, 2)
    refused(optimizer, capture, "it would compare the gradients of the ranks")


@pytest.mark.parametrize("elsewhere", ["betas", "eps", "weight_decay"])
def test_numbers_on_a_gpu_are_refused_without_reading_them(capture, elsewhere):
    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)

        def __float__(self):
            raise AssertionError("this would wait")

    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 1)
    number = torch.zeros(()).as_subclass(OnGpu)
    optimizer.param_groups[0][elsewhere] = (number, 0.999) if elsewhere == "betas" else number
    give_gradients(p, 2)
    refused(optimizer, capture, "betas, eps or weight_decay of parameter group 0 are on a GPU")


def test_other_calls_are_refused(capture):
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 1)
    state = optimizer.state_dict()
    for name, call in (
        ("statistics", optimizer.statistics),
        ("state_dict", optimizer.state_dict),
        ("load_state_dict", lambda: optimizer.load_state_dict(state)),
        ("reset_state", optimizer.reset_state),
        ("synchronize_parameters", optimizer.synchronize_parameters),
        ("broadcast_parameters", optimizer.broadcast_parameters),
        ("add_param_group", lambda: optimizer.add_param_group({"params": make_parameters()})),
        ("copy", lambda: copy.deepcopy(optimizer)),
        ("moments", lambda: optimizer.moments(p[0])),
    ):
        with capture, pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value) == (
            f"slamb: {name}() cannot be captured into a CUDA graph, because of the optimizer's calls only step() can be; make it "
            f"outside of the graph"
        )
    assert_same_bits(optimizer.state_dict(), state)


@pytest.mark.parametrize("name", ["adamw", "one_bit_lamb"])
def test_steps_of_replays_are_shown_at_the_next_call(capture, name):
    p = make_parameters()
    optimizer = made(name, p)
    train(optimizer, 1, 3)
    with capture:
        train(optimizer, 4, 4)
    part = optimizer._parts[0]
    for _ in range(5):
        part.core.step([0.02])  # as a replay takes it
    assert optimizer.statistics()["step"] == 9
    assert float(optimizer.state[p[0]]["step"]) == 9.0
    part.core.step([0.02])
    train(optimizer, 11, 11)
    assert float(optimizer.state[p[0]]["step"]) == 11.0
    part.core.step([0.02])
    assert float(optimizer.state_dict()["state"][0]["step"]) == 12.0


def test_calls_that_are_no_step_leave_the_gradients_of_steps_alone(capture):
    """So gradients may be set to None before an iteration is captured, whatever is called then."""
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 2)
    optimizer.zero_grad()
    for one in p:
        one.grad = None
    optimizer.statistics()
    optimizer.state_dict()
    give_gradients(p, 3)
    with capture:
        optimizer.step()
    assert optimizer.statistics()["step"] == 3


def test_a_parameter_that_only_a_captured_step_has_read_again_is_read_by_the_next_step_too(capture):
    """Nobody knows if the graph will be replayed."""
    p = make_parameters(dtype=torch.bfloat16)
    q = copies_of(p)
    ours, theirs = st.AdamW(p, lr=0.1), st.AdamW(q, lr=0.1)
    train(ours, 1, 2)
    train(theirs, 1, 2)
    for one in (*p, *q):
        with torch.no_grad():
            one.fill_(3.0)
    tensors = ours._parts[0].tensors
    tensors.before_step(is_captured=True)
    for master in tensors.masters.values():
        master.fill_(77.0)  # as if the work had only been captured
    tensors.after_step(with_gradient_only=True)
    train(ours, 3, 5)
    train(theirs, 3, 5)
    assert_same_bits(p, q)
    assert not tensors._reloads_in_graphs


def test_a_scaler_leaves_overflows_to_a_captured_step(capture):
    optimizer = st.AdamW(make_parameters())
    assert optimizer._step_supports_amp_scaling is False
    with capture:
        assert optimizer._step_supports_amp_scaling is True


def test_a_learning_rate_may_be_a_tensor():
    p = make_parameters()
    q = copies_of(p)
    rate = torch.tensor(0.03125)  # a float32 has it
    ours, theirs = st.Lamb(p, lr=rate), st.Lamb(q, lr=0.03125)
    train(ours, 1, 2)
    train(theirs, 1, 2)
    rate.fill_(0.0625)
    theirs.param_groups[0]["lr"] = 0.0625
    train(ours, 3, 4)
    train(theirs, 3, 4)
    assert_same_bits(p, q)


def test_ranks_that_exchange_through_the_host_are_refused(capture):
    p = make_parameters()
    optimizer = made("adamw", p)
    train(optimizer, 1, 2)
    optimizer._parts[0]._ranks = type("AllRanks", (), {"has_host": True})()
    refused(optimizer, capture, "its ranks exchange through the host, which a graph does not; initialize")
