"""accelerate: prepare(), save_state() and load_state(), which save and load rank 0's optimizer; its wrappers of optimizers and
schedules with a GradScaler."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState, GradientState, PartialState

import slamb.torch
from processes import call, call_afresh
from training import (
    DIFFER,
    HALF,
    OPTIMIZERS,
    STEPS,
    WITH_EQUAL_END,
    Model,
    batch,
    bits,
    make,
    make_schedule,
    steps_taken,
)


def reset():
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    GradientState._reset_state()


class Training:
    """A model, an optimizer and a schedule that accelerate has prepared."""

    def __init__(self, name, seed, consolidates=True, accumulate=1, **settings):
        reset()
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        model = Model(seed)
        optimizer = make(name, model.parameters(), **settings)
        schedule = make_schedule(optimizer)
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(model, optimizer, schedule)
        slamb.torch.keep_gradients_local(self.model)
        if consolidates:
            slamb.torch.consolidate_on_save(self.accelerator)

    def steps(self, first, last):
        for step in range(first, last):
            with self.accelerator.accumulate(self.model):
                self.optimizer.zero_grad()
                its = batch(step, self.accelerator.process_index, self.accelerator.num_processes)
                self.accelerator.backward(self.model(**its)["loss"])
                self.optimizer.step()
                self.schedule.step()

    def result(self):
        return {
            "parameters": bits(self.accelerator.unwrap_model(self.model)),
            "steps": steps_taken(self.optimizer),
            "lr": self.schedule.get_last_lr(),
        }


def train(name, folder, resume=False, seed=1, steps=STEPS, half=HALF, **settings):
    """Trains all steps, with a save in between in `folder`; or continues from there."""
    one = Training(name, seed, **settings)
    if resume:
        one.accelerator.load_state(str(folder))
    else:
        one.steps(0, half)
        one.accelerator.save_state(str(folder))
        one.accelerator.wait_for_everyone()
    one.steps(half, steps)
    return one.result()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_training_has_the_same_bits(name, ranks, tmp_path):
    whole = call(ranks, train, name, tmp_path)
    assert whole == call(ranks, train, name, tmp_path, resume=True, seed=2)
    assert [one["steps"] for one in whole] == [STEPS] * ranks
    if ranks > 1 and name != "slamb":
        assert whole[0] == whole[1]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["slamb", "lamb+int8"])
def test_a_fresh_process_resumes_with_the_same_bits(name, ranks, tmp_path):
    whole = call(ranks, train, name, tmp_path)
    assert whole == call_afresh(ranks, train, name, tmp_path, resume=True, seed=2)


@pytest.mark.parametrize("name", DIFFER)
def test_the_state_of_rank_0_alone_is_refused(name, tmp_path):
    call(2, train, name, tmp_path, consolidates=False)
    with pytest.raises(AssertionError, match="rank0_of_2.*consolidate_state_dict"):
        call(2, train, name, tmp_path, resume=True, consolidates=False)


@pytest.mark.parametrize("name", DIFFER)
def test_a_training_resumes_from_the_state_of_rank_0_without_errors(name, tmp_path):
    options = {"consolidates": False, "from_other_ranks": True, **WITH_EQUAL_END.get(name, {})}
    whole = call(2, train, name, tmp_path, **options)
    resumed = call(2, train, name, tmp_path, resume=True, seed=2, **options)
    assert [one["steps"] for one in resumed] == [STEPS] * 2
    assert resumed[0] == resumed[1]
    assert resumed != whole


@pytest.mark.parametrize("ranks", [1, 2])
def test_accumulated_gradients_resume_with_the_same_bits(ranks, tmp_path):
    lengths = {"steps": 2 * STEPS, "half": 2 * HALF, "accumulate": 2}
    whole = call(ranks, train, "lamb+int8", tmp_path, **lengths)
    assert [one["steps"] for one in whole] == [STEPS] * ranks
    assert whole == call(ranks, train, "lamb+int8", tmp_path, resume=True, seed=2, **lengths)


# --------------------------------------------------------------------------------------------------------------- GradScaler


def overflow(name, infinite_on, fused=False):
    """Three steps with a GradScaler, as fp16 makes one. The second overflows on one rank.

    :return: for each step the learning rate and the loss scale after it, and whether the parameters have moved
    """
    reset()
    rank = Accelerator(cpu=True).process_index
    p = torch.nn.Parameter(torch.ones(10))
    if name == "torch":
        base = torch.optim.AdamW([p], lr=0.1, fused=fused)
    else:
        base = make(name, [p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = AcceleratedOptimizer(base, device_placement=False, scaler=scaler)
    linear = torch.optim.lr_scheduler.LinearLR(base, 1.0, 0.0, 10)
    schedule = AcceleratedScheduler(linear, optimizer, split_batches=True)
    seen = []
    for step in range(3):
        before = p.detach().clone()
        optimizer.zero_grad()
        gradient = torch.linspace(0.5, 1.0 + rank, 10)
        scaler.scale((p * gradient).sum()).backward()
        if step == 1 and rank == infinite_on:
            p.grad[3] = float("inf")
        optimizer.step()
        schedule.step()
        seen.append((schedule.get_last_lr()[0], scaler.get_scale(), not torch.equal(p.detach(), before)))
    return seen


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_does_not_advance_the_schedule(name):
    (expected,) = call(1, overflow, "torch", 0)
    assert [moved for _, _, moved in expected] == [True, False, True]
    assert call(1, overflow, name, 0) == [expected]


@pytest.mark.parametrize("infinite_on", [0, 1])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_ranks_skip_a_step_together(name, infinite_on):
    results = call(2, overflow, name, infinite_on)
    # The step is called and skips by itself, as that of a fused optimizer of torch: accelerate cannot know of it.
    (fused,) = call(1, overflow, "torch", 0, fused=True)
    for rank, seen in enumerate(results):
        assert [(rate, moved) for rate, _, moved in seen] == [(rate, moved) for rate, _, moved in fused]
        # Each rank has a loss scale of its own.
        assert [scale for _, scale, _ in seen] == ([8.0, 4.0, 4.0] if rank == infinite_on else [8.0, 8.0, 8.0])
