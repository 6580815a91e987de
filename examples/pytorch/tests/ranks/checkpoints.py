"""Checkpoints of several ranks. A run that continues from one must compute the same bits as one that was not interrupted."""

import io
import tempfile

import torch
import torch.distributed as dist

from checks import (
    are_equal_on_all_ranks,
    bits,
    check,
    copies,
    distance,
    gather,
    make_parameters,
    raises,
    rank,
    require_same_bits,
    run,
    size,
    train,
)
from optimizers import OPTIMIZERS, make
from slamb.torch import AdamW, Slamb

@check(2)
def a_collected_state_is_forgotten_when_another_is_loaded():
    parameters = make_parameters()
    optimizer = AdamW(parameters, compressor="int8")
    train(optimizer, parameters, range(1))
    early = optimizer.state_dict()
    train(optimizer, parameters, range(1, 5))
    optimizer.consolidate_state_dict()
    optimizer.load_state_dict(early)
    other = AdamW(make_parameters(), compressor="int8")
    other.load_state_dict(optimizer.state_dict())
    assert other.statistics()["step"] == 1


@check(2)
def a_copy_stays_in_the_group_of_the_optimizer():
    import copy

    groups = [dist.new_group([one]) for one in range(2)]
    parameters = make_parameters()
    optimizer = AdamW(parameters, process_group=groups[rank()])
    train(optimizer, parameters, range(2))
    copied = copy.deepcopy(optimizer)
    own = [p for group in copied.param_groups for p in group["params"]]
    train(copied, own, range(2, 4 + rank()))  # alone, so ranks may take different numbers of steps
    train(optimizer, parameters, range(2, 4 + rank()))
    require_same_bits(own, parameters)


@check(2)
def a_pickle_of_another_rank_is_rejected():
    import pickle

    parameters = make_parameters()
    optimizer = AdamW(parameters, compressor="int8")
    train(optimizer, parameters, range(2))
    theirs = pickle.loads(gather(pickle.dumps(optimizer))[1 - rank()])
    with raises(ValueError, f"rank{1 - rank()}_of_2", f"rank{rank()}_of_2", "state_dict()"):
        theirs.statistics()


SAVED = 8  # steps before a checkpoint: all are compressed; SLAMB has averaged at the fifth, and 0/1 Adam takes local steps
OWN = ("slamb", "slamb_by_differences", "zero_one_adam")  # parameters differ between ranks


def saved(value):
    """A value after torch.save and torch.load."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


OPEN = ("adamw", "lamb")  # their state is that of torch.optim.AdamW, the same on all ranks


def ranks_in(state_dict):
    """The names of the ranks whose states are in a state_dict."""
    return [name for name in state_dict["state"][0].get("ranks", ()) if name.startswith("rank")]


def state_of(optimizer):
    """This rank's state as tensors."""
    entries = optimizer.state_dict()["state"].values()
    bytes_of_ranks = [of["ranks"][name] for of in entries for name in of.get("ranks", ()) if name.startswith("rank")]
    return bytes_of_ranks or [value for of in entries for value in of.values()]


def interrupted(name, **settings):
    """An optimizer at the place of a checkpoint."""
    parameters = make_parameters(**settings)
    optimizer = make(name, parameters)
    train(optimizer, parameters, range(SAVED))
    if name in OWN:
        assert not are_equal_on_all_ranks(parameters)
    return optimizer, parameters


def continue_both(first, parameters, second, others, steps=7):
    for step in range(SAVED, SAVED + steps):
        train(first, parameters, range(step, step + 1))
        train(second, others, range(step, step + 1))
        require_same_bits(others, parameters)
    require_same_bits(state_of(second), state_of(first))


def fresh(name, parameters):
    """A new optimizer, and what it is to continue with: the model's parameters are loaded, unless the optimizer restores them."""
    others = make_parameters(seed=5)
    if name not in OWN:
        with torch.no_grad():
            for p, q in zip(others, parameters):
                p.copy_(q)
    return make(name, others), others


