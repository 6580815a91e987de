"""Other programs read and write `optimizer.state` and `optimizer.param_groups`: what they write counts, or is an error."""

import copy
import gc
import os
import pickle
import sys
import threading
from collections import defaultdict

import numpy as np
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
    parameters_of,
    skip_before,
    train,
)

import slamb.torch as st

OPEN = {name: CLASSES[name] for name in ("adamw", "lamb")}


def through_pickle(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


# ------------------------------------------------------------------------------------------------------ The moments themselves


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", OPEN)
def test_the_state_has_the_moments(name, memory_format):
    p = [torch.nn.Parameter(noise((2, 3, 4, 5), 1).to(memory_format=memory_format)), torch.nn.Parameter(noise((7,), 2))]
    optimizer = OPEN[name](p, lr=0.01, eps=1e-6)
    oracle = LambOracle(p, adapt=name == "lamb", eps=1e-6)
    for step in range(1, 4):
        give_gradients(p, step)
        oracle.step(gradients_of(p), 0.01)
        optimizer.step()
        for i, one in enumerate(p):
            assert float(optimizer.state[one]["step"]) == step
            assert optimizer.state[one]["exp_avg"].shape == one.shape
            assert_near([optimizer.state[one]["exp_avg"], optimizer.state[one]["exp_avg_sq"]], [oracle.m[i], oracle.v[i]])


@pytest.mark.parametrize("options", [{}, {"compressor": "int8"}], ids=["dense", "int8"])
def test_moments_that_are_written_in_place_count(options):
    p = [torch.nn.Parameter(torch.ones(5))]
    optimizer = st.AdamW(p, lr=0.1, weight_decay=0.0, **options)
    train(optimizer, 1, 3)
    for value in optimizer.state[p[0]].values():
        if torch.is_tensor(value) and value.dim():
            value.zero_()
    before = p[0].detach().clone()
    p[0].grad = torch.zeros(5)
    optimizer.step()
    assert torch.equal(before, p[0])


def test_a_number_of_steps_that_is_written_in_place_counts():
    p = make_parameters()
    q = copies_of(p)
    optimizer, fresh = st.AdamW(p), st.AdamW(q)
    train(optimizer, 1, 3)
    for one in p:
        for value in optimizer.state[one].values():
            value.zero_()
    for one, other in zip(p, q):
        other.data.copy_(one.data)
    train(optimizer, 4, 6)
    train(fresh, 4, 6)
    assert_same_bits(p, q)


def test_a_copy_of_moments_can_be_read_from_every_optimizer():
    for name, cls in CLASSES.items():
        p = make_parameters()
        optimizer = cls(p, **SHORT[name])
        train(optimizer, 1, 2)
        found = optimizer.moments(p[1])
        assert found["step"] == 2 and found["exp_avg"].shape == p[1].shape
        assert found["exp_avg"].abs().sum() > 0 and found["exp_avg_sq"].abs().sum() > 0
        found["exp_avg"].zero_()
        assert optimizer.moments(p[1])["exp_avg"].abs().sum() > 0
    with pytest.raises(ValueError, match="moments = '8-bit'"):
        st.AdamW(make := make_parameters(), moments="8-bit").moments(make[0])
    with pytest.raises(ValueError, match="does not train"):
        optimizer.moments(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_number_of_steps_is_right_under_every_default_type(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        p = torch.nn.Parameter(torch.ones(4, dtype=torch.float32))
        optimizer = st.AdamW([p], lr=1e-3, weight_decay=0.0)
        for _ in range(1001):
            p.grad = torch.full_like(p, 0.1)
            optimizer.step()
        assert float(optimizer.state[p]["step"]) == float(optimizer.state_dict()["state"][0]["step"]) == 1001.0
        resumed = st.AdamW([torch.nn.Parameter(torch.ones(4, dtype=torch.float32))])
        resumed.load_state_dict(optimizer.state_dict())
        assert resumed.statistics()["step"] == 1001
    finally:
        torch.set_default_dtype(before)


# --------------------------------------------------------------------------------------------------------- Entries of others


class Lookahead:
    """Whose slow weights are in the state of the optimizer that it wraps."""

    def __init__(self, base):
        self.base, self.taken = base, 0

    def step(self):
        self.base.step()
        self.taken += 1
        if self.taken % 3 == 0:
            for p in parameters_of(self.base):
                state = self.base.state[p]
                if "slow" not in state:
                    state["slow"] = p.detach().clone()
                state["slow"].lerp_(p.detach(), 0.5)
                with torch.no_grad():
                    p.copy_(state["slow"])

    def train(self, first, last):
        for step in range(first, last + 1):
            give_gradients(parameters_of(self.base), step)
            self.step()


@pytest.mark.parametrize("name", CLASSES)
def test_a_wrapper_that_keeps_its_state_in_that_of_the_optimizer_continues_bit_for_bit(name):
    p = make_parameters()
    whole = Lookahead(CLASSES[name](p, lr=0.05, **SHORT[name]))
    whole.train(1, 7)
    saved = copy.deepcopy(whole.base.state_dict())
    q = copies_of(p)
    resumed = Lookahead(CLASSES[name](q, lr=0.05, **SHORT[name]))
    resumed.base.load_state_dict(saved)
    resumed.taken = whole.taken
    whole.train(8, 16)
    resumed.train(8, 16)
    assert_same_bits(q, p)


@pytest.mark.parametrize("way", ["load_state_dict", "deepcopy", "pickle", "step"])
@pytest.mark.parametrize("name", CLASSES)
def test_entries_of_others_are_kept(name, way):
    p = make_parameters()
    optimizer = CLASSES[name](p, **SHORT[name])
    train(optimizer, 1, 2)
    others = {"_mechanic": {"s": torch.ones(2)}, "n_calls": 3, "average": torch.arange(3.0), "nothing": None}
    optimizer.state.update(others)
    optimizer.state[p[2]]["ema"] = torch.full(p[2].shape, 7.0)
    if way == "load_state_dict":
        other = CLASSES[name](copies_of(p), **SHORT[name])
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        other = {"deepcopy": copy.deepcopy, "pickle": through_pickle, "step": lambda one: one}[way](optimizer)
    for _ in range(2):
        assert all(key in other.state for key in others)
        assert other.state["n_calls"] == 3
        assert torch.equal(other.state["average"], torch.arange(3.0))
        assert torch.equal(other.state[parameters_of(other)[2]]["ema"], torch.full(p[2].shape, 7.0))
        train(other, 3, 3)


# ---------------------------------------------------------------------------------------------------------------- Resets

RESETS = {
    "state.clear()": lambda o: o.state.clear(),
    "state = defaultdict(dict)": lambda o: setattr(o, "state", defaultdict(dict)),
    "__setstate__": lambda o: o.__setstate__({"state": defaultdict(dict)}),
    "del state[p]": lambda o: [o.state.pop(p) for p in parameters_of(o)],
    "state[p].clear()": lambda o: [o.state[p].clear() for p in parameters_of(o)],
    "state[p] = {}": lambda o: [o.state.__setitem__(p, {}) for p in parameters_of(o)],
    "reset_state()": lambda o: o.reset_state(),
    "load_state_dict of a new one": lambda o: o.load_state_dict(type(o)(copies_of(parameters_of(o)), **o.given).state_dict()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", RESETS)
@pytest.mark.parametrize("name", CLASSES)
def test_an_optimizer_whose_state_was_reset_begins_anew(name, way, dtype):
    p = make_parameters(dtype=dtype)
    settings = {**SHORT[name], "lr": 0.02, "rounding": "stochastic"}  # without copies of more bits than a new optimizer has
    optimizer = CLASSES[name](p, **settings)
    optimizer.given = settings
    train(optimizer, 1, 5)
    RESETS[way](optimizer)
    q = copies_of(p)
    fresh = CLASSES[name](q, **settings)
    train(optimizer, 6, 9)
    train(fresh, 6, 9)
    assert_same_bits(p, q)
    assert optimizer.statistics()["step"] == 4
    assert all(float(optimizer.state[one]["step"]) == 4.0 for one in p)


def test_one_parameter_of_adamw_begins_anew_as_in_torch():
    p = make_parameters()
    q = copies_of(p)
    optimizer, reference = st.AdamW(p, lr=0.05), torch.optim.AdamW(q, lr=0.05)
    train(optimizer, 1, 4)
    train(reference, 1, 4)
    del optimizer.state[p[1]], reference.state[q[1]]
    train(optimizer, 5, 9)
    train(reference, 5, 9)
    assert_near(p, q)
    assert [float(optimizer.state[one]["step"]) for one in p] == [9.0, 5.0, 9.0, 9.0]


@pytest.mark.parametrize("name", ["slamb", "one_bit_adam"])
def test_one_parameter_of_another_optimizer_cannot_begin_anew(name):
    p = make_parameters()
    optimizer = CLASSES[name](p, **SHORT[name])
    train(optimizer, 1, 4)
    del optimizer.state[p[1]]
    give_gradients(p, 5)
    with pytest.raises(ValueError, match="begin anew as a whole; call reset_state()"):
        optimizer.step()
    optimizer.reset_state()
    train(optimizer, 5, 6)
    assert optimizer.statistics()["step"] == 2


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_that_is_copied_or_moved_by_others_goes_on(name):
    """As Lightning moves it to a device."""
    p = make_parameters()
    q = copies_of(p)
    settings = {**SHORT[name], **({"compressor": "int8", "compress_single_rank": True} if name == "lamb" else {})}
    optimizer, twin = CLASSES[name](p, **settings), CLASSES[name](q, **settings)
    train(optimizer, 1, 5)
    train(twin, 1, 5)
    for one, entry in optimizer.state.items():
        optimizer.state[one] = {key: dict(value) if isinstance(value, dict) else value for key, value in entry.items()}
    train(optimizer, 6, 7)
    optimizer.state = copy.deepcopy({0: optimizer.state}, {id(one): one for one in p})[0]
    assert optimizer.state[p[0]]["step"] is not twin.state[q[0]]["step"]
    train(optimizer, 8, 9)
    train(twin, 6, 9)
    assert_same_bits(p, q)
    assert float(optimizer.state[p[0]]["step"]) == 9.0


def test_a_shallow_copy_shares_everything():
    p = make_parameters()
    optimizer = st.Slamb(p, **SHORT["slamb"])
    train(optimizer, 1, 2)
    other = copy.copy(optimizer)
    train(other, 3, 4)
    train(optimizer, 5, 6)
    assert other.statistics()["step"] == 6 and other.state is optimizer.state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_that_is_made_within_inference_mode_steps(dtype):
    p = make_parameters(dtype=dtype)
    q = copies_of(p)
    copied = copy.deepcopy(st.AdamW(p))
    with torch.inference_mode():
        optimizer = st.AdamW(p)
        copied.state_dict()
    twin = st.AdamW(q)
    train(optimizer, 1, 3)
    train(copied, 1, 3)
    train(twin, 1, 3)
    assert_same_bits(parameters_of(copied), q)
    assert_same_bits(p, q)
    optimizer.state[p[0]]["exp_avg"].zero_()


# ------------------------------------------------------------------------------------------------------ Entries that replace


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CLASSES)
def test_entries_that_another_program_puts_there_are_taken_over(name, dtype):
    """As torch's ZeroRedundancyOptimizer loads them."""
    p = make_parameters(dtype=dtype)
    optimizer = CLASSES[name](p, lr=0.02, **SHORT[name])
    train(optimizer, 1, 5)
    saved = copy.deepcopy(optimizer.state_dict()["state"])
    q = copies_of(p)
    other = CLASSES[name](q, lr=0.02, **SHORT[name])
    for i, one in enumerate(q):
        other.state[one] = saved[i]
    assert other.statistics()["step"] == 5
    train(optimizer, 6, 9)
    train(other, 6, 9)
    assert_same_bits(q, p)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"step": torch.tensor(1.0), "exp_avg": torch.zeros(7)}, "parameter 1 has no 'exp_avg_sq'"),
        ({"step": torch.tensor(1.0), "exp_avg": torch.zeros(7), "exp_avg_sq": torch.zeros(6)}, r"'exp_avg_sq' = .*\(6,\).*\(7,\)"),
        ({"step": torch.tensor(-1.0), "exp_avg": torch.zeros(7), "exp_avg_sq": torch.zeros(7)}, "whole number"),
        ({"step": 1, "exp_avg": torch.zeros(7), "exp_avg_sq": torch.zeros(7), "max_exp_avg_sq": 1}, "amsgrad"),
    ],
)
def test_entries_that_do_not_fit_are_an_error_and_nothing_has_changed(entry, message):
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 2)
    good, before = optimizer.state[p[1]], copies_of(p)
    optimizer.state[p[1]] = entry
    give_gradients(p, 3)
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert_same_bits(p, before)
    optimizer.state[p[1]] = good
    optimizer.step()
    assert optimizer.statistics()["step"] == 3


