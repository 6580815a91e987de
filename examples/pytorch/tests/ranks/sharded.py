"""Parameters of which each rank has a part, against whole ones: FSDP2 (fully_shard), tensor parallelism, and both."""

import copy

import torch
import torch.distributed as dist

from checks import (
    are_equal_on_all_ranks,
    bits,
    check,
    copies,
    gather,
    raises,
    rank,
    require_near,
    require_same_bits,
    run,
    size,
)
from optimizers import OPTIMIZERS, make
from sharded_models import (
    NEEDS,
    Mlp,
    Small,
    Transformer,
    compute_scaled,
    groups_of,
    line,
    local,
    made,
    mesh_of,
    parallel,
    split,
    train,
    whole,
)
from slamb.torch import AdamW, Lamb, Slamb

DENSE = {
    "adamw": (AdamW, {"lr": 1e-3}),
    "adamw+clip": (AdamW, {"lr": 1e-3, "max_gradient_norm": 0.5}),
    "lamb": (Lamb, {"lr": 0.01}),
    "lamb+clip": (Lamb, {"lr": 0.01, "max_gradient_norm": 0.5}),
    "lamb+bf16-momentum": (Lamb, {"lr": 0.01, "moments": "bf16-momentum"}),
}
EXACT = 1e-5  # of losses, absolutely, and of parameters, in parts of the largest
ROUNDED = 1e-3  # the same, where momenta are rounded to 16 bits, by which other roundings grow


def require_equal_trainings(model, optimizer, reference, of_reference, steps=12, of_rank=None):
    """Requires the losses and parameters of two trainings to agree."""
    before = copies(reference.parameters())
    bound = EXACT if "exp_avg" in optimizer.state[next(iter(model.parameters()))] else ROUNDED
    losses = train(model, optimizer, range(steps), of_rank)
    expected = train(reference, of_reference, range(steps), of_rank)
    furthest = max(abs(a - b) for a, b in zip(losses, expected))
    assert furthest < bound, f"losses differ by {furthest}: {losses} and {expected}"
    require_near(whole(model.parameters()), list(reference.parameters()), bound)
    assert all(bits([a]) != bits([b]) for a, b in zip(before, reference.parameters())), "a parameter has not been trained"


# ---------------------------------------------------------------------------------------------------------------- Trainings


FLOATS = [name for name in DENSE if "bf16" not in name]
CLIPPED = ("adamw+clip", "lamb+clip")


@check(4, NEEDS, each=DENSE)
def fsdp2_with_replicas_trains_as_whole_models(name):
    kind, options = DENSE[name]
    mesh = mesh_of(2, 2)
    model, reference = split(made(Transformer), mesh["shard"]), made(Transformer)
    optimizer = kind(model.parameters(), **options, process_group=mesh["replicate"].get_group())
    require_equal_trainings(model, optimizer, reference, kind(reference.parameters(), **options))
    assert optimizer.statistics()["sent_bytes"] > 0


@check(4, NEEDS, each=("adamw", "lamb"))
def a_transformer_of_a_million_parameters_trains_as_a_whole_one(name):
    kind, options = DENSE[name]
    size = {"tokens": 256, "width": 128, "layers": 6, "heads": 4, "length": 32}
    mesh = mesh_of(2, 2)
    model, reference = split(made(Transformer, **size), mesh["shard"]), made(Transformer, **size)
    assert sum(p.numel() for p in reference.parameters()) > 1_200_000
    losses = train(model, kind(model.parameters(), **options, process_group=mesh["replicate"].get_group()), range(10))
    expected = train(reference, kind(reference.parameters(), **options), range(10))
    assert max(abs(a - b) for a, b in zip(losses, expected)) < 1e-5 and losses[-1] < losses[0] - 0.5, (losses, expected)


@check((2, 4), NEEDS, each=CLIPPED)
def fsdp2_without_replicas_trains_as_whole_models(name):
    kind, options = DENSE[name]
    model, reference = split(made(Transformer), line()), made(Transformer)
    optimizer = kind(model.parameters(), **options)
    require_equal_trainings(model, optimizer, reference, kind(reference.parameters(), **options))
    assert optimizer.statistics()["sent_bytes"] == 0


