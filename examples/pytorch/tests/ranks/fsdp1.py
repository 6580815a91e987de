"""Parameters of FullyShardedDataParallel (FSDP1): plain tensors of one dimension, each a piece of a parameter, cut anywhere."""

import copy

import torch

from checks import are_equal_on_all_ranks, check, copies, gather, noise, raises, rank, require_near, require_same_bits, run
from optimizers import OPTIMIZERS, make
from sharded_models import compute_scaled, groups_of, made, mesh_of, train
from slamb.torch import AdamW, Lamb, OneBitLamb, Slamb, keep_gradients_local

NEEDS = (2, 1)


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = torch.nn.Linear(10, 200), torch.nn.Linear(200, 1), torch.nn.Linear(1, 3)

    def forward(self, x):
        return self.third(torch.tanh(self.second(self.first(x))))

    def loss(self, step, of_rank):
        return (self(noise((8, 10), 34, step, of_rank)) - 1.0).square().mean()


def split(model, group=None, **options):
    from torch.distributed.fsdp import FullyShardedDataParallel

    its = FullyShardedDataParallel(
        model, **{"use_orig_params": True, "device_id": torch.device("cpu"), "process_group": group, **options}
    )
    its.loss = lambda step, of_rank: (its(noise((8, 10), 34, step, of_rank)) - 1.0).square().mean()
    return its


