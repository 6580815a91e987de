"""Checkpoints, copies and pickles continue a training bit for bit, and a state that does not fit changes nothing."""

import copy
import io
import pickle

import pytest
import torch
from conftest import (
    CLASSES,
    SHORT,
    assert_same_bits,
    contents,
    copies_of,
    give_gradients,
    make_parameters,
    noise,
    parameters_of,
    skip_before,
    train,
)

import slamb.torch as st
from slamb import _native

MOMENTS = ("float32", "bf16-momentum", "8-bit")
COMBINATIONS = [
    (name, compressor, moments)
    for name in CLASSES
    for moments in MOMENTS
    for compressor in _native.compressors(name, moments)
]
# Settings with which a single process makes compression errors.
LOSSY = {
    "none": {},
    "random_k": {"k": 0.25},
    "top_k": {"k": 0.25},
    **{one: {"k": 0.5, "compress_single_rank": True} for one in ("random_k+int8", "random_k+int4", "random_k+sign")},
    **{one: {"compress_single_rank": True} for one in ("sign", "four_levels", "int8", "int4", "natural", "bf16", "fp16")},
}


def settings_of(name, compressor="default", moments="float32"):
    if compressor == "default":
        return SHORT[name]
    lossy = dict(LOSSY[compressor])
    if name == "slamb":
        lossy.pop("compress_single_rank", None)
    return {"compressor": compressor, "moments": moments, **SHORT[name], **lossy}


def through_a_file(state, **options):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, **options)


def check_resuming(make, parameters, transfer):
    """Requires that steps after a checkpoint have the bits of a training that is not interrupted."""
    optimizer = make(parameters)
    train(optimizer, 1, 5)
    later = copies_of(parameters)
    resumed = make(later)
    transfer(optimizer, resumed)
    assert_same_bits(later, parameters)
    for step in range(6, 10):
        train(optimizer, step, step)
        train(resumed, step, step)
        assert_same_bits(later, parameters)
    assert_same_bits(resumed.state_dict(), optimizer.state_dict())


def by_state_dict(optimizer, resumed):
    resumed.load_state_dict(state_dict=optimizer.state_dict())


def by_file(optimizer, resumed):
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))


def by_plain_file(optimizer, resumed):
    resumed.load_state_dict(through_a_file(optimizer.state_dict(), weights_only=True))


# ------------------------------------------------------------------------------------------------------------ state_dict


@pytest.mark.parametrize("name", CLASSES)
def test_the_state_has_an_entry_for_each_parameter_from_the_start(name):
    p = make_parameters()
    optimizer = CLASSES[name]([{"params": p[:2]}, {"params": p[2:]}], **SHORT[name])
    assert set(optimizer.state) == set(p)
    assert all(optimizer.state[one] for one in p)
    assert set(optimizer.state_dict()["state"]) == {0, 1, 2, 3}
    optimizer.add_param_group({"params": [torch.nn.Parameter(noise((2,), 1))]})
    assert len(optimizer.state) == 5


def test_the_state_counts_the_steps():
    optimizer = st.AdamW(make_parameters())
    train(optimizer, 1, 7)
    assert [float(of["step"]) for of in optimizer.state_dict()["state"].values()] == [7.0] * 4


def test_a_saved_state_does_not_change_with_later_steps():
    optimizer = st.AdamW(make_parameters())
    train(optimizer, 1, 2)
    state = optimizer.state_dict()
    before = contents(state)
    train(optimizer, 3, 4)
    optimizer.state_dict()
    assert contents(state) == before


def test_saving_a_state_changes_nothing():
    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = st.Slamb(p, **SHORT["slamb"]), st.Slamb(q, **SHORT["slamb"])
    for step in range(1, 8):
        train(optimizer, step, step)
        train(twin, step, step)
        assert_same_bits(optimizer.state_dict(), optimizer.state_dict())
    assert_same_bits(p, q)
    assert_same_bits(optimizer.state_dict(), twin.state_dict())


@pytest.mark.parametrize("name, compressor, moments", COMBINATIONS)
def test_a_training_continues_from_a_file_bit_for_bit(name, compressor, moments):
    settings = settings_of(name, compressor, moments)
    check_resuming(lambda p: CLASSES[name](p, lr=0.02, **settings), make_parameters(), by_file)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CLASSES)
