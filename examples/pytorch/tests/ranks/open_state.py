"""Several ranks: what other programs do to optimizers, process groups and states counts, or is an error on all ranks."""

import copy
import warnings

import torch
import torch.distributed as dist

from checkpoints import saved
from checks import (
    are_equal_on_all_ranks,
    check,
    copies,
    gather,
    give,
    gradients,
    join,
    leave,
    make_parameters,
    raises,
    rank,
    require_same_bits,
    run,
    size,
    train,
)
from optimizers import OPTIMIZERS, make
from slamb.torch import AdamW, Lamb, OneBitAdam, Slamb

# ------------------------------------------------------------------------------------------------------- The process group


def made_before(make_it, tag):
    """What `make_it` returns before the process group is initialized."""
    of, count = rank(), size()
    leave()
    made = make_it()
    join(tag, of, count)
    return made


@check((2, 4), each=OPTIMIZERS)
def an_optimizer_that_was_made_before_the_process_group_joins_it(name):
    parameters = make_parameters()
    optimizer = made_before(lambda: make(name, parameters), f"before {name}")
    others = make_parameters()
    reference = make(name, others)
    train(optimizer, parameters, range(7))
    train(reference, others, range(7))
    require_same_bits(parameters, others)
    assert optimizer.statistics()["sent_bytes"] == reference.statistics()["sent_bytes"] > 0
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks(parameters)


@check(2)
def every_call_joins_the_process_group():
    parameters = make_parameters(seed=1 + rank())
    optimizer = made_before(lambda: AdamW(parameters), "every call")
    optimizer.broadcast_parameters()
    require_same_bits(parameters, make_parameters(seed=1))
    assert optimizer._step_supports_amp_scaling


@check(2)
def a_state_that_was_loaded_before_the_process_group_is_kept_where_all_ranks_have_the_same():
    parameters = make_parameters()
    optimizer = AdamW(parameters)
    train(optimizer, parameters, range(4))
    state, others = saved(optimizer.state_dict()), [torch.nn.Parameter(p) for p in copies(parameters)]
    train(optimizer, parameters, range(4, 8))

    def load(kind):
        made = kind(others)
        made.load_state_dict(state)
        return made

    resumed = made_before(lambda: load(AdamW), "loaded")
    train(resumed, others, range(4, 8))
    require_same_bits(others, parameters)


@check(2)
def a_state_of_one_rank_that_was_loaded_before_the_process_group_is_an_error():
    others = make_parameters()

    def load():
        made = Slamb(others)
        made.load_state_dict(Slamb(make_parameters()).state_dict())
        return made

    resumed = made_before(load, "loaded alone")
    give(others, gradients(0, rank()))
    with raises(RuntimeError, "a state was loaded before torch.distributed was initialized", "init_process_group()"):
        resumed.step()


@check(2)
def a_process_group_that_comes_after_a_step_is_an_error():
    parameters = make_parameters()

    def step():
        made = AdamW(parameters)
        give(parameters, gradients(0, 0))
        made.step()
        return made

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer = made_before(step, "too late")
    assert any("WORLD_SIZE is 2" in str(one.message) for one in said), [str(one.message) for one in said]
    before = copies(parameters)
    for call in (optimizer.step, optimizer.synchronize_parameters, optimizer.state_dict):
        with raises(RuntimeError, "initialized with 2 ranks after the first step", "exchange=False"):
            call()
    require_same_bits(parameters, before)