# ------------------------------------------------------------------------------------------- What a hostile reader has found


def states_alike(optimizer, twin, first, last):
    """Requires that both go on alike."""
    train(optimizer, first, last)
    train(twin, first, last)
    assert_same_bits(parameters_of(optimizer), parameters_of(twin))
    assert_same_bits(optimizer.state_dict(), twin.state_dict())


@pytest.mark.parametrize("change", [{"maximize": True}, {"lr": -1.0}, {"lr": float("nan")}, {"betas": "ab"}, {"betas": (0.5,)}, {"eps": None}])
@pytest.mark.parametrize("name, groups", [("adamw", 1), ("adamw", 2), ("slamb", 1), ("slamb", 2), ("one_bit_adam", 2)])
def test_a_state_with_wrong_options_changes_nothing(name, groups, change):
    def make(p):
        given = [{"params": p}] if groups == 1 else [{"params": p[:2]}, {"params": p[2:], "betas": (0.8, 0.9)}]
        return CLASSES[name](given, **SHORT[name])

    p = make_parameters()
    optimizer, twin = make(p), make(copies_of(p))
    train(optimizer, 1, 3)
    train(twin, 1, 3)
    other = make(make_parameters(seed=4))
    train(other, 1, 5)
    bad = copy.deepcopy(other.state_dict())
    bad["param_groups"][-1].update(change)
    with pytest.raises(ValueError):
        optimizer.load_state_dict(bad)
    states_alike(optimizer, twin, 4, 6)