@check((2, 4), each=OPTIMIZERS)
def each_ranks_own_state_continues(name):
    optimizer, parameters = interrupted(name)
    state = saved(optimizer.state_dict())
    assert ranks_in(state) == ([] if name in OPEN else [f"rank{rank()}_of_{size()}"])
    resumed, others = fresh(name, parameters)
    resumed.load_state_dict(state)
    require_same_bits(others, parameters)
    continue_both(optimizer, parameters, resumed, others)


@check(2, each=("one_bit_adam", "slamb", "adamw+int8"))
def without_its_state_a_run_does_not_continue(name):
    optimizer, parameters = interrupted(name)
    resumed, others = fresh(name, parameters)
    if name in OWN:
        with torch.no_grad():
            for p, q in zip(others, gather(copies(parameters))[0]):
                p.copy_(q)
    train(optimizer, parameters, range(SAVED, SAVED + 2))
    train(resumed, others, range(SAVED, SAVED + 2))
    assert bits(others) != bits(parameters)


@check(2, each=OPTIMIZERS)
def a_state_of_sixteen_bits_restores_the_masters(name):
    optimizer, parameters = interrupted(name, dtype=torch.bfloat16)
    state = saved(optimizer.state_dict())
    others = make_parameters(seed=5, dtype=torch.bfloat16)
    resumed = make(name, others)
    resumed.load_state_dict(state)
    require_same_bits(others, parameters)
    continue_both(optimizer, parameters, resumed, others)


@check(2)
def a_state_restores_the_settings_of_groups():
    parameters = make_parameters()
    optimizer = AdamW([{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:], "weight_decay": 0.25}])
    train(optimizer, parameters, range(2))
    others = copies(parameters)
    others = [torch.nn.Parameter(p) for p in others]
    resumed = AdamW([{"params": others[:2]}, {"params": others[2:]}])
    resumed.load_state_dict(saved(optimizer.state_dict()))
    assert [group["lr"] for group in resumed.param_groups] == [0.5, 1e-3]
    assert [group["weight_decay"] for group in resumed.param_groups] == [1e-2, 0.25]
    train(optimizer, parameters, range(2, 4))
    train(resumed, others, range(2, 4))
    require_same_bits(others, parameters)


@check((2, 4), each=OPTIMIZERS)
def a_single_file_of_all_ranks_continues(name):
    optimizer, parameters = interrupted(name)
    optimizer.consolidate_state_dict(to=0)
    file = [saved(optimizer.state_dict()) if rank() == 0 else None]
    dist.broadcast_object_list(file)
    assert ranks_in(file[0]) == ([] if name in OPEN else [f"rank{one}_of_{size()}" for one in range(size())])
    resumed, others = fresh(name, parameters)
    resumed.load_state_dict(file[0])
    require_same_bits(others, parameters)
    continue_both(optimizer, parameters, resumed, others)


@check(2)
def a_consolidated_state_is_that_of_its_step():
    optimizer, parameters = interrupted("one_bit_adam")
    optimizer.consolidate_state_dict(to=1)
    assert len(ranks_in(optimizer.state_dict())) == 1 + rank()
    assert len(ranks_in(optimizer.state_dict())) == 1 + rank()  # as often as it is wanted
    train(optimizer, parameters, range(SAVED, SAVED + 1))
    state = optimizer.state_dict()
    assert ranks_in(state) == [f"rank{rank()}_of_2"]
    assert state["state"][0]["step"] == SAVED + 1


@check(2, each=[name for name in OPTIMIZERS if name not in OPEN])
def the_state_of_another_rank_is_rejected(name):
    optimizer, parameters = interrupted(name)
    of_rank_0 = gather(optimizer.state_dict())[0]
    before, state = copies(parameters), copies(state_of(optimizer))
    if rank() == 0:
        optimizer.load_state_dict(of_rank_0)
    else:
        with raises(ValueError, "rank0_of_2", "this is rank1_of_2", "consolidate_state_dict()", "from_other_ranks=True"):
            optimizer.load_state_dict(of_rank_0)
    require_same_bits(parameters, before)
    require_same_bits(state_of(optimizer), state)
    optimizer.load_state_dict(optimizer.state_dict())  # on all ranks: they compare before the next step
    train(optimizer, parameters, range(SAVED, SAVED + 1))
    assert optimizer.statistics()["step"] == SAVED + 1