@check(4, NEEDS, each=("adamw", "lamb"))
def fsdp2_averages_itself_over_a_mesh_with_two_dimensions(name):
    kind, options = DENSE[name]
    model, reference = split(made(Transformer), mesh_of(2, 2)), made(Transformer)
    optimizer = kind(model.parameters(), **options)
    require_equal_trainings(model, optimizer, reference, kind(reference.parameters(), **options))
    assert optimizer.statistics()["sent_bytes"] == 0


@check(4, NEEDS, each=FLOATS)
def tensor_parallelism_with_replicas_trains_as_whole_models(name):
    kind, options = DENSE[name]
    mesh = mesh_of(2, 2, names=("replicate", "tensor"))
    group, replica = mesh["replicate"].get_group(), mesh.get_coordinate()[0]
    model, reference = parallel(made(Mlp), mesh["tensor"]), made(Mlp)
    require_equal_trainings(
        model,
        kind(model.parameters(), **options, process_group=group),
        reference,
        kind(reference.parameters(), **options, process_group=group),
        of_rank=replica,
    )
    assert are_equal_on_all_ranks([model.norm.weight, model.down.bias.to_local()])


@check(2, NEEDS, each=("lamb", "lamb+clip"))
def tensor_parallelism_alone_trains_as_whole_models(name):
    kind, options = DENSE[name]
    model, reference = parallel(made(Mlp), line()), made(Mlp)
    of_reference = kind(reference.parameters(), **options, exchange=False)
    require_equal_trainings(model, kind(model.parameters(), **options), reference, of_reference, of_rank=0)


@check(4, NEEDS, each=CLIPPED)
def fsdp2_and_tensor_parallelism_together_train_as_whole_models(name):
    kind, options = DENSE[name]
    mesh = mesh_of(2, 2, names=("shard", "tensor"))
    model, reference = split(parallel(made(Mlp), mesh["tensor"]), mesh["shard"]), made(Mlp)
    of_reference = kind(reference.parameters(), **options, process_group=mesh["shard"].get_group())
    require_equal_trainings(
        model, kind(model.parameters(), **options), reference, of_reference, of_rank=mesh.get_coordinate()[0]
    )


@check((2, 4), NEEDS, each=("lamb", *CLIPPED))
def uneven_and_empty_parts_train_as_whole_models(name):
    kind, options = DENSE[name]
    mesh = line() if size() == 2 else mesh_of(2, 2)["shard"]
    model, reference = split(made(Small), mesh), made(Small)
    assert any(p.numel() == 0 for p in local(model.parameters())) == (mesh.get_local_rank() == 1)
    group = None if size() == 2 else dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])[0]
    optimizer = kind(model.parameters(), **options, process_group=group)
    require_equal_trainings(model, optimizer, reference, kind(reference.parameters(), **options))


@check(4, NEEDS)
def parts_of_a_rank_that_has_nothing_train_as_whole_models():
    torch.manual_seed(1)
    model, reference = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    reference.load_state_dict(model.state_dict())
    for one in (model, reference):
        one.loss = lambda step, of_rank, one=one: one(noise_of(step, of_rank)).square().mean()
    split(model, line())
    assert all((p.numel() == 0) == (rank() == 3) for p in local(model.parameters()))
    require_equal_trainings(model, Lamb(model.parameters()), reference, Lamb(reference.parameters()))


def noise_of(step, of_rank):
    return torch.randn((6, 5), generator=torch.Generator().manual_seed(100 * step + of_rank))


@check(4, NEEDS)
def norms_of_own_parts_alone_train_otherwise():
    """What the other checks would not find if their bounds were too wide."""
    mesh = mesh_of(2, 2)
    model, reference = split(made(Transformer), mesh["shard"]), made(Transformer)
    for p in model.parameters():
        p.own = torch.nn.Parameter(p.to_local().detach())
    group = mesh["replicate"].get_group()
    optimizer = Lamb([p.own for p in model.parameters()], lr=0.01, process_group=group)

    def give():
        for p in model.parameters():
            p.own.grad = p.grad.to_local()

    losses = train(model, optimizer, range(20), each=give)
    expected = train(reference, Lamb(reference.parameters(), lr=0.01), range(20))
    assert max(abs(a - b) for a, b in zip(losses, expected)) > 100 * EXACT