def test_a_state_that_fails_at_a_later_part_changes_nothing():
    p = make_parameters()
    groups = lambda of: [{"params": of[:2]}, {"params": of[2:], "betas": (0.8, 0.9)}]  # noqa: E731
    optimizer, twin = st.AdamW(groups(p)), st.AdamW(groups(copies_of(p)))
    train(optimizer, 1, 3)
    train(twin, 1, 3)
    other = st.AdamW(groups(make_parameters(seed=4)))
    train(other, 1, 5)
    state = copy.deepcopy(other.state_dict())
    p[2].grad = torch.ones(3, 2, 4).to_sparse()
    with pytest.raises(ValueError, match="must be dense"):
        optimizer.load_state_dict(state)
    p[2].grad = None
    for value in (torch.zeros(3, 2, 4, device="meta"), torch.zeros(3, 2, 4).to_sparse()):
        bad = copy.deepcopy(state)
        bad["state"][2]["exp_avg"] = value
        with pytest.raises(ValueError, match="'exp_avg' = .*with values"):
            optimizer.load_state_dict(bad)
    states_alike(optimizer, twin, 4, 6)


def test_a_state_for_which_a_part_cannot_be_made_leaves_the_compression_errors():
    def make(values):
        odd = torch.nn.Parameter(torch.ones(3, 2).double(), requires_grad=False)
        return st.AdamW([*values, odd], compressor="int8", compress_single_rank=True)

    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = make(p), make(q)
    for one, its in ((optimizer, p), (twin, q)):
        for step in range(1, 4):
            give_gradients(its, step)
            one.step()
    reference = torch.optim.AdamW([*copies_of(p), torch.nn.Parameter(torch.ones(3, 2))])
    train(reference, 1, 2)
    with pytest.raises(ValueError, match="float64"):
        optimizer.load_state_dict(reference.state_dict())
    for step in range(4, 7):
        for one, its in ((optimizer, p), (twin, q)):
            give_gradients(its, step)
            one.step()
    assert_same_bits(p, q)