def test_a_training_in_16_bits_continues_from_a_file_bit_for_bit(name, dtype, rounding):
    settings = settings_of(name)
    check_resuming(
        lambda p: CLASSES[name](p, lr=0.002, rounding=rounding, **settings), make_parameters(dtype=dtype), by_file
    )


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("name", ["adamw", "slamb"])
def test_a_training_in_16_bits_with_moments_of_fewer_bits_continues_bit_for_bit(name, moments):
    settings = settings_of(name)
    check_resuming(
        lambda p: CLASSES[name](p, moments=moments, **settings), make_parameters(dtype=torch.bfloat16), by_state_dict
    )


@pytest.mark.parametrize(
    "transfer",
    [by_state_dict, by_file, pytest.param(by_plain_file, marks=skip_before(2, 0, "reliable weights_only=True"))],
    ids=["dictionary", "file", "file read with weights_only"],
)
@pytest.mark.parametrize("name", CLASSES)
def test_a_training_continues_from_every_form_of_a_state(name, transfer):
    settings = settings_of(name)
    check_resuming(lambda p: CLASSES[name](p, **settings), make_parameters(), transfer)


def test_options_of_groups_come_with_the_state_as_in_torch():
    p = make_parameters()
    optimizer = st.AdamW([{"params": p[:2], "weight_decay": 0.3}, {"params": p[2:], "lr": 0.5}], betas=(0.8, 0.9), eps=0.1)
    train(optimizer, 1, 2)
    q = copies_of(p)
    resumed = st.AdamW([{"params": q[:2]}, {"params": q[2:]}])
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.param_groups[0]["weight_decay"] == 0.3 and resumed.param_groups[1]["lr"] == 0.5
    train(optimizer, 3, 5)
    train(resumed, 3, 5)
    assert_same_bits(q, p)


@pytest.mark.parametrize("name, key", [("lamb", "adapt"), ("slamb", "adapt"), ("slamb", "compress")])
def test_a_state_of_groups_that_adapt_or_compress_otherwise_continues_bit_for_bit_or_is_rejected(name, key):
    p = make_parameters()
    optimizer = CLASSES[name]([{"params": p[:1], key: False}, {"params": p[1:]}], **SHORT[name])
    train(optimizer, 1, 3)
    q = copies_of(p)
    resumed = CLASSES[name]([{"params": q[:1]}, {"params": q[1:]}], **SHORT[name])
    try:
        resumed.load_state_dict(optimizer.state_dict())
    except ValueError as error:
        assert key in str(error)
        assert resumed.param_groups[0][key] is True
        return
    train(optimizer, 4, 6)
    train(resumed, 4, 6)
    assert_same_bits(q, p)


def test_schedulers_continue_with_a_state():
    p = make_parameters()

    def make(parameters):
        optimizer = st.AdamW(parameters)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=20)

    def run(optimizer, schedule, first, last):
        for step in range(first, last + 1):
            train(optimizer, step, step)
            schedule.step()

    optimizer, schedule = make(p)
    run(optimizer, schedule, 1, 6)
    q = copies_of(p)
    resumed, its_schedule = make(q)
    resumed.load_state_dict(optimizer.state_dict())
    its_schedule.load_state_dict(schedule.state_dict())
    run(optimizer, schedule, 7, 15)
    run(resumed, its_schedule, 7, 15)
    assert_same_bits(q, p)


@pytest.mark.parametrize("name", ["slamb", "zero_one_adam"])
def test_parameters_of_their_own_are_restored_with_the_state(name):
    p = make_parameters()
    optimizer = CLASSES[name](p, **SHORT[name])
    train(optimizer, 1, 3)
    q = make_parameters(seed=9)
    CLASSES[name](q, **SHORT[name]).load_state_dict(optimizer.state_dict())
    assert_same_bits(q, p)


def test_master_copies_are_restored_with_the_state():
    p = make_parameters(dtype=torch.bfloat16)
    optimizer = st.AdamW(p, lr=1e-4)
    train(optimizer, 1, 9)
    q = make_parameters(dtype=torch.bfloat16, seed=9)
    resumed = st.AdamW(q, lr=1e-4)
    resumed.load_state_dict(optimizer.state_dict())
    train(optimizer, 10, 40)
    train(resumed, 10, 40)
    assert_same_bits(q, p)