@check(4, NEEDS)
def parameters_of_16_bits_train_as_whole_models():
    mesh = mesh_of(2, 2)
    model, reference = split(made(Transformer).bfloat16(), mesh["shard"]), made(Transformer)
    optimizer = Lamb(model.parameters(), lr=0.01, process_group=mesh["replicate"].get_group())
    losses = train(model, optimizer, range(10))
    expected = train(reference, Lamb(reference.parameters(), lr=0.01), range(10))
    assert max(abs(a - b) for a, b in zip(losses, expected)) < 0.05
    for p in model.parameters():
        master = optimizer.state[p]["master_param"]
        assert master.placements == p.placements and master.dtype == torch.float32
        assert torch.equal(master.to_local().bfloat16(), p.to_local().detach())


# --------------------------------------------------------------------------------------------------------------- Compressors


def as_needed(name):
    """Settings by which a small model reaches every phase."""
    return {"lr": 2e-3, **({"dense_below": 0} if "slamb" in name else {})}


@check(4, NEEDS, each=OPTIMIZERS)
def every_optimizer_trains_parts_of_fsdp2(name):
    mesh = mesh_of(2, 2)
    model = split(made(Transformer), mesh["shard"])
    optimizer = make(name, model.parameters(), **as_needed(name), **groups_of(mesh))
    losses = train(model, optimizer, range(20))
    assert losses[-1] < losses[0] - 0.05, f"the loss went from {losses[0]} to {losses[-1]}"
    optimizer.compare_ranks()
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks(local(model.parameters()), mesh["replicate"].get_group())
    assert len({now["phase"] for now in gather(optimizer.statistics())}) == 1


@check(4, NEEDS, each=OPTIMIZERS)
def every_optimizer_trains_tensor_parallelism(name):
    codes = {"compressor": "random_k"} if name == "slamb_by_differences" else {}
    mesh = mesh_of(2, 2, names=("replicate", "tensor"))
    group, replica = mesh["replicate"].get_group(), mesh.get_coordinate()[0]
    model = parallel(made(Mlp), mesh["tensor"])
    optimizer = make(name, model.parameters(), **{**as_needed(name), **codes}, process_group=group)
    losses = train(model, optimizer, range(30), replica)
    assert losses[-1] < losses[0] - 0.05, f"the loss went from {losses[0]} to {losses[-1]}"
    optimizer.compare_ranks()
    # Copies are equal at any time, also where replicas differ.
    assert are_equal_on_all_ranks([model.norm.weight, model.down.bias.to_local()], mesh["tensor"].get_group())
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks(local(model.parameters()), group)
    assert are_equal_on_all_ranks([model.norm.weight, model.down.bias.to_local()])


@check(4, NEEDS, each=OPTIMIZERS)
def an_overflow_in_one_shard_makes_all_ranks_skip(name):
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    optimizer = make(name, model.parameters(), **groups_of(mesh))
    train(model, optimizer, range(6))
    before = copies(local(model.parameters()))

    def spoil():
        if rank() == 3:
            list(model.parameters())[-1].grad.to_local().fill_(float("inf"))

    train(model, optimizer, [6], each=spoil)
    require_same_bits(local(model.parameters()), before)
    assert gather(optimizer.statistics()["skipped_steps"]) == [1] * 4
    train(model, optimizer, range(7, 10))
    assert not any(a == b for a, b in zip(bits(local(model.parameters())), bits(before)) if a)


@check(4, NEEDS)
def the_scaler_of_one_shard_makes_all_ranks_skip():
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    optimizer = Lamb(model.parameters(), **groups_of(mesh))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model.loss(step, rank())).backward()
        if step == 2 and rank() == 1:
            list(model.parameters())[0].grad.to_local().fill_(float("nan"))
        before = copies(local(model.parameters()))
        scaler.step(optimizer)
        scaler.update()
        has_moved = bits(before) != bits(local(model.parameters()))
        assert has_moved == (step != 2)
    assert gather(optimizer.statistics()["skipped_steps"]) == [1] * 4