def test_a_hook_that_fails_after_a_state_was_loaded_leaves_the_loaded_state():
    p = make_parameters()
    optimizer, source = st.AdamW(p), st.AdamW(copies_of(p))
    train(source, 1, 5)
    if not hasattr(optimizer, "register_load_state_dict_post_hook"):
        pytest.skip("no hooks")

    def fail(_):
        raise KeyError("of a hook")

    optimizer.register_load_state_dict_post_hook(fail)
    with pytest.raises(KeyError):
        optimizer.load_state_dict(source.state_dict())
    assert optimizer.statistics()["step"] == 5 and float(optimizer.state[p[0]]["step"]) == 5.0


def test_entries_that_change_places_change_the_moments():
    p = make_parameters([(3, 2), (3, 2)])
    optimizer = st.AdamW(p)
    train(optimizer, 1, 3)
    before = [optimizer.moments(one) for one in p]
    optimizer.state[p[0]], optimizer.state[p[1]] = optimizer.state[p[1]], optimizer.state[p[0]]
    assert_same_bits([optimizer.moments(one) for one in p], before[::-1])
    optimizer.import_state({"state": {0: optimizer.state[p[1]], 1: optimizer.state[p[0]]}, "param_groups": [{"params": [0, 1]}]})
    assert_same_bits([optimizer.moments(one) for one in p], before)
    entry = optimizer.state[p[0]]
    entry["exp_avg"], entry["exp_avg_sq"] = entry["exp_avg_sq"], entry["exp_avg"]
    assert_same_bits(optimizer.moments(p[0])["exp_avg"], before[0]["exp_avg_sq"])
    assert_same_bits(optimizer.moments(p[0])["exp_avg_sq"], before[0]["exp_avg"])