def test_a_model_and_its_optimizer_are_restored_in_either_order():
    for loads_model_first in (True, False):
        for dtype in (torch.float32, torch.bfloat16):
            model = torch.nn.Linear(5, 4).to(dtype)
            optimizer = st.AdamW(model.parameters(), lr=1e-3)
            train(optimizer, 1, 5)
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            other = torch.nn.Linear(5, 4).to(dtype)
            resumed = st.AdamW(other.parameters())
            calls = [lambda: other.load_state_dict(saved[0]), lambda: resumed.load_state_dict(saved[1])]
            for call in calls if loads_model_first else reversed(calls):
                call()
            train(optimizer, 6, 20)
            train(resumed, 6, 20)
            assert_same_bits(list(other.parameters()), list(model.parameters()))


def test_a_state_can_be_loaded_again_and_again():
    p = make_parameters()
    optimizer = st.Slamb(p, **SHORT["slamb"])
    train(optimizer, 1, 3)
    state = optimizer.state_dict()
    train(optimizer, 4, 6)
    once = contents(p)
    for _ in range(2):
        optimizer.load_state_dict(state)
        train(optimizer, 4, 6)
        assert contents(p) == once


def test_a_state_without_a_step_begins_again():
    p = make_parameters()
    optimizer = st.AdamW(p)
    state = optimizer.state_dict()
    train(optimizer, 1, 3)
    q = copies_of(p)
    optimizer.load_state_dict(state)
    train(optimizer, 1, 3)
    train(st.AdamW(q), 1, 3)
    assert_same_bits(p, q)


# ------------------------------------------------------------------------------------------------- States of other ranks


def as_of_rank(state, key):
    """A state as if rank `key` had saved it."""
    state = copy.deepcopy(state)
    for of in state["state"].values():
        of["ranks"] = {key if name.startswith("rank") else name: value for name, value in of["ranks"].items()}
    return state


@pytest.mark.parametrize("name, compressor", [("slamb", "default"), ("one_bit_adam", "default"), ("adamw", "sign")])
def test_the_state_of_another_rank_needs_a_word_of_the_user(name, compressor):
    settings = settings_of(name, compressor)
    optimizer = CLASSES[name](make_parameters(), **settings)
    train(optimizer, 1, 5)
    state = as_of_rank(optimizer.state_dict(), "rank1_of_2")
    other = CLASSES[name](make_parameters(), **settings)
    with pytest.raises(ValueError, match="state of rank1_of_2, but this is rank0_of_1.*from_other_ranks=True"):
        other.load_state_dict(state)
    other.load_state_dict(state, from_other_ranks=True)
    assert other.statistics()["step"] == 5
    train(other, 6, 6)


def test_the_state_of_another_rank_of_adamw_without_a_compressor_is_that_of_all_ranks():
    p = make_parameters()
    optimizer = st.AdamW(p, moments="8-bit")
    train(optimizer, 1, 5)
    q = copies_of(p)
    other = st.AdamW(q, moments="8-bit")
    other.load_state_dict(as_of_rank(optimizer.state_dict(), "rank3_of_8"))
    train(optimizer, 6, 8)
    train(other, 6, 8)
    assert_same_bits(q, p)


def test_loading_the_state_of_other_ranks_drops_compression_errors():
    settings = settings_of("adamw", "sign")
    p = make_parameters()
    optimizer = st.AdamW(p, **settings)
    train(optimizer, 1, 5)
    q = copies_of(p)
    other = st.AdamW(q, **settings)
    other.load_state_dict(optimizer.state_dict(), from_other_ranks=True)
    norms = other.statistics(with_norms=True)["worker_error_norms"]
    assert all(one == 0.0 for one in norms)
    assert any(one > 0.0 for one in optimizer.statistics(with_norms=True)["worker_error_norms"])
    train(optimizer, 6, 6)
    train(other, 6, 6)
    with pytest.raises(AssertionError):
        assert_same_bits(q, p)


# ---------------------------------------------------------------------------------------------------- States that do not fit


def of_torch_adamw(p):
    optimizer = torch.optim.AdamW(copies_of(p))
    train(optimizer, 1, 2)
    return optimizer.state_dict()


