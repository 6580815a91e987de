"""Optimizers that exchange by themselves, with DistributedDataParallel."""

import copy

import torch
from torch.nn.parallel import DistributedDataParallel

from checks import are_equal_on_all_ranks, check, copies, noise, raises, rank, require_near, require_same_bits, run, size
from slamb.torch import AdamW, OneBitAdam, Slamb, compression_hook, keep_gradients_local


def make_model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def batch(step, of_rank):
    x = noise((8, 12), 20, step, of_rank)
    return x, x[:, :3] * 2 + noise((8, 3), 21, step, of_rank)


def backward(model, step, of_rank=None):
    x, y = batch(step, rank() if of_rank is None else of_rank)
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    return float(loss)


def train_plainly(steps, kind=torch.optim.AdamW, **settings):
    """DistributedDataParallel that averages, with an optimizer that does not exchange."""
    model = DistributedDataParallel(make_model())
    optimizer = kind(model.parameters(), lr=1e-2, **settings)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return list(model.parameters())


def train_within_no_sync(steps, kind=AdamW, **settings):
    model = DistributedDataParallel(make_model())
    optimizer = kind(model.parameters(), lr=1e-2, **settings)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        with model.no_sync():
            losses.append(backward(model, step))
        optimizer.step()
    return list(model.parameters()), losses


@check((2, 4))
def within_no_sync_adamw_equals_that_of_torch_with_averaged_gradients():
    ours, _ = train_within_no_sync(25)
    theirs = train_plainly(25)
    require_near(ours, theirs, 1e-6)
    assert are_equal_on_all_ranks(ours)


@check(2)
def without_ddp_it_is_the_same():
    model = make_model()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for step in range(5):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    ours, _ = train_within_no_sync(5)
    require_same_bits(list(model.parameters()), ours)


@check(2, each=("slamb", "one_bit_adam"))
def compressed_optimizers_train_within_no_sync(name):
    kind, settings = {
        "slamb": (Slamb, {"dense_below": 0, "k": 0.25, "local_steps": 10}),
        "one_bit_adam": (OneBitAdam, {"warm_up_steps": 30, "eps": 1e-3}),
    }[name]
    parameters, losses = train_within_no_sync(100, kind, **settings)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10]), losses[:3] + losses[-3:]


@check(2)
def gradients_accumulate_within_no_sync():
    ours, theirs = DistributedDataParallel(make_model()), DistributedDataParallel(make_model())
    first, second = AdamW(ours.parameters(), lr=1e-2), torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    for step in range(8):
        first.zero_grad()
        second.zero_grad()
        with ours.no_sync():
            for part in range(3):
                backward(ours, 3 * step + part)
        with theirs.no_sync():
            for part in range(2):
                backward(theirs, 3 * step + part)
        backward(theirs, 3 * step + 2)  # exchanges the sum
        first.step()
        second.step()
    require_near(list(ours.parameters()), list(theirs.parameters()), 1e-6)


@check((2, 4))
def gradients_that_have_been_averaged_are_rejected():
    for kind in (AdamW, Slamb, OneBitAdam):
        model = DistributedDataParallel(make_model())
        optimizer = kind(model.parameters())
        before = copies(model.parameters())
        backward(model, 0)
        ways = ("keep_gradients_local(model)", "no_sync()", "exchange=False", "check_gradients=False")
        with raises(RuntimeError, f"all {size()} ranks are equal", *ways):
            optimizer.step()
        require_same_bits(list(model.parameters()), before)
        assert optimizer.statistics()["step"] == 0
        # The same optimizer can go on as it should be used.
        optimizer.zero_grad()
        with model.no_sync():
            backward(model, 0)
        optimizer.step()
        assert optimizer.statistics()["step"] == 1


@check(2)
def gradients_that_have_been_averaged_are_rejected_again():
    model = DistributedDataParallel(make_model())
    optimizer = AdamW(model.parameters())
    backward(model, 0)
    for _ in range(2):
        with raises(RuntimeError, "no_sync()"):
            optimizer.step()


@check((2, 4))
def without_an_exchange_adamw_works_on_averaged_gradients():
    ours, theirs = train_plainly(25, AdamW, exchange=False), train_plainly(25)
    require_near(ours, theirs, 1e-6)
    assert are_equal_on_all_ranks(ours)


@check(2)
def equal_batches_can_be_allowed():
    model, alone = make_model(), make_model()
    ours = AdamW(model.parameters(), lr=1e-2, check_gradients=False)
    theirs = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    for step in range(5):
        for one, optimizer in ((model, ours), (alone, theirs)):
            optimizer.zero_grad()
            backward(one, step, of_rank=0)
            optimizer.step()
    require_near(list(model.parameters()), list(alone.parameters()), 1e-6)
    assert ours.statistics()["sent_bytes"] > 0