@check(2, each=OPEN)
def the_state_of_another_rank_is_accepted_where_all_are_equal(name):
    optimizer, parameters = interrupted(name)
    resumed, others = fresh(name, parameters)
    resumed.load_state_dict(gather(optimizer.state_dict())[0])
    continue_both(optimizer, parameters, resumed, others)


@check((2, 4), each=OPTIMIZERS)
def from_other_ranks_continues_from_the_state_of_one_without_its_errors(name):
    optimizer, parameters = interrupted(name)
    norms = optimizer.statistics(with_norms=True)
    assert name in ("adamw", "lamb", "slamb", "slamb_by_differences") or norms["worker_error_norms"][0] > 0.0
    of_rank_0, of_parameters, norms = gather((optimizer.state_dict(), copies(parameters), norms))[0]
    resumed, others = fresh(name, of_parameters)
    resumed.load_state_dict(of_rank_0, from_other_ranks=True)
    require_same_bits(others, of_parameters)
    found = resumed.statistics(with_norms=True)
    assert found["step"] == SAVED
    for key in ("momentum_norm", "variance_norm", "parameter_norm"):
        assert found[key] == norms[key] > 0.0, key
    assert not any(found["worker_error_norms"])
    train(optimizer, parameters, range(SAVED, SAVED + 6))
    train(resumed, others, range(SAVED, SAVED + 6))
    resumed.compare_ranks()
    if name in OPEN:
        require_same_bits(others, parameters)
    else:
        assert name in OWN or are_equal_on_all_ranks(others)


@check(2, each=OPTIMIZERS)
def from_other_ranks_of_all_states_is_the_same_on_all(name):
    optimizer, parameters = interrupted(name)
    optimizer.consolidate_state_dict(to=0)
    state = [(saved(optimizer.state_dict()), copies(parameters)) if rank() == 0 else None]
    dist.broadcast_object_list(state)
    resumed, others = fresh(name, state[0][1])
    resumed.load_state_dict(state[0][0], from_other_ranks=True)
    require_same_bits(others, state[0][1])
    train(resumed, others, range(SAVED, SAVED + 4))
    resumed.compare_ranks()
    resumed.synchronize_parameters()
    assert are_equal_on_all_ranks(others)


@check(2)
def from_other_ranks_must_be_set_on_all():
    optimizer, _ = interrupted("one_bit_adam")
    others = make_parameters(seed=5)
    resumed = make("one_bit_adam", others)
    of_rank_0 = gather(optimizer.state_dict())[0]
    resumed.load_state_dict(of_rank_0, from_other_ranks=rank() == 1)  # rank 0 keeps its compression errors
    train(resumed, others, range(SAVED, SAVED + 3))
    resumed.compare_ranks()