def with_states(change):
    """A state of the same optimizer, with other bytes."""

    def make(p, settings, cls):
        optimizer = cls(copies_of(p), **settings)
        train(optimizer, 1, 6)
        state = copy.deepcopy(optimizer.state_dict())
        for of in state["state"].values():
            if "ranks" in of:
                of["ranks"] = {key: change(value) for key, value in of["ranks"].items()}
        return state

    return make


def without_bytes(p, settings, cls):
    state = cls(copies_of(p), **settings).state_dict()
    return {**state, "state": {i: {"step": of["step"]} for i, of in state["state"].items()}}


def flipped(value):
    value = value.clone()
    value[len(value) // 2] ^= 0xFF
    return value


def of_other_shapes(p, settings, cls):
    optimizer = cls([torch.nn.Parameter(noise((one.numel() + 2,), i)) for i, one in enumerate(p)], **settings)
    train(optimizer, 1, 2)
    return optimizer.state_dict()


def of_another_class(p, settings, cls):
    other = st.Lamb if cls is not st.Lamb else st.Slamb
    optimizer = other(copies_of(p))
    train(optimizer, 1, 2)
    return optimizer.state_dict()


def of_two_groups(p, settings, cls):
    return cls([{"params": copies_of(p[:1])}, {"params": copies_of(p[1:])}], **settings).state_dict()


def of_fewer_parameters(p, settings, cls):
    return cls(copies_of(p[1:]), **settings).state_dict()


WRONG_STATES = {
    "of torch.optim.AdamW": lambda p, settings, cls: of_torch_adamw(p),
    "of torch.optim.AdamW before its first step": lambda p, *_: torch.optim.AdamW(copies_of(p)).state_dict(),
    "of another class": of_another_class,
    "of other shapes": of_other_shapes,
    "of two groups": of_two_groups,
    "of fewer parameters": of_fewer_parameters,
    "without bytes": without_bytes,
    "truncated": with_states(lambda value: value[:-8].clone()),
    "truncated to its beginning": with_states(lambda value: value[:100].clone()),
    "empty": with_states(lambda value: value[:0].clone()),
    "with bytes too many": with_states(lambda value: torch.cat([value, value[:8]])),
    "with a changed byte": with_states(flipped),
    "of zeros": with_states(torch.zeros_like),
    "as floats": with_states(lambda value: value.float()),
    "as text": with_states(lambda value: "text"),
    "without ranks": with_states(lambda value: None),
}


def with_entry(change):
    """A state of the same optimizer, with another entry of its last parameter but one."""

    def make(p, settings, cls):
        optimizer = cls(copies_of(p), **settings)
        train(optimizer, 1, 6)
        state = copy.deepcopy(optimizer.state_dict())
        state["state"][2].update(change)
        return state

    return make


WRONG_OPEN_STATES = {
    **{name: make for name, make in WRONG_STATES.items() if name.startswith("of ") and name[3:8] not in ("anoth", "zeros")},
    "without moments": lambda p, *_: with_entry({})(p, {}, st.AdamW) | {"state": {}},
    "with moments of another shape": with_entry({"exp_avg_sq": torch.zeros(3, 2)}),
    "with a master copy of another shape": with_entry({"master_param": torch.zeros(3, 2)}),
    "with moments that are no tensors": with_entry({"exp_avg": "text"}),
    "with moments that are integers": with_entry({"exp_avg": torch.zeros(3, 2, 4, dtype=torch.int64)}),
    "with a negative step": with_entry({"step": -1}),
    "with half a step": with_entry({"step": torch.tensor(0.5)}),
    "with a step that is not finite": with_entry({"step": torch.tensor(float("nan"))}),
    "of amsgrad": with_entry({"max_exp_avg_sq": torch.zeros(3, 2, 4)}),
}
del WRONG_OPEN_STATES["of torch.optim.AdamW"]  # which fits


@pytest.mark.parametrize(
    ("name", "settings", "wrong"),
    [("adamw", {"moments": "8-bit"}, wrong) for wrong in WRONG_STATES]
    + [(name, SHORT[name], wrong) for name in ("slamb", "one_bit_lamb") for wrong in WRONG_STATES]
    + [("adamw", {}, wrong) for wrong in WRONG_OPEN_STATES],
)
def test_a_state_that_does_not_fit_is_rejected_and_nothing_has_changed(name, settings, wrong):
    cls = CLASSES[name]
    p = make_parameters(dtype=torch.bfloat16)
    q = copies_of(p)
    optimizer, twin = cls(p, **settings), cls(q, **settings)
    train(optimizer, 1, 5)
    train(twin, 1, 5)
    groups, state = optimizer.param_groups, optimizer.state
    before = contents((p, groups, optimizer.state_dict()))
    bad = {**WRONG_STATES, **WRONG_OPEN_STATES}[wrong](p, settings, cls)
    for _ in range(2):
        with pytest.raises(ValueError):
            optimizer.load_state_dict(bad)
        assert optimizer.param_groups is groups and optimizer.state is state
        assert contents((p, groups, optimizer.state_dict())) == before
    train(optimizer, 6, 8)
    train(twin, 6, 8)
    assert_same_bits(p, q)
    assert_same_bits(optimizer.state_dict(), twin.state_dict())


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("name", ["adamw", "one_bit_adam", "slamb"])
def test_if_the_state_of_an_added_group_does_not_fit_the_other_groups_are_as_before(name, part):
    p = make_parameters(dtype=torch.bfloat16)
    q = copies_of(p)
    optimizer, twin = (CLASSES[name](one[:2], **SHORT[name]) for one in (p, q))
    for one, parameters in ((optimizer, p), (twin, q)):
        train(one, 1, 2)
        one.add_param_group({"params": parameters[2:]})
        train(one, 3, 4)
    bad = copy.deepcopy(optimizer.state_dict())
    train(optimizer, 5, 6)
    train(twin, 5, 6)
    if name == "adamw":
        bad["state"][2 * part]["exp_avg"] = torch.zeros(3)
    else:
        ranks = [of["ranks"] for of in bad["state"].values() if of["ranks"]][part]
        ranks["rank0_of_1"] = ranks["rank0_of_1"][:-8].clone()
    before = contents((p, optimizer.param_groups, optimizer.state_dict()))
    with pytest.raises(ValueError):
        optimizer.load_state_dict(bad)
    assert contents((p, optimizer.param_groups, optimizer.state_dict())) == before
    train(optimizer, 7, 9)
    train(twin, 7, 9)
    assert_same_bits(p, q)


def test_if_the_state_of_one_of_several_parts_does_not_fit_an_optimizer_without_parts_is_as_before():
    p = make_parameters()
    optimizer = st.Slamb(p[:2], **SHORT["slamb"])
    train(optimizer, 1, 2)
    optimizer.add_param_group({"params": p[2:]})
    train(optimizer, 3, 4)
    bad = copy.deepcopy(optimizer.state_dict())
    bad["state"][2]["ranks"]["rank0_of_1"] = bad["state"][2]["ranks"]["rank0_of_1"][:-8].clone()
    q = make_parameters(seed=4)
    r = copies_of(q)
    other, twin = (st.Slamb([{"params": one[:2]}, {"params": one[2:]}], **SHORT["slamb"]) for one in (q, r))
    train(other, 1, 3)
    train(twin, 1, 3)
    with pytest.raises(ValueError):
        other.load_state_dict(bad)
    assert_same_bits(q, r)
    train(other, 4, 6)
    train(twin, 4, 6)
    assert_same_bits(q, r)


def test_a_state_of_another_class_is_named_in_the_message():
    optimizer = st.OneBitAdam(make_parameters())
    with pytest.raises(ValueError, match="OneBitAdam"):
        optimizer.load_state_dict(of_torch_adamw(make_parameters()))
    with pytest.raises(ValueError, match="OneBitAdam"):
        optimizer.load_state_dict(st.Lamb(make_parameters()).state_dict())
    with pytest.raises(ValueError, match="one_bit"):
        optimizer.load_state_dict(st.Slamb(make_parameters()).state_dict())


# ------------------------------------------------------------------------------------------------- Distributed checkpoints

needs_dcp = skip_before(2, 3, "get_optimizer_state_dict in torch.distributed.checkpoint")


def make_model(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).to(dtype)


@needs_dcp
@pytest.mark.parametrize("name", CLASSES)
def test_a_distributed_checkpoint_takes_no_step(name):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = make_model(1)
    optimizer = CLASSES[name](model.parameters(), lr=1.0, weight_decay=0.5, **SHORT[name])
    before = contents(list(model.parameters()))
    state = get_optimizer_state_dict(model, optimizer)
    set_optimizer_state_dict(model, optimizer, state)
    assert contents(list(model.parameters())) == before
    assert optimizer.statistics()["step"] == 0
    assert all(p.grad is None for p in model.parameters())


@needs_dcp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CLASSES)
def test_a_state_goes_through_the_functions_of_distributed_checkpoints_bit_for_bit(name, dtype):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, other = make_model(1, dtype), make_model(2, dtype)
    optimizer = CLASSES[name](model.parameters(), **SHORT[name])
    resumed = CLASSES[name](other.parameters(), **SHORT[name])
    train(optimizer, 1, 6)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    set_state_dict(
        other,
        resumed,
        model_state_dict=through_a_file(of_model, weights_only=True),
        optim_state_dict=through_a_file(of_optimizer, weights_only=True),
    )
    train(optimizer, 7, 10)
    train(resumed, 7, 10)
    assert_same_bits(list(other.parameters()), list(model.parameters()))
    assert_same_bits(resumed.state_dict(), optimizer.state_dict())


