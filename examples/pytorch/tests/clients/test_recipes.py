"""The programs of the folder recipes: with any trainer, a training has the bits of a plain loop over the same batches."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import slamb.torch
from processes import call, call_afresh
from training import bits

RECIPES = Path(__file__).parents[2] / "recipes"
LAMB = (slamb.torch.Lamb, {"lr": 0.01, "compressor": "int4", "max_gradient_norm": 1.0})
ONE_BIT_LAMB = (slamb.torch.OneBitLamb, {"lr": 0.01, "warm_up_steps": 20, "max_gradient_norm": 1.0})
PROGRAMS = {
    "with_ddp": LAMB,
    "with_trainer": LAMB,
    "with_accelerate": LAMB,
    "with_lightning": LAMB,
    "with_lightning --manual": LAMB,
    "with_fabric": LAMB,
    "with_deepspeed": ONE_BIT_LAMB,
}
STEPS, SAVED = 80, 40


def test_all_programs_of_the_folder_are_tested():
    assert {path.stem for path in RECIPES.glob("with_*.py")} == {*(name.split()[0] for name in PROGRAMS), "with_torchtitan"}


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("with_*.py")))
def test_a_recipe_is_short_and_changes_at_most_five_lines(name):
    lines = (RECIPES / f"{name}.py").read_text().split('"""', 2)[2].splitlines()
    changed = [line for line in lines if re.search(r"# slamb(:|$)", line)]
    assert len(lines) <= 60
    assert len(changed) <= 5 and "import slamb.torch  # slamb" in changed
    assert not [line for line in lines if "slamb.torch." in line and line not in changed]


def train(name, folder, resume=False):
    """Runs a recipe.

    :return: for each step its batch and loss; and the parameters
    """
    sys.path.insert(0, str(RECIPES))
    program, *options = name.split()
    recipe = importlib.import_module(program)
    forget_states()
    environment = dict(os.environ)
    is_alone = program == "with_deepspeed" and not dist.is_initialized()
    if is_alone:  # the engine needs a process group
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    seen = []

    def note(module, arguments, named, result):
        if type(module).__name__ == "Model" and type(module).__module__ == "model":
            batch = {key: value.detach().clone() for key, value in named.items() if key in ("x", "labels")}
            seen.append((batch, float(result["loss"])))

    hook = torch.nn.modules.module.register_module_forward_hook(note, with_kwargs=True)
    try:
        kind = {"kind": recipe.Manual} if options else {}
        model, _ = recipe.train(str(folder), resume=resume, **kind)
    finally:
        hook.remove()
        if is_alone:
            dist.destroy_process_group()
        os.environ.clear()  # Lightning removes WORLD_SIZE
        os.environ.update(environment)
    return seen, bits(model)


def forget_states():
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    GradientState._reset_state()


def train_plainly(name, all_batches):
    """The loop that everyone knows, over the batches of each rank."""
    sys.path.insert(0, str(RECIPES))
    kind, settings = PROGRAMS[name]
    batches = all_batches[dist.get_rank() if dist.is_initialized() else 0]
    model = importlib.import_module("model").Model()
    parameters = list(model.parameters())
    if name == "with_trainer":  # which makes two groups, with the weight decay of its arguments and without
        groups = [[p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() <= 1]]
        parameters = [{"params": group, "weight_decay": 0.0} for group in groups]
    optimizer = kind(parameters, **settings)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses, bits(model)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recipe_has_the_bits_of_a_plain_loop_and_resumes_with_them(name, ranks, tmp_path):
    whole = call(ranks, train, name, tmp_path)
    plain = call(ranks, train_plainly, name, [[batch for batch, _ in seen] for seen, _ in whole])
    for (seen, parameters), (losses, of_plain) in zip(whole, plain):
        assert len(seen) == STEPS
        assert [loss for _, loss in seen] == losses
        assert parameters == of_plain
    first = torch.stack([batch["x"] for batch, _ in whole[0][0][:20]])
    if ranks > 1:  # each rank has had batches of its own, and the parameters of all ranks are equal
        assert not torch.equal(first, torch.stack([batch["x"] for batch, _ in whole[1][0][:20]]))
        assert whole[0][1] == whole[1][1]
    resumed = call_afresh(ranks, train, name, tmp_path, resume=True)
    for (seen, parameters), (again, resumed_parameters) in zip(whole, resumed):
        assert [loss for _, loss in again] == [loss for _, loss in seen[SAVED:]]
        assert resumed_parameters == parameters


# ---------------------------------------------------------------------------------------------------------------- torchtitan


def train_by_torchtitan(folder, **options):
    """The losses of this rank, and its parts of the parameters."""
    sys.path.insert(0, str(RECIPES))
    seen = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, result: seen.append(float(result["loss"])) if isinstance(result, dict) else None
    )
    try:
        model, _ = importlib.import_module("with_torchtitan").train(str(folder), **options)
    finally:
        hook.remove()
    return seen, bits([p.to_local() for p in model.parameters()])


def train_whole_models():
    """The losses of the same training with a whole model on each rank."""
    sys.path.insert(0, str(RECIPES))
    its = importlib.import_module("model")
    model = its.Model()
    optimizer = slamb.torch.Lamb(model.parameters(), lr=0.01, max_gradient_norm=1.0)
    # As torchtitan's: ten steps up, then down to 0 a step behind the end.
    rate = lambda step: (step + 1) / 10 if step < 10 else 1.0 if step < 11 else 1.0 - (step + 1 - 11) / 70  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    for batch in its.batches(0, STEPS, dist.get_rank(), dist.get_world_size()):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss))
    return losses


def test_torchtitan_trains_as_whole_models_do(tmp_path):
    for (losses, _), expected in zip(call(4, train_by_torchtitan, tmp_path, compressor="none"), call(4, train_whole_models)):
        assert len(losses) == STEPS
        assert max(abs(a - b) for a, b in zip(losses, expected)) < 1e-5


def test_torchtitan_resumes_with_the_same_bits(tmp_path):
    whole = call(4, train_by_torchtitan, tmp_path)
    assert whole[0][1] == whole[2][1] != whole[1][1]  # replicas are equal, shards are not
    resumed = call_afresh(4, train_by_torchtitan, tmp_path, resume=True)
    assert [(losses[SAVED:], parameters) for losses, parameters in whole] == resumed


@pytest.mark.parametrize("name", [*PROGRAMS, "with_torchtitan"])
def test_a_recipe_starts_by_torchrun(name, tmp_path):
    program, *options = name.split()
    run = [sys.executable, "-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    ranks = "4" if program == "with_torchtitan" else "2"
    command = [*run, "--nproc_per_node", ranks, f"{program}.py", str(tmp_path), *options]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=RECIPES, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