@pytest.mark.parametrize("options", [{}, {"compressor": "int8", "compress_single_rank": True}], ids=["dense", "int8"])
def test_moments_that_are_given_other_memory_are_taken_over(options):
    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = st.AdamW(p, **options), st.AdamW(q, **options)
    train(optimizer, 1, 2)
    train(twin, 1, 2)
    for entry in optimizer.state.values():
        for value in entry.values():
            if torch.is_tensor(value):
                value.data = value.data.clone()
    states_alike(optimizer, twin, 3, 4)
    assert_same_bits(optimizer.state[p[1]]["exp_avg"], optimizer.moments(p[1])["exp_avg"])
    for entry in optimizer.state.values():
        entry["exp_avg"].data = torch.zeros_like(entry["exp_avg"])
    assert not optimizer.moments(p[1])["exp_avg"].any()


@skip_before(2, 2, "hooks of states")
def test_what_a_hook_writes_to_the_state_is_kept():
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 2)

    def write(one):
        one.state[p[0]]["slow"] = torch.ones(1)
        one.state[p[0]]["exp_avg"].fill_(3.0)

    optimizer.register_state_dict_pre_hook(write)
    state = optimizer.state_dict()
    for entry in (state["state"][0], optimizer.state[p[0]]):
        assert "slow" in entry and bool((entry["exp_avg"] == 3.0).all())
    assert bool((optimizer.moments(p[0])["exp_avg"] == 3.0).all())


def test_what_is_written_while_a_thread_saves_is_kept():
    p = make_parameters([(3, 2)] * 100)
    optimizer = st.AdamW(p)
    train(optimizer, 1, 1)
    ends, lost = threading.Event(), 0

    def save():
        while not ends.is_set():
            optimizer.state_dict()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=save)
    thread.start()
    try:
        for number in range(300):
            optimizer.state[p[number % 100]]["slow"] = number
            lost += optimizer.state[p[number % 100]].get("slow") != number
    finally:
        ends.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert lost == 0


@pytest.mark.parametrize("options", [{}, {"moments": "8-bit"}, {"compressor": "int8", "compress_single_rank": True}])
@pytest.mark.parametrize("make_copy", [copy.deepcopy, through_pickle])
def test_what_is_written_to_the_state_of_a_copy_before_it_is_used_counts(make_copy, options):
    p = make_parameters()
    optimizer = st.AdamW(p, **options)
    train(optimizer, 1, 3)
    copied = make_copy(optimizer)
    copied.state.clear()
    train(copied, 4, 4)
    assert copied.statistics()["step"] == 1
    if "moments" not in options:
        other = make_copy(optimizer)
        for one in parameters_of(other):
            other.state[one]["exp_avg"].fill_(7.0)
        assert bool((other.moments(parameters_of(other)[1])["exp_avg"] == 7.0).all())
    saved = copy.deepcopy(optimizer.state_dict()["state"])
    train(optimizer, 4, 6)
    last = make_copy(optimizer)
    for i, one in enumerate(parameters_of(last)):
        last.state[one] = saved[i]
    assert last.statistics()["step"] == 3


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_state_that_is_loaded_before_the_first_forward_of_a_lazy_module_is_kept():
    def make():
        torch.manual_seed(1)
        model = torch.nn.LazyLinear(3)
        return model, st.AdamW(model.parameters())

    model, optimizer = make()
    model(torch.ones(2, 4))
    train(optimizer, 1, 2)
    other, resumed = make()
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other(torch.ones(2, 4))
    other.load_state_dict(model.state_dict())
    states_alike(optimizer, resumed, 3, 4)
    assert resumed.statistics()["step"] == 4


def test_a_copy_of_moments_that_are_not_finite_is_no_change():
    p = make_parameters()
    q = copies_of(p)
    settings = {"compressor": "int8", "compress_single_rank": True, "skip_non_finite": False}
    optimizer, twin = st.AdamW(p, **settings), st.AdamW(q, **settings)
    for one in (optimizer, twin):
        train(one, 1, 2)
        one.state[parameters_of(one)[0]]["exp_avg"][0, 0] = float("nan")
    for one, entry in list(optimizer.state.items()):
        optimizer.state[one] = {key: value.clone() if torch.is_tensor(value) else value for key, value in entry.items()}
    states_alike(optimizer, twin, 3, 4)


def test_moments_that_are_written_before_the_first_step_stay_when_parameters_come():
    p = make_parameters()
    optimizer = st.AdamW(p[:2])
    optimizer.state[p[0]]["exp_avg"].fill_(1.0)
    optimizer.add_param_group({"params": p[2:]})
    assert bool((optimizer.moments(p[0])["exp_avg"] == 1.0).all())