@needs_dcp
@pytest.mark.parametrize("options", [{"full_state_dict": True}, {"flatten_optimizer_state_dict": True}], ids=lambda one: next(iter(one)))
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.filterwarnings("ignore")
def test_a_state_goes_through_distributed_checkpoints_with_their_options(name, options):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

    model = make_model(1)
    other = copy.deepcopy(model)
    optimizer = CLASSES[name](model.parameters(), **SHORT[name])
    resumed = CLASSES[name](other.parameters(), **SHORT[name])
    train(optimizer, 1, 6)
    state = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(**options))
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, resumed, state, options=StateDictOptions(**options))
    train(optimizer, 7, 10)
    train(resumed, 7, 10)
    assert_same_bits(list(other.parameters()), list(model.parameters()))


@needs_dcp
def test_a_distributed_checkpoint_of_a_model_whose_first_parameter_is_frozen_is_complete():
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, other = make_model(1), make_model(2)
    for one in (model, other):
        next(one.parameters()).requires_grad_(False)
    optimizer, resumed = st.AdamW(model.parameters()), st.AdamW(other.parameters())

    def run(one, first, last):
        for step in range(first, last + 1):
            give_gradients(parameters_of(one)[1:], step)
            one.step()

    run(optimizer, 1, 4)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    set_state_dict(other, resumed, model_state_dict=of_model, optim_state_dict=of_optimizer)
    run(optimizer, 5, 7)
    run(resumed, 5, 7)
    assert_same_bits(list(other.parameters()), list(model.parameters()))


