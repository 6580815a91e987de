"""torch.compile of a function that does forward, backward and optimizer.step()."""

import pytest
import torch

from processes import call
from training import HALF, OPTIMIZERS, STEPS, Model, batch, bits, make, make_schedule, steps_taken


def train(name, folder, backend, resume=False, seed=1, schedule=True):
    """Trains all steps by a compiled function, with a save in between in `folder`; or continues from there.

    :param backend: of torch.compile; None: not compiled
    """
    torch.compiler.reset()
    distributed = torch.distributed.is_initialized()
    rank, ranks = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
    model = Model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if name == "torch" else make(name, model.parameters())
    rates = make_schedule(optimizer) if schedule else None

    def one_step(x, y):
        optimizer.zero_grad()
        loss = model(x, y)["loss"]
        loss.backward()
        optimizer.step()
        return loss

    step_function = one_step if backend is None else torch.compile(one_step, backend=backend)
    compiled = []  # the number of compiled graphs after each step

    def steps(first, last):
        for step in range(first, last):
            step_function(**batch(step, rank, ranks))
            if rates is not None:
                rates.step()
            compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    file = f"{folder}/rank{rank}.pt"
    parts = {"model": model, "optimizer": optimizer, **({} if rates is None else {"rates": rates})}
    if resume:
        for name_of_part, state in torch.load(file).items():
            parts[name_of_part].load_state_dict(state)
    else:
        steps(0, HALF)
        torch.save({name_of_part: part.state_dict() for name_of_part, part in parts.items()}, file)
    steps(HALF, STEPS)
    values = [p.detach().numpy().copy() for p in model.parameters()]
    return {"parameters": bits(model), "steps": steps_taken(optimizer), "values": values, "graphs": compiled}


def of_bits(results):
    return [(one["parameters"], one["steps"]) for one in results]


def distance(first, second):
    return max(abs(a - b).max() for a, b in zip(first["values"], second["values"]))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_training_has_the_same_bits(name, ranks, tmp_path):
    whole = call(ranks, train, name, tmp_path, "aot_eager")
    assert of_bits(whole) == of_bits(call(ranks, train, name, tmp_path, "aot_eager", resume=True, seed=2))
    assert [one["steps"] for one in whole] == [STEPS] * ranks


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_are_those_that_are_not_compiled(name, tmp_path):
    (compiled,) = call(1, train, name, tmp_path, "aot_eager")
    (plain,) = call(1, train, name, tmp_path, None)
    assert of_bits([compiled]) == of_bits([plain])
    # Nothing is compiled again because a step has a number or a rate of its own.
    assert compiled["graphs"][-1] == compiled["graphs"][3], compiled["graphs"]


@pytest.mark.parametrize("name", ["adamw", "slamb"])
def test_the_default_compiler_trains_alike(name, tmp_path):
    (compiled,) = call(1, train, name, tmp_path, "inductor")
    (plain,) = call(1, train, name, tmp_path, None)
    assert distance(compiled, plain) < 1e-4
    assert compiled["steps"] == STEPS


def test_compiled_steps_follow_torch(tmp_path):
    (mine,) = call(1, train, "adamw", tmp_path, "aot_eager")
    (theirs,) = call(1, train, "torch", tmp_path, "aot_eager")
    assert distance(mine, theirs) < 1e-5
