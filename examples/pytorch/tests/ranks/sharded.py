"""Parameters that are DTensors: FSDP2 (fully_shard), of which each rank has a part."""

import tempfile

import torch
import torch.distributed as dist

from checks import check, noise, raises, rank, require_near, require_same_bits, run, size
from slamb.torch import AdamW, Lamb

NEEDS = (2, 6)  # torch.distributed.fsdp.fully_shard is public


def make_model():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Tanh(), torch.nn.Linear(13, 5))
    return fully_shard(model, mesh=init_device_mesh("cpu", (size(),)))


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        (model(noise((4, 7), 30, step, rank())) ** 2).mean().backward()
        optimizer.step()


def parts_of(model):
    return [p.to_local() for p in model.parameters() if p.to_local().numel() > 0]


@check((2, 4), NEEDS)
def adamw_works_on_the_parts_of_fsdp2_as_that_of_torch():
    ours, theirs = make_model(), make_model()
    train(ours, AdamW(ours.parameters(), lr=1e-2, exchange=False), range(8))
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2), range(8))
    require_near(parts_of(ours), parts_of(theirs), 1e-6)


@check(2, NEEDS)
def the_state_of_each_part_goes_through_distributed_checkpoints():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as api

    model = make_model()
    optimizer = AdamW(model.parameters(), lr=1e-2, exchange=False, moments="8-bit")
    train(model, optimizer, range(5))
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    states = {"model": api.get_model_state_dict(model), "optimizer": api.get_optimizer_state_dict(model, optimizer)}
    dcp.save(states, checkpoint_id=folder[0])
    other = make_model()
    resumed = AdamW(other.parameters(), lr=5.0, exchange=False, moments="8-bit")
    loaded = {"model": api.get_model_state_dict(other), "optimizer": api.get_optimizer_state_dict(other, resumed)}
    dcp.load(loaded, checkpoint_id=folder[0])
    api.set_model_state_dict(other, loaded["model"])
    api.set_optimizer_state_dict(other, resumed, loaded["optimizer"])
    train(model, optimizer, range(5, 9))
    train(other, resumed, range(5, 9))
    require_same_bits(parts_of(model), parts_of(other))


@check(2, NEEDS)
def a_state_of_whole_parameters_beside_parts_of_others_is_loaded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Linear(13, 5))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (size(),)))
    optimizer = AdamW(
        [{"params": model[0].parameters()}, {"params": model[1].parameters(), "betas": (0.8, 0.9)}], exchange=False
    )

    def step(number):
        optimizer.zero_grad()
        (model(noise((4, 7), 30, number)) ** 2).mean().backward()
        optimizer.step()

    step(0)
    step(1)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    step(2)
    assert optimizer.statistics()["step"] == 3
    optimizer.load_state_dict(state)
    assert optimizer.statistics()["step"] == 2


@check(2, NEEDS)
def the_state_of_another_part_is_rejected():
    model = make_model()
    optimizer = AdamW(model.parameters(), lr=1e-2, exchange=False)
    states = [None] * size()
    dist.all_gather_object(states, optimizer.state_dict())
    with raises(ValueError, f"rank{1 - rank()}_of_2", f"this is rank{rank()}_of_2"):
        optimizer.load_state_dict(states[1 - rank()])


@check(2, NEEDS)
def optimizers_that_need_whole_parameters_are_rejected():
    parameters = list(make_model().parameters())
    with raises(ValueError, "DTensors", "Lamb", "AdamW with exchange=False"):
        Lamb(parameters, exchange=False)
    with raises(ValueError, "exchange=False"):
        AdamW(parameters)
    with raises(ValueError, "max_gradient_norm"):
        AdamW(parameters, exchange=False, max_grad_norm=1.0)


if __name__ == "__main__":
    run(globals())