@needs_dcp
@pytest.mark.parametrize("steps", [2, 6], ids=["before compression", "after compression"])
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.filterwarnings("ignore")
def test_a_state_goes_through_the_files_of_distributed_checkpoints_bit_for_bit(name, steps, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, other = make_model(1), make_model(2)
    optimizer = CLASSES[name](model.parameters(), **SHORT[name])
    resumed = CLASSES[name](other.parameters(), **SHORT[name])
    train(optimizer, 1, steps)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=tmp_path, no_dist=True)
    of_model, of_optimizer = get_state_dict(other, resumed)
    target = {"model": of_model, "optimizer": of_optimizer}
    dcp.load(target, checkpoint_id=tmp_path, no_dist=True)
    set_state_dict(other, resumed, model_state_dict=target["model"], optim_state_dict=target["optimizer"])
    train(optimizer, steps + 1, 10)
    train(resumed, steps + 1, 10)
    assert_same_bits(list(other.parameters()), list(model.parameters()))


# ------------------------------------------------------------------------------------------------------ Copies and pickles


def deep_copy(model, optimizer):
    return copy.deepcopy((model, optimizer))


def pickled(model, optimizer):
    return pickle.loads(pickle.dumps((model, optimizer)))


def saved_whole(model, optimizer):
    return through_a_file((model, optimizer), **({} if torch.__version__.startswith("1.") else {"weights_only": False}))


COPIES = [deep_copy, pickled, saved_whole]