def test_the_number_of_steps_of_each_parameter_can_be_written():
    p = make_parameters()
    q = copies_of(p)
    optimizer, reference = st.AdamW(p), torch.optim.AdamW(q)
    for one, its in ((optimizer, p), (reference, q)):
        train(one, 1, 3)
        for each in its:
            one.state[each]["step"] += 1
        one.state[its[0]]["step"].zero_()
        train(one, 4, 6)
    assert_near(p, q)
    assert [float(optimizer.state[one]["step"]) for one in p] == [float(reference.state[one]["step"]) for one in q] == [3.0, 7.0, 7.0, 7.0]


def test_import_state_takes_moments_and_steps_alone():
    p = make_parameters(dtype=torch.bfloat16)
    source = st.AdamW(copies_of(p))
    train(source, 1, 3)
    optimizer = st.AdamW(p)
    before = copies_of(p)
    optimizer.state["calls"], optimizer.state[p[0]]["slow"] = 3, 4
    optimizer.import_state(source.state_dict())
    assert_same_bits(p, before)
    assert optimizer.state["calls"] == 3 and optimizer.state[p[0]]["slow"] == 4
    assert optimizer.statistics()["step"] == 3
    assert_same_bits(optimizer.moments(p[2])["exp_avg"], source.moments(parameters_of(source)[2])["exp_avg"])


def test_entries_of_others_may_have_names_that_are_not_used_here():
    p = make_parameters()
    optimizer = st.AdamW(p)
    train(optimizer, 1, 2)
    optimizer.state[p[0]]["number"] = 5
    state = copy.deepcopy(optimizer.state_dict())
    assert state["state"][0]["number"] == 5
    other = st.AdamW(copies_of(p))
    other.load_state_dict(state)
    assert other.state[parameters_of(other)[0]]["number"] == 5


@pytest.mark.parametrize("name", ["slamb", "adamw"])
def test_a_state_whose_betas_cannot_be_is_refused_when_it_is_loaded(name):
    p = make_parameters()
    settings = {**SHORT[name], **({"max_gradient_norm": 1.0} if name == "adamw" else {})}
    optimizer = CLASSES[name]([{"params": p[:2]}, {"params": p[2:]}], **settings)
    train(optimizer, 1, 2)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][1]["betas"] = (0.5, 0.9)
    with pytest.raises(ValueError, match="betas"):
        optimizer.load_state_dict(state)
    train(optimizer, 3, 3)


def test_parameters_of_different_parts_must_not_share_memory():
    p = torch.nn.Parameter(noise((4, 3), 1))
    optimizer = st.AdamW([p])
    train(optimizer, 1, 1)
    view = torch.nn.Parameter(p.detach()[:2])
    with pytest.raises(ValueError, match="overlaps"):
        optimizer.add_param_group({"params": [view]})
    train(optimizer, 2, 2)


def test_a_group_without_a_key_is_named():
    p = make_parameters()
    optimizer = st.AdamW(p)
    del optimizer.param_groups[0]["eps"]
    give_gradients(p, 1)
    with pytest.raises(ValueError, match="parameter group 0 has no 'eps'"):
        optimizer.step()


# --------------------------------------------------------------------------------------------- From and to other optimizers


@pytest.mark.parametrize("call", ["load_state_dict", "import_state"])
def test_adamw_continues_from_the_state_of_torch(call):
    p = make_parameters()
    q = copies_of(p)
    reference = torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.99), weight_decay=0.1)
    train(reference, 1, 4)
    for one, other in zip(p, q):
        other.data.copy_(one.data)
    options = {} if call == "load_state_dict" else {"lr": 0.05, "betas": (0.8, 0.99), "weight_decay": 0.1}
    optimizer = st.AdamW(q, **options)
    getattr(optimizer, call)(reference.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.05 and optimizer.param_groups[0]["betas"] == (0.8, 0.99)
    assert optimizer.param_groups[0]["adapt"] is True
    assert optimizer.statistics()["step"] == 4
    train(reference, 5, 9)
    train(optimizer, 5, 9)
    assert_near(q, p)


@pytest.mark.parametrize("name", OPEN)
def test_torch_continues_from_an_exported_state(name):
    p = make_parameters()
    optimizer = OPEN[name]([{"params": p[:2]}, {"params": p[2:], "weight_decay": 0.0}], lr=0.05, weight_decay=0.1)
    train(optimizer, 1, 4)
    q = copies_of(p)
    other = torch.optim.AdamW([{"params": q[:2]}, {"params": q[2:]}])
    other.load_state_dict(optimizer.export_state())
    assert [float(other.state[one]["step"]) for one in q] == [4.0] * 4
    assert_same_bits([other.state[one]["exp_avg"] for one in q], [optimizer.moments(one)["exp_avg"] for one in p])
    if name == "adamw":
        train(optimizer, 5, 9)
        train(other, 5, 9)
        assert_near(p, q)


def test_lamb_with_a_compressor_continues_from_lamb_without():
    p = make_parameters()
    optimizer = st.Lamb(p, lr=0.02)
    train(optimizer, 1, 4)
    q = copies_of(p)
    other = st.Lamb(q, lr=0.02, compressor="int8")
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, 5, 8)
    train(other, 5, 8)  # a single rank compresses nothing
    assert_near(q, p)


