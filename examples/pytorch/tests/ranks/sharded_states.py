"""States of parameters of which each rank has a part: torch.distributed.checkpoint, files of ranks, and optimizer.state."""

import io

import torch
import torch.distributed as dist

from checks import (
    are_equal_on_all_ranks,
    bits,
    check,
    copies,
    gather,
    noise,
    raises,
    rank,
    require_near,
    require_same_bits,
    run,
)
from optimizers import OPTIMIZERS, make
from sharded_models import NEEDS, Mlp, Small, groups_of, line, local, made, mesh_of, parallel, same_folder, split, train, whole
from slamb.torch import AdamW

SAVED = 7  # steps before a checkpoint: every phase has begun


def saved(value):
    """A value after torch.save and torch.load."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def save_by_dcp(model, optimizer, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as api

    states = {"model": api.get_model_state_dict(model), "optimizer": api.get_optimizer_state_dict(model, optimizer)}
    dcp.save(states, checkpoint_id=folder)


def load_by_dcp(model, optimizer, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as api

    states = {"model": api.get_model_state_dict(model), "optimizer": api.get_optimizer_state_dict(model, optimizer)}
    dcp.load(states, checkpoint_id=folder)
    api.set_model_state_dict(model, states["model"])
    api.set_optimizer_state_dict(model, optimizer, states["optimizer"])


def require_same_continuation(model, optimizer, other, resumed, of_rank=None):
    require_same_bits(local(other.parameters()), local(model.parameters()))
    steps = range(SAVED, SAVED + 6)
    assert train(model, optimizer, steps, of_rank) == train(other, resumed, steps, of_rank)
    require_same_bits(local(other.parameters()), local(model.parameters()))
    assert resumed.statistics()["step"] == SAVED + 6


STORED = {**{name: (name, {}) for name in OPTIMIZERS}, "8-bit": ("lamb", {"moments": "8-bit"})}


def on_two_by_two(name, kind=Small, **others):
    """A model that FSDP2 has cut, on 2 × 2 ranks, and its optimizer."""
    mesh = mesh_of(2, 2)
    model = split(made(kind), mesh["shard"])
    own, settings = STORED[name]
    return model, make(own, model.parameters(), **{**settings, **others}, **groups_of(mesh))


@check(4, NEEDS, each=STORED)
def every_rank_gets_its_own_state_back_from_distributed_checkpoints(name):
    model, optimizer = on_two_by_two(name)
    train(model, optimizer, range(SAVED))
    folder = same_folder()
    save_by_dcp(model, optimizer, folder)
    assert optimizer.statistics()["step"] == SAVED
    other, resumed = on_two_by_two(name, lr=5.0)
    load_by_dcp(other, resumed, folder)
    require_same_continuation(model, optimizer, other, resumed)


@check(4, NEEDS, each=("slamb", "one_bit_lamb", "adamw+int8"))
def a_checkpoint_has_other_errors_for_each_rank(name):
    """Otherwise the check above would show nothing."""
    model, optimizer = on_two_by_two(name, Mlp)
    train(model, optimizer, range(SAVED))
    entries = optimizer.state_dict()["state"].values()
    own = [one for entry in entries for key, one in entry["ranks"].items() if key.startswith("rank")]
    assert len(own) == 1 and len(set(gather(bits(own)[0]))) == 4


@check(4, NEEDS, each=("lamb", "slamb", "one_bit_adam"))
def the_states_of_tensor_parallelism_go_through_distributed_checkpoints(name):
    def started():
        mesh = mesh_of(2, 2, names=("replicate", "tensor"))
        model = parallel(made(Mlp), mesh["tensor"])
        return model, make(name, model.parameters(), process_group=mesh["replicate"].get_group()), mesh.get_coordinate()[0]

    model, optimizer, replica = started()
    train(model, optimizer, range(SAVED), replica)
    folder = same_folder()
    save_by_dcp(model, optimizer, folder)
    other, resumed, _ = started()
    load_by_dcp(other, resumed, folder)
    require_same_continuation(model, optimizer, other, resumed, replica)


@check(4, NEEDS, each=("adamw", "lamb"))
def distributed_checkpoints_change_the_number_of_shards(name):
    model, optimizer = on_two_by_two(name, lr=0.01)
    train(model, optimizer, range(SAVED))
    folder = same_folder()
    save_by_dcp(model, optimizer, folder)
    others = []
    for other in (split(made(Small), line()), split(made(Small), mesh_of(2, 2)), made(Small)):
        others.append((other, make(name, other.parameters(), lr=0.01)))
        load_by_dcp(*others[-1], folder)
        require_same_bits(whole(other.parameters()), whole(model.parameters()))
        assert others[-1][1].statistics()["step"] == SAVED
    losses = [train(*one, range(SAVED, SAVED + 10)) for one in ((model, optimizer), *others)]
    assert all(abs(a - b) < 1e-5 for one in losses for a, b in zip(one, losses[0])), losses
    for other, _ in others:
        require_near(whole(other.parameters()), whole(model.parameters()), 1e-5)


@check(4, NEEDS)
def moments_of_a_compressed_optimizer_go_to_another_number_of_shards():
    import torch.distributed.checkpoint as dcp

    model, optimizer = on_two_by_two("adamw+int8", lr=0.01)
    train(model, optimizer, range(SAVED))
    folder = same_folder()
    dcp.save({"moments": optimizer.export_state()["state"], "model": model.state_dict()}, checkpoint_id=folder)
    other = split(made(Small), line())
    resumed = make("adamw+int8", other.parameters(), lr=0.01)
    exported = resumed.export_state()
    states = {"moments": exported["state"], "model": other.state_dict()}
    dcp.load(states, checkpoint_id=folder)
    other.load_state_dict(states["model"])
    resumed.import_state({**exported, "state": states["moments"]})
    for p, q in zip(model.parameters(), other.parameters()):
        found = [whole(one.moments(t)[key] for key in ("exp_avg", "exp_avg_sq")) for one, t in ((optimizer, p), (resumed, q))]
        require_same_bits(*found)
    assert resumed.statistics()["step"] == SAVED
    train(other, resumed, range(SAVED, SAVED + 3))


@check(4, NEEDS, each=STORED)
def each_rank_saves_and_loads_a_file_of_its_own(name):
    model, optimizer = on_two_by_two(name)
    train(model, optimizer, range(SAVED))
    file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other, resumed = on_two_by_two(name)
    other.load_state_dict(file["model"])
    resumed.load_state_dict(file["optimizer"])
    require_same_continuation(model, optimizer, other, resumed)


@check(4, NEEDS, each=("slamb", "one_bit_lamb", "8-bit"))
def one_rank_collects_the_states_of_all(name):
    model, optimizer = on_two_by_two(name)
    train(model, optimizer, range(SAVED))
    optimizer.consolidate_state_dict(to=1)
    state = [optimizer.state_dict()] if rank() == 2 else [None]
    dist.broadcast_object_list(state, src=2)
    other, resumed = on_two_by_two(name)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state[0])
    require_same_continuation(model, optimizer, other, resumed)


@check(4, NEEDS)
def collected_states_have_the_order_of_elements_of_each_shard():
    """Of parts in channels_last. A part of one output channel lies in another order than larger ones."""
    from torch.distributed.tensor import DTensor, Shard

    mesh = mesh_of(2, 2)
    place = mesh["shard"].get_local_rank()

    def started():
        own = noise((2, 3, 2, 2), 40, place).contiguous(memory_format=torch.channels_last if place else torch.contiguous_format)
        p = torch.nn.Parameter(DTensor.from_local(own, mesh["shard"], [Shard(0)]))
        return p, make("slamb", [p], dense_below=0, **groups_of(mesh))

    def step(p, optimizer, number):
        own = torch.empty_like(p.to_local().detach())
        own.copy_(noise((2, 3, 2, 2), 41, place, rank(), number))
        p.grad = DTensor.from_local(own, mesh["shard"], [Shard(0)])
        optimizer.step()

    p, optimizer = started()
    for number in range(SAVED):
        step(p, optimizer, number)
    optimizer.consolidate_state_dict()
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state)
    assert any(key.startswith("strides0_shard1_of_2") for key in state[0]["state"][0]["ranks"])
    q, resumed = started()
    resumed.load_state_dict(state[0])
    for number in range(SAVED, SAVED + 3):
        step(p, optimizer, number)
        step(q, resumed, number)
    require_same_bits(local([q]), local([p]))
    with raises(ValueError, "parameter 0", "lie as they are counted"):
        optimizer.consolidate_state_dict(whole=True)


@check(4, NEEDS, each=("slamb", "8-bit"))
def the_state_of_another_shard_is_rejected(name):
    model, optimizer = on_two_by_two(name)
    train(model, optimizer, range(3))
    state, other = optimizer.state_dict(), rank() ^ 1
    for entry in state["state"].values():  # to send no DTensors
        for key, value in entry.items():
            assert not hasattr(value, "placements"), key
    states = gather(state)
    theirs, own = f"rank{other // 2}_of_2_shard{other % 2}_of_2", f"rank{rank() // 2}_of_2_shard{rank() % 2}_of_2"
    for allows in (False, True):
        with raises(ValueError, theirs, f"this is {own}"):
            optimizer.load_state_dict(states[other], from_other_ranks=allows)
    # Even if its name is wrong.
    for entry in states[other]["state"].values():
        if theirs in entry["ranks"]:
            entry["ranks"][own] = entry["ranks"].pop(theirs)
    with raises(ValueError, "shard"):
        optimizer.load_state_dict(states[other])
    optimizer.load_state_dict(state)


@check(4, NEEDS, each=("adamw", "lamb"))
def the_moments_of_another_shard_are_rejected(name):
    """Those of a parameter may have the same shape."""
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    optimizer = make(name, model.parameters(), **groups_of(mesh))
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    files = gather(file.getvalue())
    states = [torch.load(io.BytesIO(one), weights_only=False) for one in files]
    before = bits(copies(local(optimizer.state[p]["exp_avg"] for p in model.parameters())))
    for allows in (False, True):
        with raises(ValueError, f"the state of shard {1 - rank() % 2} of 2, but this is shard {rank() % 2} of 2"):
            optimizer.load_state_dict(states[rank() ^ 1], from_other_ranks=allows)
    # One rank refuses its state, and the others do not wait for it.
    with raises(ValueError, "the state of shard 1 of 2, but this is shard 0 of 2" if rank() == 2 else "has failed on another rank"):
        optimizer.load_state_dict(states[3 if rank() == 2 else rank()])
    damaged = torch.load(io.BytesIO(files[rank()]), weights_only=False)
    if rank() == 1:
        del damaged["state"][0]["exp_avg_sq"]
    with raises(ValueError, "the state of parameter 0 has no 'exp_avg_sq'"):
        optimizer.load_state_dict(damaged)
    assert bits(local(optimizer.state[p]["exp_avg"] for p in model.parameters())) == before
    with raises(ValueError, "the state of shard 0 of 2, but the parameters here are whole"):
        AdamW(made(Mlp).parameters(), exchange=False).load_state_dict(states[0])
    optimizer.load_state_dict(states[rank() ^ 2])  # of the other replica, which has the same moments
    train(model, optimizer, range(3, 5))


@check(4, NEEDS, each=("slamb", "one_bit_adam"))
def a_state_of_another_replica_is_accepted_without_its_errors(name):
    model, optimizer = on_two_by_two(name)
    train(model, optimizer, range(SAVED))
    optimizer.consolidate_state_dict()
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state)
    other, resumed = on_two_by_two(name)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state[0], from_other_ranks=True)
    assert resumed.statistics()["step"] == SAVED
    train(other, resumed, range(SAVED, SAVED + 2))
    # Without replicas too.
    alone = split(made(Small), mesh_of(2, 2)["shard"])
    of_alone = make(name, alone.parameters(), exchange=False)
    of_alone.load_state_dict(state[0], from_other_ranks=True)
    assert of_alone.statistics()["step"] == SAVED


WHOLE = {**{name: (name, {}) for name in OPTIMIZERS if name not in ("adamw", "lamb")}, "bf16-momentum": ("lamb", {"moments": "bf16-momentum"})}


def collected(optimizer):
    optimizer.consolidate_state_dict(whole=True)
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state)
    return state[0]


@check(4, NEEDS, each=WHOLE)
def a_state_of_whole_parameters_goes_to_any_number_of_shards(name):
    own, settings = WHOLE[name]
    model = split(made(Small), mesh_of(2, 2)["shard"])
    optimizer = make(own, model.parameters(), **settings, **groups_of(mesh_of(2, 2)))
    train(model, optimizer, range(SAVED))
    state, phase = collected(optimizer), optimizer.statistics()["phase"]
    optimizer.synchronize_parameters()
    models = [split(made(Small), line()), made(Small), split(made(Small), mesh_of(2, 2)["shard"])]
    groups = [{}, {}, groups_of(mesh_of(2, 2))]
    norms = []
    for other, its in zip(models, groups):
        resumed = make(own, other.parameters(), **settings, **its)
        resumed.load_state_dict(state, from_other_ranks=True)
        now = resumed.statistics(with_norms=True)
        assert (now["step"], now["phase"]) == (SAVED, phase)
        own_norms = gather([now["parameter_norm"], now["momentum_norm"], now["variance_norm"]])  # of the parts of each rank
        replicas = {0: 1, 1: 4, 2: 2}[len(norms)]
        norms.append([sum(one**2 for one in of_ranks) / replicas for of_ranks in zip(*own_norms)])
        again = collected(resumed)  # and back
        back = split(made(Small), mesh_of(2, 2)["shard"])
        returned = make(own, back.parameters(), **settings, **groups_of(mesh_of(2, 2)))
        returned.load_state_dict(again, from_other_ranks=True)
        assert returned.statistics()["step"] == SAVED
        train(other, resumed, range(SAVED, SAVED + 3))
    for others in norms[1:]:
        assert all(abs(a - b) <= 1e-6 * b and b > 0.0 for a, b in zip(others, norms[0])), norms


@check(4, NEEDS)
def a_state_of_whole_parameters_needs_shards_of_consecutive_elements():
    mesh = mesh_of(2, 2)
    model = parallel(made(Mlp), mesh["shard"])
    optimizer = make("slamb", model.parameters(), **groups_of(mesh))
    with raises(ValueError, "consolidate_state_dict", "parameter 4", "first dimension"):
        optimizer.consolidate_state_dict(whole=True)
    train(model, optimizer, range(2), mesh.get_coordinate()[0])


@check(4, NEEDS, each=("adamw", "lamb"))
def moments_of_whole_parameters_are_left_to_distributed_checkpoints(name):
    model, optimizer = on_two_by_two(name)
    train(model, optimizer, range(2))
    with raises(ValueError, "consolidate_state_dict", "torch.distributed.checkpoint"):
        optimizer.consolidate_state_dict(whole=True)
    train(model, optimizer, range(2, 4))


# --------------------------------------------------------------------------------------------------------- In optimizer.state


@check(4, NEEDS)
def moments_are_dtensors_in_the_memory_of_the_optimizer():
    model, optimizer = on_two_by_two("lamb")
    train(model, optimizer, range(2))
    for p in model.parameters():
        entry = optimizer.state[p]
        for key in ("exp_avg", "exp_avg_sq"):
            assert entry[key].shape == p.shape and entry[key].placements == p.placements
            assert entry[key].stride() == p.stride() and entry[key].device_mesh == p.device_mesh
        found = optimizer.moments(p)
        require_same_bits(local([found["exp_avg"]]), local([entry["exp_avg"]]))
    first = next(iter(model.parameters()))
    optimizer.state[first]["exp_avg"].fill_(3.0)  # counts
    assert bool((optimizer.moments(first)["exp_avg"].to_local() == 3.0).all())
    assert whole([optimizer.state[first]["exp_avg"]])[0].shape == first.shape


@check((2, 4), NEEDS)
def adamw_works_on_the_parts_of_fsdp2_as_that_of_torch():
    ours, theirs = split(made(Mlp), line()), split(made(Mlp), line())
    optimizer = AdamW(ours.parameters(), lr=1e-2)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    train(ours, optimizer, range(4))
    train(theirs, reference, range(4))
    require_near(local(ours.parameters()), local(theirs.parameters()), 1e-6)
    # Each continues with the state of the other.
    ours_then, theirs_then = optimizer.export_state(), reference.state_dict()
    optimizer.load_state_dict(theirs_then)
    reference.load_state_dict(ours_then)
    train(ours, optimizer, range(4, 8))
    train(theirs, reference, range(4, 8))
    require_near(local(ours.parameters()), local(theirs.parameters()), 1e-6)


@check(2, NEEDS)
def moments_of_other_placements_are_rejected():
    model = split(made(Mlp), line())
    optimizer = AdamW(model.parameters())
    train(model, optimizer, range(2))
    state = optimizer.state_dict()
    entry = state["state"][1]
    good = dict(entry)
    for wrong in (good["exp_avg"].full_tensor(), good["exp_avg"].to_local()):
        entry["exp_avg"] = wrong
        with raises(ValueError, "parameter 1", "'exp_avg' = Tensor", "DTensor", "placements"):
            optimizer.load_state_dict(state)
    entry.update(good)
    optimizer.load_state_dict(state)
    plain = AdamW(made(Mlp).parameters(), exchange=False)
    with raises(ValueError, f"the state of shard {rank()} of 2, but the parameters here are whole"):
        plain.load_state_dict(state)
    del state["shard"]  # as torch.distributed.checkpoint gives it
    with raises(ValueError, "parameter 0", "'exp_avg'"):
        plain.load_state_dict(state)


@check(2, NEEDS)
def a_state_of_whole_parameters_beside_parts_of_others_is_loaded():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Linear(13, 5))
    model.loss = lambda step, of_rank: (model(noise((4, 7), 30, step)) ** 2).mean()
    split(model[0], line())
    optimizer = AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters(), "betas": (0.8, 0.9)}])
    train(model, optimizer, range(2))
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    train(model, optimizer, [2])
    assert optimizer.statistics()["step"] == 3
    optimizer.load_state_dict(state)
    assert optimizer.statistics()["step"] == 2


@check(4, NEEDS)
def a_state_begins_anew():
    model, optimizer = on_two_by_two("slamb", Mlp)
    train(model, optimizer, range(5))
    optimizer.reset_state()
    group = mesh_of(2, 2)["replicate"].get_group()
    assert optimizer.statistics()["step"] == 0 and are_equal_on_all_ranks(local(model.parameters()), group)
    optimizer.state.clear()
    with raises(RuntimeError, "reset_state()"):
        train(model, optimizer, [5])


if __name__ == "__main__":
    run(globals())