@check(2)
def gradients_of_zeros_say_nothing_and_the_next_step_compares():
    model = make_model()
    optimizer = AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.step()
    assert optimizer.statistics()["step"] == 2
    optimizer.zero_grad()
    backward(model, 0, of_rank=0)
    with raises(RuntimeError, "no_sync()"):
        optimizer.step()


@check(2)
def equal_gradients_are_accepted_after_the_first_step():
    model = make_model()
    optimizer = AdamW(model.parameters())
    backward(model, 0)
    optimizer.step()
    optimizer.zero_grad()
    backward(model, 1, of_rank=0)
    optimizer.step()
    assert optimizer.statistics()["step"] == 2


@check(2)
def the_wrapped_model_can_have_gradients_as_views_of_buckets():
    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for step in range(5):
        optimizer.zero_grad(set_to_none=True)
        with model.no_sync():
            backward(model, step)
        optimizer.step()
    require_same_bits(list(model.parameters()), train_within_no_sync(5)[0])


# ----------------------------------------------------------------------------------------------------- keep_gradients_local


@check((2, 4))
def kept_local_the_gradients_are_those_of_no_sync():
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1e-4}):
        model = keep_gradients_local(DistributedDataParallel(make_model(), **options))
        assert keep_gradients_local(model) is model  # again
        optimizer = Slamb(model.parameters(), lr=1e-2)
        for step in range(5):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        require_same_bits(list(model.parameters()), train_within_no_sync(5, Slamb)[0])


@check(2)
def gradients_that_are_kept_local_accumulate():
    model, alone = keep_gradients_local(DistributedDataParallel(make_model())), make_model()
    for step in range(3):
        backward(model, step)
        backward(alone, step)
    require_same_bits([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


@check(2)
def a_parameter_that_one_rank_does_not_use_has_a_gradient_of_zeros():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = torch.nn.ModuleList([make_model(1), make_model(2)])

        def forward(self, x):
            return self.branches[0](x) if rank() == 1 else self.branches[0](x) + self.branches[1](x)

    model = keep_gradients_local(DistributedDataParallel(Branches(), find_unused_parameters=True))
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        if rank() == 1:
            assert all(not p.grad.any() for p in model.module.branches[1].parameters())
        optimizer.step()
    assert are_equal_on_all_ranks(list(model.parameters()))


@check(2)
def within_other_wrappers_the_gradients_are_kept_local():
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self._forward_module = module

        def forward(self, x):
            return self._forward_module(x)

    model = Wrapper(DistributedDataParallel(make_model()))
    assert keep_gradients_local(model) is model
    backward(model, 0)
    alone = make_model()
    backward(alone, 0)
    require_same_bits([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


@check(2)
def parts_of_a_model_that_are_wrapped_keep_their_gradients_local():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = DistributedDataParallel(make_model(1)), DistributedDataParallel(torch.nn.Linear(3, 3))

        def forward(self, x):
            return self.second(self.first(x))

    model, alone = keep_gradients_local(Two()), Two()
    for own, other in zip(model.parameters(), alone.parameters()):
        other.data.copy_(own.data)
    backward(model, 0)
    with alone.first.no_sync(), alone.second.no_sync():
        backward(alone, 0)
    require_same_bits([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


@check(2)
def a_model_that_cannot_keep_its_gradients_local_is_refused():
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, compression_hook("int8"))
    with raises(ValueError, "keep_gradients_local()", "has a communication hook already"):
        keep_gradients_local(model)
    optimizer = torch.optim.SGD(make_model().parameters(), lr=0.1)
    with raises(TypeError, "was given a SGD", "it must be a model"):
        keep_gradients_local(optimizer)
    plain = make_model()
    assert keep_gradients_local(plain) is plain


@check(2)
def parameters_that_are_frozen_stay():
    model = make_model()
    model[0].bias.requires_grad_(False)
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    wrapped, averaged = DistributedDataParallel(ours), DistributedDataParallel(theirs)
    first, second = AdamW(ours.parameters(), lr=1e-2), torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    for step in range(5):
        first.zero_grad()
        second.zero_grad()
        with wrapped.no_sync():
            backward(wrapped, step)
        backward(averaged, step)
        first.step()
        second.step()
    require_near(list(ours.parameters()), list(theirs.parameters()), 1e-6)
    require_same_bits([ours[0].bias], [model[0].bias])


if __name__ == "__main__":
    run(globals())
