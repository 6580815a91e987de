"""Short trainings: what they reach, what they send, and that they continue from checkpoints."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from checks import check, gather, raises, run

sys.path.insert(0, str(Path(__file__).parents[2]))

import train_images  # noqa: E402
import train_lm  # noqa: E402

from training import loop  # noqa: E402
from training.methods import METHODS  # noqa: E402

KINDS = {"lm": train_lm.LanguageModel, "images": train_images.Images}
SMALL = {
    "lm": "--width 64 --layers 2 --context 64 --batch 8 --steps 200 --evaluations 1",
    "images": "--width 32 --batch 16 --evaluations 1",
}
# Trainings, and their largest final loss. What they reach, and what a broken optimizer reaches (tests/broken.sh), with seeds 0 and
# 1, is behind them. Without averages of the parameters, SLAMB's ranks have only the exchange of the momentum in common.
BOUNDS = {
    "lm-lamb": ("--lr 0.016", 3.8),  # 3.60; an update of the wrong sign: 59
    "lm-slamb+int8": ("--lr 0.032 --set local_steps=1000", 3.75),  # 3.58, 3.57; k = 0: 4.09, 3.93
    "lm-one_bit_lamb": ("--lr 0.032", 3.75),  # 3.55, 3.55; no errors: 393, not a number
    "images-lamb": ("--steps 150 --lr 0.008", 0.5),  # 0.14; an update of the wrong sign: 157
    "images-slamb+int8": ("--steps 300 --lr 0.004 --set local_steps=1000", 2.0),  # 1.05, 1.38; k = 0: 3.4, 2300
    "images-one_bit_lamb": ("--steps 150 --lr 0.002", 0.7),  # 0.34, 0.30; no errors: 1.65, 1.86
}
TINY = {
    "lm": "--width 16 --layers 1 --heads 2 --context 16 --batch 2 --steps 12 --evaluations 3",
    "images": "--width 8 --batch 4 --steps 12 --evaluations 3",
}


def trained(task, options):
    """The log of a training."""
    given = loop.parse(KINDS[task], arguments=options.split())
    return loop.train(KINDS[task](given), given)


def in_common_folder():
    """A folder that all ranks know."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names)
    return Path(names[0])


@check(ranks=2, each=BOUNDS)
def the_final_loss_is_below_its_bound(name):
    task, method = name.split("-")
    options, bound = BOUNDS[name]
    end = trained(task, f"--method {method} {SMALL[task]} {options}")[-1]
    loss = end[KINDS[task].measure]
    assert loss < bound, f"{loss}, but it must be below {bound}"


@check(ranks=2, each=[method for method in METHODS if method != "ddp+powersgd"])
def a_training_continues_from_a_checkpoint(method):
    options = f"--method {method} --lr 0.01 {TINY['lm']}"
    whole = trained("lm", options)
    folder = in_common_folder()
    trained("lm", f"{options} --out {folder} --checkpoints 2 --stop-after 10")  # checkpoints at steps 4 and 8
    rest = trained("lm", f"{options} --out {folder} --resume")
    assert [row["step"] for row in rest] == [4, 8, 12]
    for one, other in zip(whole, rest):
        differ = [name for name in one if name != "seconds" and one[name] != other[name]]
        assert not differ, f"step {one['step']}: {[(name, one[name], other[name]) for name in differ]}"


@check(ranks=2)
def a_checkpoint_that_is_missing_or_of_another_step_is_named():
    options = f"--method lamb --lr 0.01 {TINY['lm']}"
    folder = in_common_folder()
    with raises(FileNotFoundError, "--resume", str(folder), "rank 0: none, rank 1: none"):
        trained("lm", f"{options} --out {folder} --resume")
    trained("lm", f"{options} --out {folder} --checkpoints 1 --stop-after 6")
    assert sorted(file.name for file in folder.glob("*.pt")) == ["rank0-step6.pt", "rank1-step6.pt"]
    dist.barrier()
    if dist.get_rank() == 1:  # as if the last checkpoint of this rank had not been written
        (folder / "rank1-step6.pt").rename(folder / "rank1-step5.pt")
    dist.barrier()
    with raises(FileNotFoundError, "rank 0: [6], rank 1: [5]"):
        trained("lm", f"{options} --out {folder} --resume")
    with raises(ValueError, "ddp+powersgd cannot continue"):
        trained("lm", f"--method ddp+powersgd --lr 0.01 {TINY['lm']} --out {folder} --checkpoints 1")