def test_states_of_optimizers_that_differ_are_refused():
    p = make_parameters()
    reference = torch.optim.AdamW(copies_of(p), amsgrad=True)
    train(reference, 1, 2)
    with pytest.raises(ValueError, match="amsgrad"):
        st.AdamW(p).load_state_dict(reference.state_dict())
    added = torch.optim.Adam(copies_of(p), weight_decay=0.1)
    train(added, 1, 2)
    if "decoupled_weight_decay" in added.param_groups[0]:
        with pytest.raises(ValueError, match="import_state"):
            st.AdamW(p).load_state_dict(added.state_dict())
    taken = st.AdamW(p)
    taken.import_state(added.state_dict())
    assert taken.statistics()["step"] == 2
    with pytest.raises(ValueError, match="import_state.. is for AdamW and Lamb"):
        st.Slamb(make_parameters()).import_state(added.state_dict())
    with pytest.raises(ValueError, match="2 parameter groups, but this optimizer has 1|parameters in parameter group 0"):
        two = torch.optim.AdamW([{"params": copies_of(p[:2])}, {"params": copies_of(p[2:])}])
        taken.import_state(two.state_dict())


def test_a_state_of_an_older_version_is_loaded():
    """Dense AdamW saved bytes of its rank, of all parameters of parameter groups."""
    p = make_parameters()
    optimizer = st.AdamW(p, lr=0.02)
    train(optimizer, 1, 4)
    part = optimizer._parts[0]
    shapes = [number for one in p for number in (one.dim(), *one.shape)]
    old = {
        "state": {i: {"step": torch.tensor(4.0), "ranks": {}} for i in range(4)},
        "param_groups": optimizer.state_dict()["param_groups"],
    }
    old["state"][0]["ranks"] = {"groups": torch.tensor([0, 1]), "shapes": torch.tensor(shapes), "rank0_of_1": part.save()}
    q = copies_of(p)
    other = st.AdamW(q, lr=0.02)
    other.load_state_dict(old)
    train(optimizer, 5, 8)
    train(other, 5, 8)
    assert_same_bits(q, p)


# ---------------------------------------------------------------------------------------------------------------- By names


class Net(torch.nn.Module):
    def __init__(self, order):
        super().__init__()
        for name in order:
            setattr(self, name, torch.nn.Linear(5, 5, bias=False))

    def give_gradients(self, step):
        for name, p in self.named_parameters():
            p.grad = noise((5, 5), 1000 * step + ord(name[0]))


def by_names(optimizer, state):
    """As torch's documentation shows it."""
    at = {n: i for group in state["param_groups"] for n, i in zip(group["param_names"], group["params"])}
    names = [n for group in optimizer.param_groups for n in group["param_names"]]
    state = copy.deepcopy(state)
    state["state"] = {i: state["state"][at[n]] for i, n in enumerate(names)}
    state["param_groups"][0]["param_names"] = names
    return state


@pytest.mark.parametrize("way", ["nothing", "hook", "without names"])
@pytest.mark.parametrize("name", CLASSES)
@skip_before(2, 6, "names of parameters")
def test_parameters_are_found_by_their_names(name, way):
    first, second = Net("xyz"), Net("zxy")
    settings = {**SHORT[name], "lr": 0.02}
    optimizer = CLASSES[name](first.named_parameters(), **settings)
    for step in range(1, 6):
        first.give_gradients(step)
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    resumed = CLASSES[name](second.named_parameters(), **settings)
    if way == "hook":
        resumed.register_load_state_dict_pre_hook(by_names)
    elif way == "without names":  # but in the order of the second
        state = by_names(resumed, state)
        del state["param_groups"][0]["param_names"]
    resumed.load_state_dict(state)
    for step in range(6, 10):
        assert all(torch.equal(second.get_parameter(key), p) for key, p in first.named_parameters())
        for net, one in ((first, optimizer), (second, resumed)):
            net.give_gradients(step)
            one.step()
    assert all(torch.equal(second.get_parameter(key), p) for key, p in first.named_parameters())