@check(2)
def a_copy_of_an_optimizer_that_has_stepped_alone_does_not_join_either():
    parameters = make_parameters()

    def step():
        made = AdamW(parameters)
        give(parameters, gradients(0, 0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.step()
        return copy.deepcopy(made)

    copied = made_before(step, "a copy")
    with raises(RuntimeError, "initialized with 2 ranks after the first step"):
        copied.broadcast_parameters()


@check(2)
def a_consolidated_state_is_forgotten_when_parameters_are_trained_later():
    parameters = make_parameters()
    parameters[1].requires_grad_(False)
    optimizer = AdamW(parameters, compressor="int8")
    train(optimizer, [parameters[0], *parameters[2:]], range(2))
    optimizer.consolidate_state_dict()
    parameters[1].requires_grad_(True)
    state = optimizer.state_dict()
    assert [name for name in state["state"][0]["ranks"] if name.startswith("rank")] == [f"rank{rank()}_of_2"]


@check(2)
def an_optimizer_that_exchanges_nothing_joins_nothing():
    parameters = make_parameters()

    def step():
        made = AdamW(parameters, exchange=False)
        give(parameters, gradients(0, 0))
        made.step()
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = made_before(step, "alone")
    train(optimizer, parameters, range(1, 3))
    assert optimizer.statistics()["sent_bytes"] == 0
    assert not are_equal_on_all_ranks(parameters)


# -------------------------------------------------------------------------------------------------------------- The state


@check(2, each=OPTIMIZERS)
def every_rank_begins_anew_by_reset_state(name):
    parameters = make_parameters()
    optimizer = make(name, parameters)
    train(optimizer, parameters, range(8))
    optimizer.reset_state()
    assert are_equal_on_all_ranks(parameters)
    others = [torch.nn.Parameter(p) for p in copies(parameters)]
    reference = make(name, others)
    train(optimizer, parameters, range(8, 15))
    train(reference, others, range(8, 15))
    require_same_bits(parameters, others)


@check(2, each=("adamw", "slamb"))
def a_state_that_was_deleted_or_replaced_is_an_error_on_several_ranks(name):
    parameters = make_parameters()
    optimizer = make(name, parameters)
    train(optimizer, parameters, range(2))
    early = copy.deepcopy(optimizer.state_dict()["state"][1])
    train(optimizer, parameters, range(2, 3))
    state = copy.deepcopy(optimizer.state_dict())
    for change in (
        lambda: optimizer.state.clear(),
        lambda: optimizer.state.pop(parameters[1]),
        lambda: optimizer.state.__setitem__(parameters[1], copy.copy(early)),
    ):
        change()
        before = copies(parameters)
        give(parameters, gradients(3, rank()))
        with raises(RuntimeError, "optimizer.state", "reset_state() on all ranks", "load_state_dict()"):
            optimizer.step()
        require_same_bits(parameters, before)
        optimizer.load_state_dict(state)
    train(optimizer, parameters, range(3, 5))
    optimizer.state.clear()
    optimizer.reset_state()
    train(optimizer, parameters, range(5, 6))
    assert optimizer.statistics()["step"] == 1


@check(2, each=("one_bit_adam", "adamw+int8", "slamb"))
def from_other_ranks_can_be_said_at_the_construction(name):
    parameters = make_parameters()
    optimizer = make(name, parameters)
    train(optimizer, parameters, range(6))
    of_rank_0, of_parameters = gather((optimizer.state_dict(), copies(parameters)))[0]
    others = [torch.nn.Parameter(p) for p in of_parameters]
    resumed = make(name, others, from_other_ranks=True)
    resumed.load_state_dict(of_rank_0)
    train(resumed, others, range(6, 9))
    resumed.compare_ranks()
    assert resumed.statistics()["step"] == 9


@check(2)
def zero_redundancy_optimizer_resumes_bit_for_bit():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def make_zero(kind, seed, **settings):
        parameters = make_parameters(seed=seed)
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, lr=1e-2, **settings), parameters

    for kind, settings in ((AdamW, {}), (OneBitAdam, {"warm_up_steps": 2}), (Slamb, {"dense_below": 40})):
        optimizer, parameters = make_zero(kind, 1, exchange=False, **settings)
        for step in range(5):
            give(parameters, gradients(step, 0))
            optimizer.step()
        optimizer.consolidate_state_dict(0)
        state = [saved(optimizer.state_dict()) if rank() == 0 else None]
        dist.broadcast_object_list(state)
        resumed, others = make_zero(kind, 5, exchange=False, **settings)
        with torch.no_grad():
            for p, q in zip(others, parameters):
                p.copy_(q)
        resumed.load_state_dict(copy.deepcopy(state[0]))
        assert resumed.optim.statistics()["step"] == 5
        for step in range(5, 9):
            for one, its in ((optimizer, parameters), (resumed, others)):
                give(its, gradients(step, 0))
                one.step()
            require_same_bits(others, parameters)


# ---------------------------------------------------------------------------------------------------------- First steps


@check(2, each=("nan", "inf"))
def a_first_step_that_overflows_on_all_ranks_is_skipped(value):
    for kind in (AdamW, Lamb, Slamb, OneBitAdam):
        parameters = make_parameters()
        optimizer = kind(parameters)
        before = copies(parameters)
        for p in parameters:
            p.grad = torch.full_like(p, float(value))
        optimizer.step()
        optimizer.step()
        require_same_bits(parameters, before)
        train(optimizer, parameters, range(2))
        assert optimizer.statistics()["step"] == 2 and optimizer.statistics()["skipped_steps"] == 2
        give(parameters, gradients(2, 0))
        optimizer.step()  # the ranks' gradients were different: they are not compared again


@check(2)
def gradients_that_do_not_depend_on_the_data_say_nothing():
    parameters = make_parameters()
    optimizer = AdamW(parameters)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    give(parameters, gradients(0, 0))  # of finite numbers that differ: these were averaged
    with raises(RuntimeError, "the gradients of all 2 ranks are equal"):
        optimizer.step()


# ----------------------------------------------------------------------------------------------------------- Parameters


@check(2, each=("adamw", "slamb", "one_bit_adam"))
def frozen_parameters_are_not_exchanged_and_are_trained_later(name):
    frozen = torch.nn.Parameter(torch.ones(300, 10), requires_grad=False)
    parameters = make_parameters()
    optimizer = make(name, [frozen, *parameters])
    others = make_parameters()
    reference = make(name, others)
    train(optimizer, parameters, range(3))
    train(reference, others, range(3))
    require_same_bits(parameters, others)
    assert optimizer.statistics()["sent_bytes"] == reference.statistics()["sent_bytes"]
    frozen.requires_grad_(True)
    train(optimizer, [frozen, *parameters], range(3, 7))
    optimizer.compare_ranks()
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks([frozen, *parameters]) and float((frozen - 1).detach().abs().max()) > 0.0


if __name__ == "__main__":
    run(globals())