@check(4, each=OPTIMIZERS)
def a_state_of_four_ranks_continues_on_two(name):
    optimizer, parameters = interrupted(name)
    optimizer.consolidate_state_dict(to=0)
    file = [(saved(optimizer.state_dict()), copies(parameters)) if rank() == 0 else None]
    dist.broadcast_object_list(file)
    state, of_parameters = file[0]
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    kind = type(optimizer)
    settings = {"lr": 1e-3, **OPTIMIZERS[name][1], "process_group": pairs[rank() // 2]}
    others = [torch.nn.Parameter(p.clone()) for p in of_parameters]
    resumed = kind(others, **settings)
    if name not in OPEN:
        with raises(ValueError, "rank3_of_4", f"this is rank{rank() % 2}_of_2", "from_other_ranks=True"):
            resumed.load_state_dict(state)
    resumed.load_state_dict(state, from_other_ranks=True)
    require_same_bits(others, of_parameters)
    train(resumed, others, range(SAVED, SAVED + 4))
    resumed.compare_ranks()
    assert resumed.statistics()["step"] == SAVED + 4
    resumed.synchronize_parameters()
    assert are_equal_on_all_ranks(others, pairs[rank() // 2])
    # And by a process that does not exchange.
    alone = [torch.nn.Parameter(p.clone()) for p in of_parameters]
    single = kind(alone, **{**settings, "process_group": None, "exchange": False})
    single.load_state_dict(state, from_other_ranks=True)
    train(single, alone, range(SAVED, SAVED + 2))
    assert single.statistics()["step"] == SAVED + 2
    assert distance(alone, of_parameters) > 0.0


@check(2)
def states_of_different_steps_are_told():
    optimizer, parameters = interrupted("one_bit_adam")
    early = optimizer.state_dict()
    train(optimizer, parameters, range(SAVED, SAVED + 1))
    optimizer.load_state_dict(early if rank() == 0 else optimizer.state_dict())
    with raises(RuntimeError, "ranks differ in", "step", "on all ranks or on none"):
        train(optimizer, parameters, range(SAVED + 1, SAVED + 2))


@check(2)
def a_state_that_does_not_fit_changes_nothing():
    optimizer, parameters = interrupted("slamb")
    state, own, before = optimizer.state_dict(), copies(state_of(optimizer)), copies(parameters)
    others = make_parameters(((40, 30), (31,), (3, 5, 2), (1,)))
    with raises(ValueError):
        make("slamb", others).load_state_dict(state)
    with raises(ValueError):
        make("one_bit_adam", make_parameters()).load_state_dict(state)
    of_first = state["state"][0]
    cut = {**of_first, "ranks": {**of_first["ranks"], f"rank{rank()}_of_2": own[0][:-8]}}
    cut = {**state, "state": {**state["state"], 0: cut}}
    with raises(ValueError):
        optimizer.load_state_dict(cut)
    with raises(ValueError, "the state of another optimizer"):
        optimizer.load_state_dict(torch.optim.AdamW(make_parameters()).state_dict())
    require_same_bits(parameters, before)
    require_same_bits(state_of(optimizer), own)
    train(optimizer, parameters, range(SAVED, SAVED + 1))


@check(2)
def groups_that_were_added_later_are_restored():
    def made(parameters):
        optimizer = Slamb(parameters[:2], dense_below=10, k=0.5, local_steps=3)
        return optimizer

    parameters = make_parameters()
    optimizer = made(parameters)
    train(optimizer, parameters[:2], range(4))
    optimizer.add_param_group({"params": parameters[2:]})
    train(optimizer, parameters, range(4, 6))
    optimizer.consolidate_state_dict(to=0)
    file = [saved(optimizer.state_dict()) if rank() == 0 else None]
    dist.broadcast_object_list(file)
    others = make_parameters(seed=5)
    resumed = made(others)
    resumed.add_param_group({"params": others[2:]})
    resumed.load_state_dict(file[0])
    require_same_bits(others, parameters)
    for step in range(6, 12):
        train(optimizer, parameters, range(step, step + 1))
        train(resumed, others, range(step, step + 1))
        require_same_bits(others, parameters)


# --------------------------------------------------------------------------------------- torch.distributed.checkpoint


def model_with(parameters):
    model = torch.nn.Module()
    model.weights = torch.nn.ParameterList(parameters)
    return model


@check(2, needs=(2, 3), each=("slamb", "one_bit_adam", "zero_one_adam", "adamw+int8", "adamw"))
def distributed_checkpoints_continue(name):
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    optimizer, parameters = interrupted(name)
    model = model_with(parameters)
    own = state_of(optimizer)
    assert name == "adamw" or not are_equal_on_all_ranks(own)
    before, sent = copies(parameters), optimizer.statistics()["sent_bytes"]
    folder = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(
        {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)},
        checkpoint_id=folder[0],
    )
    require_same_bits(parameters, before)
    assert optimizer.statistics()["step"] == SAVED and optimizer.statistics()["sent_bytes"] == sent
    resumed, others = fresh(name, parameters)
    model_of_others = model_with(others)
    loaded = {"model": model_of_others.state_dict(), "optimizer": get_optimizer_state_dict(model_of_others, resumed)}
    assert resumed.statistics()["step"] == 0  # nothing was stepped to fill the state
    dcp.load(loaded, checkpoint_id=folder[0])
    model_of_others.load_state_dict(loaded["model"])
    set_optimizer_state_dict(model_of_others, resumed, loaded["optimizer"])
    require_same_bits(others, parameters)
    continue_both(optimizer, parameters, resumed, others)


if __name__ == "__main__":
    run(globals())