def whole(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(model):
        return copies(model.parameters())


@check(2, NEEDS)
def gradients_of_fsdp1_cannot_be_kept_local():
    with raises(ValueError, "a model in FullyShardedDataParallel", "process_group and shard_group"):
        keep_gradients_local(split(made(Two)))


DENSE = {
    "adamw+clip": (AdamW, {"lr": 0.01, "max_gradient_norm": 0.1}),
    "lamb": (Lamb, {"lr": 0.05}),
    "lamb+clip": (Lamb, {"lr": 0.05, "max_gradient_norm": 0.1}),
}


@check((2, 4), NEEDS, each=DENSE)
def fsdp1_trains_as_whole_models(name):
    kind, options = DENSE[name]
    model, reference = split(made(Two)), made(Two)
    optimizer = kind(model.parameters(), **options)
    losses = train(model, optimizer, range(15))
    expected = train(reference, kind(reference.parameters(), **options), range(15))
    assert all(abs(a - b) < 1e-5 for a, b in zip(losses, expected)), (losses, expected)
    require_near(whole(model), list(reference.parameters()), 1e-5)


@check(4, NEEDS, each=DENSE)
def fsdp1_with_replicas_trains_as_whole_models(name):
    kind, options = DENSE[name]
    mesh = mesh_of(2, 2)
    model, reference = split(made(Two), mesh["shard"].get_group()), made(Two)
    optimizer = kind(model.parameters(), **options, process_group=mesh["replicate"].get_group())
    losses = train(model, optimizer, range(15))
    expected = train(reference, kind(reference.parameters(), **options), range(15))
    assert all(abs(a - b) < 1e-5 for a, b in zip(losses, expected)), (losses, expected)
    require_near(whole(model), list(reference.parameters()), 1e-5)


@check(4, NEEDS)
def a_hybrid_strategy_averages_itself():
    from torch.distributed.fsdp import ShardingStrategy

    mesh = mesh_of(2, 2)
    groups = mesh["shard"].get_group(), mesh["replicate"].get_group()
    model, reference = split(made(Two), groups, sharding_strategy=ShardingStrategy.HYBRID_SHARD), made(Two)
    train(model, Lamb(model.parameters(), lr=0.05), range(15))
    train(reference, Lamb(reference.parameters(), lr=0.05), range(15))
    require_near(whole(model), list(reference.parameters()), 1e-5)
    with raises(ValueError, "in common", "leave out process_group"):
        Lamb(model.parameters(), process_group=groups[1])


@check(4, NEEDS, each=OPTIMIZERS)
def every_optimizer_trains_pieces(name):
    mesh = mesh_of(2, 2)
    model = split(made(Two), mesh["shard"].get_group())
    optimizer = make(name, model.parameters(), lr=2e-3, **groups_of(mesh))
    losses = train(model, optimizer, range(20))
    assert losses[-1] < losses[0], losses
    optimizer.compare_ranks()
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks(list(model.parameters()), mesh["replicate"].get_group())


@check(4, NEEDS)
def pieces_have_the_dimensions_of_the_whole():
    """A piece has one dimension, and SLAMB exchanges tensors of one dimension whole."""
    mesh = mesh_of(2, 2)
    sent = []
    for kind in (Slamb, Lamb):
        model = split(made(Two), mesh["shard"].get_group())
        options = {"k": 0.25, "dense_below": 0, "local_steps": 0} if kind is Slamb else {}
        optimizer = kind(model.parameters(), **options, **groups_of(mesh))
        train(model, optimizer, range(4))
        sent.append(optimizer.statistics()["payload_bytes"])
    weights, others = 10 * 200 + 200 + 3, 200 + 1 + 3
    wanted = (0.25 * weights + others) / (weights + others)
    ratio = sum(gather(sent[0])) / sum(gather(sent[1]))
    assert abs(ratio - wanted) < 0.05, (ratio, wanted)


@check(4, NEEDS)
def pieces_that_nothing_describes_are_an_error():
    mesh = mesh_of(2, 2)
    group = mesh["shard"].get_group()
    model = split(made(Two), group)
    lost = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    for p in lost:
        p._fsdp_flattened = True
    for kind in (AdamW, Lamb, Slamb, OneBitLamb):
        with raises(ValueError, "parameter 0", "FullyShardedDataParallel", "shard_group=", "'dimensions'"):
            kind(lost, exchange=False)
    weights = [p for i, p in enumerate(lost) if i % 2 == 0]
    biases = [p for i, p in enumerate(lost) if i % 2 == 1]
    parameter_groups = [{"params": weights, "dimensions": 2}, {"params": biases, "dimensions": 1}]
    given = Lamb(parameter_groups, lr=0.05, **groups_of(mesh))
    optimizer = Lamb(model.parameters(), lr=0.05, **groups_of(mesh))

    def give():
        for p, q in zip(lost, model.parameters()):
            p.grad = None if q.grad is None else q.grad.clone()

    for step in range(5):
        train(model, optimizer, [step], each=give)
        given.step()
    require_same_bits([p for p in lost if p.numel()], [p for p in model.parameters() if p.numel()])
    with raises(ValueError, "dimensions of parameter group 0", "integer"):
        Lamb([{"params": weights, "dimensions": -1}], **groups_of(mesh))


@check(2, NEEDS)
def rows_of_parameters_are_for_adamw_alone():
    model = split(made(Two), use_orig_params=False)
    for kind in (Lamb, Slamb, OneBitLamb):
        with raises(ValueError, "row of several parameters", kind.__name__, "use_orig_params=True"):
            kind(model.parameters())
    reference = made(Two)
    train(model, AdamW(model.parameters(), max_gradient_norm=0.1, lr=0.01), range(8))
    train(reference, AdamW(reference.parameters(), max_gradient_norm=0.1, lr=0.01), range(8))
    require_near(whole(model), list(reference.parameters()), 1e-5)


@check(2, NEEDS)
def whole_parameters_of_no_shard_need_no_group():
    from torch.distributed.fsdp import ShardingStrategy

    model, reference = split(made(Two), sharding_strategy=ShardingStrategy.NO_SHARD), made(Two)
    optimizer = Lamb(model.parameters(), lr=0.05)
    train(model, optimizer, range(5))
    train(reference, Lamb(reference.parameters(), lr=0.05), range(5))
    require_near(whole(model), list(reference.parameters()), 1e-5)
    assert optimizer.statistics()["sent_bytes"] == 0


@check(4, NEEDS, each=("lamb", "slamb", "one_bit_lamb"))
def each_rank_saves_and_loads_a_state_of_its_own(name):
    mesh = mesh_of(2, 2)

    def started():
        model = split(made(Two), mesh["shard"].get_group())
        return model, make(name, model.parameters(), **groups_of(mesh))

    model, optimizer = started()
    train(model, optimizer, range(6))
    state = copy.deepcopy(optimizer.state_dict())
    other, resumed = started()
    with torch.no_grad():
        for p, q in zip(other.parameters(), model.parameters()):
            p.copy_(q)
    resumed.load_state_dict(state)
    train(model, optimizer, range(6, 10))
    train(other, resumed, range(6, 10))
    require_same_bits([p for p in other.parameters() if p.numel()], [p for p in model.parameters() if p.numel()])


@check(4, NEEDS, each=("lamb", "slamb"))
def a_copy_trains_as_the_optimizer(name):
    mesh = mesh_of(2, 2)
    model = split(made(Two), mesh["shard"].get_group())
    optimizer = make(name, model.parameters(), **groups_of(mesh))
    train(model, optimizer, range(3))
    copied = copy.deepcopy(optimizer)
    own = [p for group in copied.param_groups for p in group["params"]]

    def give():
        for p, q in zip(model.parameters(), own):
            q.grad = None if p.grad is None else p.grad.clone()

    for step in range(3, 6):
        train(model, optimizer, [step], each=give)
        copied.step()
    require_same_bits([p for p in own if p.numel()], [p for p in model.parameters() if p.numel()])


@check(2, NEEDS, each=("adamw", "lamb"))
def pieces_that_come_later_are_trained_too(name):
    """Of some of them a rank has no elements."""
    kind = {"adamw": AdamW, "lamb": Lamb}[name]

    def trained(model):
        ours = dict(model.named_parameters())
        added = [p for n, p in ours.items() if "third" in n]
        later = [p for n, p in ours.items() if "second" in n]
        for p in later:
            p.requires_grad_(False)
        optimizer = kind([p for p in ours.values() if all(p is not one for one in added)], lr=0.01)
        train(model, optimizer, range(3))
        for p in later:
            p.requires_grad_(True)
        train(model, optimizer, range(3, 5))
        optimizer.add_param_group({"params": added})
        train(model, optimizer, range(5, 8))
        return model

    model = trained(split(made(Two)))
    assert any(gather(any(p.numel() == 0 for p in model.parameters())))
    require_near(whole(model), list(trained(made(Two)).parameters()), 1e-5)


@check(4, NEEDS, each=("FULL_SHARD", "SHARD_GRAD_OP"))
def evaluations_see_the_mean_of_replicas(strategy):
    """FSDP1 keeps whole parameters after a forward pass that no backward pass follows."""
    from torch.distributed.fsdp import ShardingStrategy

    mesh = mesh_of(2, 2)
    model = split(made(Two), mesh["shard"].get_group(), sharding_strategy=ShardingStrategy[strategy])
    settings = {"lr": 0.05, "k": 0.25, "dense_below": 0, "local_steps": 0}
    optimizer = Slamb(model.parameters(), **settings, **groups_of(mesh))
    train(model, optimizer, range(4))
    reference = made(Two)

    def loss_of(values):
        with torch.no_grad():
            for p, value in zip(reference.parameters(), values):
                p.copy_(value)
            return float(reference.loss(50, 0))

    own = whole(model)
    mean = [sum(of_ranks) / 4 for of_ranks in zip(*gather(own))]  # two ranks have each replica

    def evaluate():
        with torch.no_grad():
            return float(model.loss(50, 0))

    assert abs(loss_of(own) - loss_of(mean)) > 1e-3
    for _ in range(2):
        assert abs(optimizer.with_averaged_parameters(evaluate) - loss_of(mean)) < 1e-5
        assert abs(evaluate() - loss_of(own)) < 1e-5


@check(2, NEEDS)
def scalers_agree_on_overflows():
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    model, reference = split(made(Two)), made(Two)
    optimizer, of_reference = (Lamb(one.parameters(), lr=0.05) for one in (model, reference))
    plain, sharded = torch.amp.GradScaler("cpu", init_scale=2.0**10), ShardedGradScaler("cpu", init_scale=2.0**10)

    compute_scaled(model, optimizer, plain, 0, rank(), True)
    with raises(RuntimeError, "have found an overflow on some of them alone", "ShardedGradScaler"):
        plain.step(optimizer)
    for step in range(8):
        compute_scaled(model, optimizer, sharded, step, rank(), step in (1, 4))
        sharded.unscale_(optimizer)
        sharded.step(optimizer)
        sharded.update()
        if step not in (1, 4):
            train(reference, of_reference, [step])
    assert gather(sharded.get_scale()) == [2.0**8] * 2
    assert optimizer.statistics()["skipped_steps"] == 2
    require_near(whole(model), list(reference.parameters()), 1e-5)


@check(2, NEEDS)
def adamw_trains_the_pieces_of_fsdp1_as_that_of_torch():
    def trained(kind, **options):
        model = split(made(Two))
        train(model, kind(model.parameters(), lr=0.01, **options), range(5))
        return [p for p in model.parameters() if p.numel() > 0]

    require_near(trained(AdamW), trained(torch.optim.AdamW), 1e-5)
    require_near(trained(AdamW, exchange=False), trained(torch.optim.AdamW), 1e-5)


if __name__ == "__main__":
    run(globals())