@skip_before(2, 6, "names of parameters")
def test_states_of_parameters_with_other_names_are_refused():
    first, second = Net("xy"), Net("xz")
    optimizer, other = st.AdamW(first.named_parameters()), st.AdamW(second.named_parameters())
    first.give_gradients(1)
    optimizer.step()
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"other parameters, by their names.*z\.weight.*remove 'param_names'"):
        other.load_state_dict(state)
    wrapped = copy.deepcopy(state)
    wrapped["param_groups"][0]["param_names"] = ["module.y.weight", "module._orig_mod.x.weight"]
    wrapped["state"] = {0: state["state"][1], 1: state["state"][0]}
    again = st.AdamW(Net("xy").named_parameters())
    again.load_state_dict(wrapped)
    assert_same_bits([again.state[p]["exp_avg"] for p in parameters_of(again)], [state["state"][i]["exp_avg"] for i in (0, 1)])


# ---------------------------------------------------------------------------------------------------- Threads and processes


@pytest.mark.parametrize("how", ["del", "sys.exit", "step", "state_dict"])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_forked_process_ends_and_cannot_step(how, steps):
    p = [torch.nn.Parameter(noise((400, 300), 1))]
    optimizer = st.AdamW(p, threads=2)
    train(optimizer, 1, steps)
    give_gradients(p, 2)
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(20)
        status = 1
        try:
            if how == "del":
                del optimizer
                status = 0
            elif how == "sys.exit":
                sys.exit(0)
            else:
                getattr(optimizer, how)()
        except RuntimeError as error:
            status = 0 if "forked" in str(error) and "spawn" in str(error) else 2
        except SystemExit:
            gc.collect()
            del optimizer
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    optimizer.step()


def test_a_worker_of_a_data_loader_ends():
    p = [torch.nn.Parameter(noise((400, 300), 1))]
    optimizer = st.AdamW(p, threads=2)
    train(optimizer, 1, 1)
    dataset = [(i, optimizer) for i in range(4)]
    loader = torch.utils.data.DataLoader(
        dataset, num_workers=1, collate_fn=lambda batch: torch.tensor([i for i, _ in batch]), multiprocessing_context="fork", timeout=30
    )
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3]


def test_a_thread_that_saves_and_a_training_wait_for_each_other():
    p = [torch.nn.Parameter(noise((300, 300), 1))]
    optimizer = st.Slamb(p, threads=1)
    failures, states = [], []

    def save():
        try:
            for _ in range(20):
                states.append(optimizer.state_dict()["state"][0]["step"].item())
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    train(optimizer, 1, 40)
    thread.join()
    assert not failures and len(states) == 20 and states == sorted(states)
    assert optimizer.statistics()["step"] == 40


@pytest.mark.parametrize("name", ["lamb", "one_bit_adam"])
def test_flush_to_zero_of_the_caller_holds_for_all_threads(name):
    def run(threads, flush):
        p = torch.nn.Parameter(noise((40000,), 3))
        optimizer = CLASSES[name]([p], lr=1e-3, weight_decay=0.0, threads=threads)
        torch.set_flush_denormal(flush)
        try:
            for step in range(900):
                p.grad = noise((40000,), 1) if step == 0 else torch.zeros(40000)
                optimizer.step()
            return p.detach().clone(), optimizer.moments(p)["exp_avg"]
        finally:
            torch.set_flush_denormal(False)

    for flush in (False, True):
        assert_same_bits(run(1, flush), run(2, flush))
    if torch.set_flush_denormal(True):
        torch.set_flush_denormal(False)
        assert not torch.equal(run(1, False)[1], run(1, True)[1])


# ------------------------------------------------------------------------------------------------------------ Gradients


@skip_before(2, 10, "grad_dtype")
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype, value", [(torch.float16, 7e4), (torch.float16, 1e-8), (torch.bfloat16, 1.00390625 + 1e-3)])
def test_gradients_of_32_bits_of_parameters_of_16_are_taken_as_they_are(dtype, value, rounding):
    p = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    p.grad_dtype = torch.float32
    optimizer = st.AdamW([p], lr=1e-3, eps=1e-12, weight_decay=0.0, rounding=rounding)
    for step in range(1, 4):
        p.grad = torch.full((4,), value)
        optimizer.step()
        assert_near([optimizer.moments(p)["exp_avg"]], [np.full(4, value * (1 - 0.9**step))], atol=0.0)
    p.grad = None
    p.grad_dtype = dtype
    p.grad = torch.zeros(4, dtype=dtype)
    optimizer.step()
    assert_near([optimizer.moments(p)["exp_avg"]], [np.full(4, 0.9 * value * (1 - 0.9**3))], atol=0.0)