@check(4, NEEDS)
def scalers_that_differ_within_a_model_are_an_error():
    """FSDP2 agrees on an overflow within its own dimension of the mesh alone."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    mesh = mesh_of(2, 2, names=("shard", "tensor"))
    model, reference = split(parallel(made(Mlp), mesh["tensor"]), mesh["shard"]), made(Mlp)
    optimizer = Lamb(model.parameters(), lr=0.01)
    of_reference = Lamb(reference.parameters(), lr=0.01, exchange=False)
    plain, sharded = torch.amp.GradScaler("cpu", init_scale=2.0**10), ShardedGradScaler("cpu", init_scale=2.0**10)

    for scaler, unscales in ((plain, False), (plain, True), (sharded, False)):
        compute_scaled(model, optimizer, scaler, 0, 0, True)
        before = copies(local(model.parameters()))
        if unscales:
            scaler.unscale_(optimizer)
        with raises(RuntimeError, "have found an overflow on some of them alone", "ShardedGradScaler", "scaler.unscale_(optimizer)"):
            scaler.step(optimizer)
        scaler.update()
        require_same_bits(local(model.parameters()), before)
        assert optimizer.statistics()["step"] == optimizer.statistics()["skipped_steps"] == 0
    compute_scaled(model, optimizer, plain, 0, 0, False)
    with raises(RuntimeError, "have different loss scales"):
        plain.step(optimizer)

    sharded = ShardedGradScaler("cpu", init_scale=2.0**10)
    for step in range(8):
        compute_scaled(model, optimizer, sharded, step, 0, step in (2, 5))
        sharded.unscale_(optimizer)
        sharded.step(optimizer)
        sharded.update()
        if step not in (2, 5):
            of_reference.zero_grad()
            reference.loss(step, 0).backward()
            of_reference.step()
    assert gather(sharded.get_scale()) == [2.0**8] * 4
    assert optimizer.statistics()["skipped_steps"] == 2
    require_near(whole(model.parameters()), list(reference.parameters()), EXACT)


# ------------------------------------------------------------------------------------------------------------------ Clipping


@check(4, NEEDS, each=("adamw", "lamb"))
def the_norm_is_that_of_clip_grad_norm(name):
    kind, options = DENSE[name]
    ours, theirs = split(made(Transformer), line()), split(made(Transformer), line())
    limit = 0.2
    optimizer = kind(ours.parameters(), **options, max_gradient_norm=limit)
    reference = kind(theirs.parameters(), **options)
    norms = []

    def clip():
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))

    for step in range(10):
        losses = train(ours, optimizer, [step])
        expected = train(theirs, reference, [step], each=clip)
        assert abs(losses[0] - expected[0]) < 1e-6
        assert norms[-1] > limit, "nothing was clipped"
        assert abs(optimizer.statistics()["gradient_norm"] - norms[-1]) < 1e-6 * norms[-1]
    require_near(local(ours.parameters()), local(theirs.parameters()), 1e-6)


@check(4, NEEDS)
def copies_count_once_in_the_norm():
    mesh = mesh_of(2, 2, names=("replicate", "tensor"))
    group, replica = mesh["replicate"].get_group(), mesh.get_coordinate()[0]
    model, reference = parallel(made(Mlp), mesh["tensor"]), made(Mlp)
    optimizers = [
        AdamW(one.parameters(), max_gradient_norm=1e-3, process_group=group) for one in (model, reference)
    ]
    for one, optimizer in zip((model, reference), optimizers):
        train(one, optimizer, range(1), replica)
    ours, theirs = (one.statistics()["gradient_norm"] for one in optimizers)
    assert abs(ours - theirs) < 1e-6 * theirs


# -------------------------------------------------------------------------------------------------------------------- Groups


@check(4, NEEDS)
def the_groups_are_given_or_found():
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    trained = []
    for groups in ({"process_group": mesh["replicate"].get_group()}, groups_of(mesh)):
        one = copy_of(model, mesh["shard"])
        train(one, Lamb(one.parameters(), **groups), range(3))
        trained.append(local(one.parameters()))
    require_same_bits(*trained)


def copy_of(model, mesh):
    copied = split(made(Mlp), mesh)
    copied.load_state_dict(model.state_dict())
    return copied


@check(4, NEEDS)
def a_group_that_is_missing_or_wrong_is_an_error():
    mesh = mesh_of(2, 2)
    replicate, shard = (mesh[name].get_group() for name in ("replicate", "shard"))
    parameters = list(split(made(Mlp), mesh["shard"]).parameters())
    for kind in (AdamW, Slamb):
        with raises(ValueError, "process_group was not given", "mesh['replicate']", "4 ranks"):
            kind(parameters)
        with raises(ValueError, "process_group was not given"):
            kind(parameters, shard_group=shard)
    with raises(ValueError, "have the ranks", "in common"):
        AdamW(parameters, process_group=shard)
    with raises(ValueError, "parameter 0 is cut over the ranks", "shard_group has the ranks"):
        AdamW(parameters, process_group=shard, shard_group=replicate)
    with raises(ValueError, "in common", "leave out process_group"):
        AdamW(split(made(Mlp), mesh).parameters(), process_group=replicate)
    with raises(ValueError, "some parameters are cut over the ranks", "others over"):
        AdamW([*parameters, *split(made(Mlp), mesh["replicate"]).parameters()], exchange=False)
    AdamW(parameters, exchange=False)
    own = dist.new_group([0])
    if rank() == 1:
        with raises(ValueError, "not in shard_group"):
            AdamW(parameters, shard_group=own, exchange=False)
    plain = list(made(Mlp).parameters())
    with raises(ValueError, "process_group was not given"):
        Lamb(plain, shard_group=shard)


@check(4, NEEDS)
def plain_parts_that_are_no_copies_are_an_error_in_a_shard_group():
    mesh = mesh_of(2, 2)
    parts = [torch.nn.Parameter(p.to_local().detach()) for p in split(made(Transformer), mesh["shard"]).parameters()]
    optimizer = Lamb(parts, **groups_of(mesh))
    for p in parts:
        p.grad = torch.ones_like(p) * (1 + rank() // 2)
    with raises(RuntimeError, "slamb: ranks differ"):
        optimizer.step()


@check(4, NEEDS)
def all_ranks_say_that_one_has_other_arguments():
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    with raises(RuntimeError, "ranks differ in moments", "'8-bit' on rank 1 of shard 0"):
        Lamb(model.parameters(), moments="8-bit" if rank() == 2 else "float32", **groups_of(mesh))
    with raises(RuntimeError, "ranks differ in"):
        Lamb(model.parameters(), eps=1e-3 if rank() == 1 else 1e-6, **groups_of(mesh))


@check(4, NEEDS)
def all_ranks_say_that_gradients_were_averaged_already():
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    optimizer = Lamb(model.parameters(), **groups_of(mesh))
    with raises(RuntimeError, "the gradients of all 2 ranks are equal"):
        train(model, optimizer, range(1), of_rank=rank() % 2)
    train(model, Lamb(model.parameters(), check_gradients=False, **groups_of(mesh)), range(2), of_rank=rank() % 2)


@check(4, NEEDS)
def equal_gradients_of_one_shard_alone_are_no_error():
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    optimizer = Lamb(model.parameters(), **groups_of(mesh))

    def make_equal():
        if rank() % 2 == 1:
            for i, p in enumerate(model.parameters()):
                p.grad.to_local().copy_(torch.arange(p.to_local().numel()).view(p.to_local().shape) + i)

    train(model, optimizer, range(2), each=make_equal)


@check(2, NEEDS)
def a_partial_gradient_is_an_error_that_names_the_parameter():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        **{"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()},
    }
    model, reference = parallelize_module(made(Mlp), line(), plan), made(Mlp)
    optimizer = Lamb(model.parameters(), lr=0.01)
    with raises(ValueError, "parameter 0", "Partial", "redistribute(placements=p.placements)", "SequenceParallel"):
        train(model, optimizer, range(1), of_rank=0)

    plain = torch.nn.Parameter(torch.ones(3))
    optimizer.zero_grad()
    optimizer.add_param_group({"params": [plain]})

    def add_up():  # as docs/how-to/sharded.md says
        plain.grad = torch.ones(3)
        for p in (*model.parameters(), plain):
            if hasattr(p.grad, "placements") and p.grad.placements != p.placements:
                p.grad = p.grad.redistribute(placements=p.placements)

    losses = train(model, optimizer, range(10), of_rank=0, each=add_up)
    expected = train(reference, Lamb(reference.parameters(), lr=0.01, exchange=False), range(10), of_rank=0)
    assert max(abs(a - b) for a, b in zip(losses, expected)) < EXACT


@check(4, NEEDS)
def parameters_that_come_later_are_trained_too():
    mesh = mesh_of(2, 2)
    model, reference = split(made(Mlp), mesh["shard"]), made(Mlp)
    for one in (model, reference):
        one.norm.requires_grad_(False)
    groups = groups_of(mesh)
    optimizers = Lamb(model.parameters(), lr=0.01, **groups), Lamb(reference.parameters(), lr=0.01)
    for last in range(2):
        for one, optimizer in zip((model, reference), optimizers):
            train(one, optimizer, range(5 * last, 5 * last + 5))
            one.norm.requires_grad_(True)
    require_near(whole(model.parameters()), list(reference.parameters()), EXACT)
    more, of_reference = split(made(Small), mesh["shard"]), made(Small)
    for one, optimizer in zip((more, of_reference), optimizers):
        optimizer.add_param_group({"params": list(one.parameters())})
        train(one, optimizer, range(5))
    require_near(whole(more.parameters()), list(of_reference.parameters()), EXACT)


@check(4, NEEDS)
def a_copy_trains_as_the_optimizer():
    """By tensor parallelism, because torch does not copy parameters of FSDP2."""
    mesh = mesh_of(2, 2)
    model, replica = parallel(made(Mlp), mesh["shard"]), mesh.get_coordinate()[0]
    optimizer = make("slamb", model.parameters(), **groups_of(mesh))
    train(model, optimizer, range(3), replica)
    copied = copy.deepcopy(optimizer)
    own = [p for group in copied.param_groups for p in group["params"]]

    def copy_gradients():
        for p, q in zip(model.parameters(), own):
            q.grad = p.grad.clone()

    for step in range(3, 6):
        train(model, optimizer, [step], replica, each=copy_gradients)
        copied.step()
    require_same_bits(local(own), local(model.parameters()))


@check(4, NEEDS)
def evaluations_see_the_mean_of_replicas():
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    optimizer = make("slamb", model.parameters(), **{**as_needed("slamb"), "local_steps": 0}, **groups_of(mesh))
    train(model, optimizer, range(4))
    before = copies(local(model.parameters()))
    group = mesh["replicate"].get_group()
    assert not are_equal_on_all_ranks(before, group)

    def evaluate():
        with torch.no_grad():
            value = float(model.loss(50, 0))
        model.reshard()  # FSDP2 keeps whole parameters after a forward pass that no backward pass follows
        return value, are_equal_on_all_ranks(local(model.parameters()), group)

    values = gather(optimizer.with_averaged_parameters(evaluate))
    assert all(one == (values[0][0], True) for one in values)
    require_same_bits(local(model.parameters()), before)


@check(4, NEEDS)
def evaluations_of_blocks_that_stay_whole_after_the_forward_pass():
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = mesh_of(2, 2)
    model = made(Transformer)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["shard"])
    optimizer = make("slamb", model.parameters(), **{**as_needed("slamb"), "local_steps": 0}, **groups_of(mesh))
    train(model, optimizer, range(4))

    def evaluate():
        with torch.no_grad():
            value = float(model.loss(50, 0))
        for module in model.modules():  # as docs/how-to/sharded.md says
            if isinstance(module, FSDPModule):
                module.reshard()
        return value

    own = evaluate()
    values = gather(optimizer.with_averaged_parameters(evaluate))
    assert values == [values[0]] * 4 and values[0] != own
    assert evaluate() == own


@check(4, NEEDS)
def a_process_group_on_some_ranks_of_a_model_is_an_error():
    mesh = mesh_of(2, 2)
    model = split(made(Mlp), mesh["shard"])
    given = {"process_group": mesh["replicate"].get_group()} if rank() % 2 == 0 else {"exchange": False}
    with raises(RuntimeError, "differ in the number of its replicas", "pass process_group="):
        Lamb(model.parameters(), **given)


@check(4, NEEDS)
def broadcasts_give_the_shards_of_a_replica():
    mesh = mesh_of(2, 2)
    torch.manual_seed(rank() // 2)
    model = split(Mlp(), mesh["shard"])
    optimizer = Lamb(model.parameters(), **groups_of(mesh))
    optimizer.broadcast_parameters()
    torch.manual_seed(0)
    require_same_bits(whole(model.parameters()), list(Mlp().parameters()))


if __name__ == "__main__":
    run(globals())
