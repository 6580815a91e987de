"""torchft, whose process groups change with the ranks that are alive: it averages, and the optimizer has exchange=False."""

from torchft.local_sgd import LocalSGD
from torchft.optim import OptimizerWrapper

import slamb.torch
from training import Model, batch, bits


class Manager:
    """What a torchft.Manager does with a single replica group, which every second step does not commit."""

    _use_async_quorum = False

    def __init__(self):
        self.calls = []

    def start_quorum(self, *_, **__):
        self.calls.append("quorum")

    def should_commit(self, *_, **__):
        self.calls.append("commit")
        return len([call for call in self.calls if call == "commit"]) % 2 == 1

    def disallow_state_dict_read(self):
        pass

    allow_state_dict_read = disallow_state_dict_read

    def allreduce(self, tensor, *_, **__):
        self.calls.append("allreduce")
        return Done()


class Done:
    def wait(self, *_):
        return True


def test_steps_that_are_not_committed_change_nothing():
    model, manager = Model(1), Manager()
    optimizer = slamb.torch.AdamW(model.parameters(), lr=1e-2, exchange=False)
    wrapped = OptimizerWrapper(manager, optimizer)
    seen = [bits(model)]
    for step in range(4):
        wrapped.zero_grad()
        model(**batch(step))["loss"].backward()
        wrapped.step()
        seen.append(bits(model))
    assert [a != b for a, b in zip(seen, seen[1:])] == [True, False, True, False]
    assert manager.calls == ["quorum", "commit"] * 4
    # A replica that has joined receives the state, by the wrapper, and continues with the same bits.
    other = Model(2)
    theirs = OptimizerWrapper(Manager(), slamb.torch.AdamW(other.parameters(), lr=1e-2, exchange=False))
    other.load_state_dict(model.state_dict())
    theirs.load_state_dict(wrapped.state_dict())
    for its, by in ((model, wrapped), (other, theirs)):
        by.manager.calls.clear()
        by.zero_grad()
        its(**batch(9))["loss"].backward()
        by.step()
    assert bits(model) == bits(other) != seen[-1]


def test_it_is_the_inner_optimizer_of_local_sgd():
    model, alone, manager = Model(1), Model(1), Manager()
    optimizer = slamb.torch.Lamb(model.parameters(), lr=1e-2, exchange=False)
    plain = slamb.torch.Lamb(alone.parameters(), lr=1e-2, exchange=False)
    with LocalSGD(manager, model, optimizer, sync_every=2):
        for step in range(2):
            optimizer.zero_grad()
            model(**batch(step))["loss"].backward()
            optimizer.step()
    for step in range(2):
        plain.zero_grad()
        alone(**batch(step))["loss"].backward()
        plain.step()
    assert "allreduce" in manager.calls and "commit" in manager.calls
    assert bits(model) == bits(alone)