@pytest.mark.parametrize("make_copy", COPIES, ids=lambda make_copy: make_copy.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CLASSES)
def test_copies_of_a_model_with_its_optimizer_continue_bit_for_bit(name, dtype, make_copy):
    model = make_model(1, dtype)
    optimizer = CLASSES[name](model.parameters(), **SHORT[name])
    train(optimizer, 1, 5)
    other, copied = make_copy(model, optimizer)
    assert parameters_of(copied)[0] is next(iter(other.parameters()))
    assert parameters_of(copied)[0] is not parameters_of(optimizer)[0]
    train(optimizer, 6, 9)
    train(copied, 6, 9)
    assert_same_bits(list(other.parameters()), list(model.parameters()))
    assert_same_bits(copied.state_dict(), optimizer.state_dict())
    assert type(copied) is CLASSES[name] and copied.defaults == optimizer.defaults


def test_a_pickle_of_an_optimizer_alone_has_parameters_of_its_own_and_continues_bit_for_bit():
    p = make_parameters(dtype=torch.bfloat16)
    optimizer = st.Slamb(p, **SHORT["slamb"])
    train(optimizer, 1, 5)
    copied = pickle.loads(pickle.dumps(optimizer))
    train(optimizer, 6, 8)
    train(copied, 6, 8)
    assert_same_bits(parameters_of(copied), p)
    assert parameters_of(copied)[0] is not p[0]


@pytest.mark.parametrize("make_copy", COPIES, ids=lambda make_copy: make_copy.__name__)
def test_a_copy_with_added_groups_continues_bit_for_bit(make_copy):
    model = make_model(1)
    p = list(model.parameters())
    optimizer = st.AdamW(p[:2])
    train(optimizer, 1, 2)
    optimizer.add_param_group({"params": p[2:], "lr": 0.1})
    train(optimizer, 3, 4)
    other, copied = make_copy(model, optimizer)
    train(optimizer, 5, 7)
    train(copied, 5, 7)
    assert_same_bits(list(other.parameters()), p)


@pytest.mark.parametrize("make_copy", COPIES, ids=lambda make_copy: make_copy.__name__)
def test_a_group_can_be_added_to_a_copy_before_its_first_step(make_copy):
    model = make_model(1)
    p = list(model.parameters())
    optimizer = st.AdamW(p[:2], lr=0.1)
    train(optimizer, 1, 2)
    other, copied = make_copy(model, optimizer)
    q = list(other.parameters())
    optimizer.add_param_group({"params": p[2:]})
    copied.add_param_group({"params": q[2:]})
    train(optimizer, 3, 5)
    train(copied, 3, 5)
    assert_same_bits(q, p)


