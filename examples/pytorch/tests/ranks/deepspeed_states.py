"""Checkpoints in the form of DeepSpeed's, on several ranks: all continue, or none."""

import torch

from checks import are_equal_on_all_ranks, check, noise, raises, rank, run, size
from slamb.torch import AdamW, OneBitAdam, OneBitLamb, load_deepspeed

SHAPES = ((6, 4), (5,))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(noise(shape, 60)) for shape in SHAPES)


def checkpoint(ranks, is_lamb=True):
    lamb = {"lamb_coeff_freeze": 0.4, "last_factor": 1.1, "scaling_coeff": 0.9} if is_lamb else {}
    state = {}
    for i, shape in enumerate(SHAPES):
        fresh = {"exp_avg_sq_fresh": torch.full(shape, 0.2)} if is_lamb else {}
        state[i] = {"step": 4, "exp_avg": noise(shape, 61), "exp_avg_sq": torch.full(shape, 0.25), **fresh, **lamb}
    return {
        "module": {"weight": torch.full(SHAPES[0], 2.0), "bias": torch.full(SHAPES[1], 3.0)},
        "optimizer": {"state": state, "param_groups": [{"lr": 0.02, "params": [0, 1]}]},
        "dp_world_size": ranks,
    }


def made(kind=OneBitLamb, **settings):
    model = Net()
    own = {"warm_up_steps": 3} if kind is not AdamW else {}
    return model, kind(model.parameters(), lr=0.01, **own, **settings)


def take_a_step(model, optimizer):
    for i, p in enumerate(model.parameters()):
        p.grad = noise(p.shape, 62, i, rank())
    optimizer.step()


@check((2, 4), each=("one_bit_adam", "one_bit_lamb"))
def all_ranks_continue_in_the_compressed_phase(name):
    kind = {"one_bit_adam": OneBitAdam, "one_bit_lamb": OneBitLamb}[name]
    model, optimizer = made(kind)
    take_a_step(model, optimizer)
    load_deepspeed(checkpoint(size(), kind is OneBitLamb), model, optimizer)
    assert optimizer.statistics()["phase"] == "compressed" and optimizer.param_groups[0]["lr"] == 0.02
    for _ in range(3):
        take_a_step(model, optimizer)
    assert optimizer.statistics()["step"] == 7
    assert are_equal_on_all_ranks(list(model.parameters()))
    optimizer.compare_ranks()


@check(2)
def a_checkpoint_that_is_wrong_on_one_rank_changes_none():
    for has_stepped in (False, True):
        model, optimizer = made()
        if has_stepped:
            take_a_step(model, optimizer)
        saved = checkpoint(2)
        if rank() == 1:
            del saved["optimizer"]["state"][1]["exp_avg"]
        before = [p.detach().clone() for p in model.parameters()]
        with raises(ValueError, "parameter 1 has no 'exp_avg'", *(("has failed on another rank",) if rank() == 0 else ())):
            load_deepspeed(saved, model, optimizer)
        with raises(ValueError if rank() == 0 else FileNotFoundError, "looked for"):
            load_deepspeed(checkpoint(2) if rank() == 0 else "no/such/folder", model, optimizer)
        assert all(torch.equal(p, one) for p, one in zip(model.parameters(), before))
        load_deepspeed(checkpoint(2), model, optimizer)
        take_a_step(model, optimizer)


@check(2)
def the_number_of_ranks_must_be_that_of_the_training():
    model, optimizer = made()
    with raises(ValueError, "a training on 8 ranks, but now there are 2", "from_other_ranks=True"):
        load_deepspeed(checkpoint(8), model, optimizer)
    load_deepspeed(checkpoint(8), model, optimizer, from_other_ranks=True)
    take_a_step(model, optimizer)
    for settings in ({}, {"exchange": False}):  # a dense state is that of any number of ranks
        model, optimizer = made(AdamW, **settings)
        load_deepspeed(checkpoint(8, is_lamb=False), model, optimizer)
        assert optimizer.statistics()["step"] == 4


if __name__ == "__main__":
    run(globals())