@check(ranks=2, each=["slamb", "zero_one_adam"])
def evaluations_change_no_bit_and_are_not_counted(method):
    few = trained("images", f"--method {method} --lr 0.01 {TINY['images']} --evaluations 1")[-1]
    many = trained("images", f"--method {method} --lr 0.01 {TINY['images']} --evaluations 6")[-1]
    for name in ("cross_entropy", "accuracy", "sent_bytes"):
        assert few[name] == many[name], f"{name}: {few[name]} and {many[name]}"


@check(ranks=(2, 4), each=["ddp", "ddp+fp16", "ddp+int8", "adamw", "one_bit_lamb"])
def bytes_are_those_of_the_formula(method):
    """docs/algorithms; the model has 16 (256 + 16 + 256) + 16 * 12 * 16 elements in matrices, and 16 * (4 + 9 + 2) in vectors."""
    elements = 16 * (256 + 16 + 256) + 12 * 16 * 16 + 16 * (4 + 9 + 2)
    ranks = dist.get_world_size()
    log = trained("lm", f"--method {method} --lr 0.01 {TINY['lm']}")
    share = 2 * elements * (ranks - 1) / ranks  # elements that a rank sends in a step
    dense = {"ddp": 4, "ddp+fp16": 2, "ddp+int8": 1, "adamw": 4}
    # The warm-up of one_bit_lamb is a fifth, 2 steps; then an element has a bit.
    expected = 12 * share * dense[method] if method in dense else share * (2 * 4 + 10 / 8)
    # Scales of blocks, padding of chunks, and what ranks compare.
    least, most = (expected, expected) if method in ("ddp", "ddp+fp16") else (expected, 1.05 * expected + 12 * 500)
    assert least <= log[-1]["sent_bytes"] <= most, f"{log[-1]['sent_bytes']} bytes, expected {expected}"


@check(ranks=(2, 4), each=["ddp+fp16", "ddp+powersgd"])
def bytes_of_hooks_are_those_of_their_collectives(method):
    original, elements = dist.all_reduce, []

    def counted(tensor, *arguments, **options):
        if tensor.dtype != torch.float64:  # of evaluations
            elements.append(tensor.numel() * tensor.element_size())
        return original(tensor, *arguments, **options)

    dist.all_reduce = counted
    try:
        log = trained("lm", f"--method {method} --lr 0.01 {TINY['lm']}")
    finally:
        dist.all_reduce = original
    ranks = dist.get_world_size()
    expected = 2 * sum(elements) * (ranks - 1) / ranks
    assert abs(log[-1]["sent_bytes"] - expected) <= 1e-6 * expected, f"{log[-1]['sent_bytes']} bytes, expected {expected}"


@check(ranks=2, each=KINDS)
def ranks_train_on_other_batches_and_validate_a_part_each(task):
    made = KINDS[task](loop.parse(KINDS[task], arguments=f"--method lamb --lr 0.01 {TINY[task]}".split()))
    batches, parts = [], []
    make, evaluated = made.batch, made.validation_batches
    made.batch = lambda generator: batches.append(make(generator)) or batches[-1]
    made.validation_batches = lambda rank, ranks: parts.extend(evaluated(rank, ranks)) or list(parts)
    loop.train(made, loop.parse(KINDS[task], arguments=f"--method ddp --lr 0.01 {TINY[task]}".split()))
    assert len(batches) == 12
    first, second = gather([(inputs.tolist(), targets.tolist()) for inputs, targets in batches])
    assert all(a != b for a, b in zip(first, second))
    examples = [repr(x) for part in gather([x.tolist() for inputs, _ in parts for x in inputs]) for x in part]
    everything = [repr(x.tolist()) for inputs, _ in evaluated(0, 1) for x in inputs]
    assert sorted(examples) == sorted(everything)


@check(ranks=2)
def a_checkpoint_of_another_training_is_refused():
    options = f"--method lamb --lr 0.01 {TINY['lm']}"
    folder = in_common_folder()
    trained("lm", f"{options} --out {folder} --checkpoints 1 --stop-after 6")
    for other in ("--lr 0.02", "--seed 7", "--steps 24", "--method adamw", "--batch 3", "--set max_gradient_norm=1.0"):
        name = other.split()[0].strip("-").replace("set", "options")
        with raises(ValueError, "--resume", f"is of a training with {name} ="):
            trained("lm", f"{options} {other} --out {folder} --resume")


@check(ranks=2, each=["ddp", "ddp+fp16"])
def options_of_a_method_without_options_are_refused(method):
    with raises(ValueError, "this method has no options, but k was given"):
        trained("lm", f"--method {method} --lr 0.01 {TINY['lm']} --set k=0.3")


if __name__ == "__main__":
    run(globals())