@pytest.mark.parametrize("name", ["adamw", "slamb"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_to_the_parameters_of_a_copy_is_where_its_next_step_begins(name, dtype):
    model = make_model(1, dtype)
    optimizer = CLASSES[name](model.parameters(), lr=1e-3, **SHORT[name])
    train(optimizer, 1, 2)
    other, copied = copy.deepcopy((model, optimizer))
    values = make_model(2, dtype).state_dict()
    other.load_state_dict(values)
    model.load_state_dict(values)
    train(optimizer, 3, 4)
    train(copied, 3, 4)
    assert_same_bits(list(other.parameters()), list(model.parameters()))


def test_options_that_change_on_a_copy_before_its_first_step_are_used():
    model = make_model(1)
    optimizer = st.AdamW(model.parameters(), lr=0.01)
    train(optimizer, 1, 2)
    other, copied = copy.deepcopy((model, optimizer))
    for one in (optimizer, copied):
        one.param_groups[0].update(lr=0.05, betas=(0.5, 0.9), weight_decay=0.4, eps=1e-3)
    train(optimizer, 3, 5)
    train(copied, 3, 5)
    assert_same_bits(list(other.parameters()), list(model.parameters()))


def test_a_copy_can_be_copied_saved_and_loaded_before_its_first_step():
    model = make_model(1)
    optimizer = st.Slamb(model.parameters(), **SHORT["slamb"])
    train(optimizer, 1, 3)
    other, copied = copy.deepcopy(copy.deepcopy((model, optimizer)))
    assert_same_bits(copied.state_dict(), optimizer.state_dict())
    third, again = copy.deepcopy((model, optimizer))
    again.load_state_dict(optimizer.state_dict())
    for step in range(4, 6):
        for one in (optimizer, copied, again):
            train(one, step, step)
    assert_same_bits(list(other.parameters()), list(model.parameters()))
    assert_same_bits(list(third.parameters()), list(model.parameters()))


def test_a_copy_does_not_share_anything_with_its_original():
    model = make_model(1)
    optimizer = st.AdamW(model.parameters())
    train(optimizer, 1, 2)
    _, copied = copy.deepcopy((model, optimizer))
    before = contents((list(model.parameters()), optimizer.state_dict(), optimizer.param_groups[0]["lr"]))
    copied.param_groups[0]["lr"] = 0.5
    train(copied, 3, 6)
    assert contents((list(model.parameters()), optimizer.state_dict(), optimizer.param_groups[0]["lr"])) == before


def test_a_copy_of_parameters_with_gaps_does_not_mix_up_elements():
    p = [torch.nn.Parameter(noise((6, 8), 1).t()[::2])]
    optimizer = st.AdamW(p, lr=0.02)
    train(optimizer, 1, 3)
    q, copied = copy.deepcopy((p, optimizer))
    train(optimizer, 4, 6)
    train(copied, 4, 6)
    assert_same_bits(q, p)


# ------------------------------------------------------------------------------- The helpers of these tests can fail


@pytest.mark.parametrize("name", CLASSES)
def test_resuming_without_a_state_fails(name):
    with pytest.raises(AssertionError):
        check_resuming(lambda p: CLASSES[name](p, **SHORT[name]), make_parameters(), lambda optimizer, resumed: None)


@pytest.mark.parametrize("name", ["adamw", "one_bit_adam", "one_bit_lamb", "zero_one_adam"])
def test_resuming_without_compression_errors_fails(name):
    settings = settings_of(name, "sign")

    def without_errors(optimizer, resumed):
        resumed.load_state_dict(optimizer.state_dict(), from_other_ranks=True)

    with pytest.raises(AssertionError):
        check_resuming(lambda p: CLASSES[name](p, **settings), make_parameters(), without_errors)


def test_every_optimizer_of_the_package_is_tested():
    found = {one for one in vars(st).values() if isinstance(one, type) and issubclass(one, st.Optimizer)}
    assert found - {st.Optimizer} == set(CLASSES.values())
    assert {name for name, _, _ in COMBINATIONS} == set(CLASSES)
    assert {compressor for _, compressor, _ in COMBINATIONS} == set(LOSSY)


# ------------------------------------------------------------------------------------- What must not be loaded or forgotten


@pytest.mark.parametrize("shapes", [((3, 4), (4, 3)), ((2, 3, 4, 4), (1, 6, 4, 4))], ids=["transposed", "regrouped"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels_last"])
def test_a_state_of_parameters_of_other_shapes_with_as_many_elements_is_rejected(shapes, memory_format):
    if len(shapes[0]) != 4 and memory_format is torch.channels_last:
        pytest.skip("channels_last is of four dimensions")
    p, q = (torch.nn.Parameter(noise(one, 1).contiguous(memory_format=memory_format)) for one in shapes)
    optimizer, other = st.AdamW([p]), st.AdamW([q])
    train(optimizer, 1, 2)
    with pytest.raises(ValueError, match="other shapes|parameter's shape"):
        other.load_state_dict(optimizer.state_dict())


def test_a_state_with_an_impossible_order_of_elements_is_rejected():
    p = torch.nn.Parameter(noise((2, 3, 4, 4), 1).contiguous(memory_format=torch.channels_last))
    optimizer = st.AdamW([p], moments="8-bit")
    train(optimizer, 1, 2)
    state = optimizer.state_dict()
    state["state"][0]["ranks"]["strides0"] = torch.tensor([480, 1, 120, 30])
    with pytest.raises(ValueError, match="parameter 0"):
        optimizer.load_state_dict(state)


def test_a_step_that_a_later_group_refuses_moves_nothing():
    p, q = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    optimizer = st.AdamW([p], lr=0.1)
    p.grad, q.grad = torch.ones(3), torch.ones(3)
    optimizer.step()
    optimizer.add_param_group({"params": [q]})
    optimizer.param_groups[1]["lr"] = -1.0
    before = [p.detach().clone(), q.detach().clone()]
    for _ in range(2):
        with pytest.raises(ValueError, match="lr of parameter group 1"):
            optimizer.step()
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])
