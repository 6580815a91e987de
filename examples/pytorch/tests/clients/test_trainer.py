"""The Trainer of transformers. On several ranks it wraps the model in DistributedDataParallel. Either that averages gradients, and
the optimizer has exchange=False, or a hook keeps gradients local. The Trainer saves the optimizer's state on rank 0 alone."""

import warnings

import pytest
import torch
import transformers

import slamb.torch
from processes import call, call_afresh
from training import (
    DIFFER,
    HALF,
    OPTIMIZERS,
    STEPS,
    WITH_EQUAL_END,
    Data,
    Model,
    bits,
    make,
    make_schedule,
    steps_taken,
)


class SaveLate(transformers.TrainerCallback):
    """Decides to save after all other callbacks."""

    def on_step_end(self, args, state, control, **_):
        control.should_save = state.global_step == HALF


def train(name, folder, resume=False, seed=1, consolidates=True, is_averaged=False, arguments=None, is_late=False, **settings):
    """Trains all steps, and saves every `HALF` steps in `folder`; or continues from the first save there."""
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    model = Model(seed)
    optimizer = make(name, model.parameters(), exchange=not is_averaged, **settings)
    options = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": HALF,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "report_to": "none",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "max_grad_norm": 0.0,  # clipping by each rank's own norm would make them differ
        "label_names": ["y"],
        "prediction_loss_only": True,
        "ddp_backend": "gloo" if torch.distributed.is_initialized() else None,
        **(arguments or {}),
    }
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**options),
        train_dataset=Data(),
        eval_dataset=Data(8),
        optimizers=(optimizer, make_schedule(optimizer)),
    )
    if not is_averaged:
        assert slamb.torch.keep_gradients_local(trainer) is slamb.torch.keep_gradients_local(trainer) is trainer
    for _ in range(2 if consolidates else 0):  # the second call does nothing
        slamb.torch.consolidate_on_save(trainer)
    if is_late:
        trainer.add_callback(SaveLate())
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{HALF}" if resume else None)
    assert trainer.state.global_step == STEPS
    return {"parameters": bits(model), "steps": steps_taken(optimizer), "lr": optimizer.param_groups[0]["lr"]}


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


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_gradients_that_ddp_averages_need_no_exchange(name, tmp_path):
    whole = call(2, train, name, tmp_path, consolidates=False, is_averaged=True)
    assert whole[0] == whole[1]
    assert whole == call(2, train, name, tmp_path, resume=True, seed=2, consolidates=False, is_averaged=True)


@pytest.mark.parametrize("name", DIFFER)
def test_a_training_resumes_from_the_state_of_rank_0_without_errors(name, tmp_path):
    options = {"consolidates": False, "from_other_ranks": True, **WITH_EQUAL_END.get(name, {})}
    whole = call(2, train, name, tmp_path, **options)
    resumed = call(2, train, name, tmp_path, resume=True, seed=2, **options)
    assert [one["steps"] for one in resumed] == [STEPS] * 2
    assert resumed[0] == resumed[1]
    assert resumed != whole  # the errors are lost


@pytest.mark.parametrize("name", DIFFER)
def test_the_state_of_rank_0_alone_is_refused(name, tmp_path):
    call(2, train, name, tmp_path, consolidates=False)
    with pytest.raises(AssertionError, match="rank0_of_2.*consolidate_state_dict"):
        call(2, train, name, tmp_path, resume=True, consolidates=False)


def test_a_save_that_a_later_callback_decides_can_be_resumed(tmp_path):
    options = {"is_late": True, "arguments": {"save_steps": 10**6}}
    whole = call(2, train, "slamb", tmp_path, **options)
    assert whole == call(2, train, "slamb", tmp_path, resume=True, seed=2, **options)


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_a_save_of_the_best_model_can_be_resumed(strategy, tmp_path):
    arguments = {
        "eval_strategy": "steps",
        "eval_steps": HALF,
        "save_strategy": strategy,
        "load_best_model_at_end": strategy == "steps",
        "metric_for_best_model": "eval_loss",
    }
    whole = call(2, train, "slamb", tmp_path, arguments=arguments)
    assert whole == call(2, train, "slamb", tmp_path, resume=True, seed=2, arguments=arguments)


@pytest.mark.parametrize("ranks", [1, 2])
def test_accumulated_gradients_resume_with_the_same_bits(ranks, tmp_path):
    arguments = {"gradient_accumulation_steps": 2}
    whole = call(ranks, train, "lamb+int8", tmp_path, arguments=arguments)
    assert whole == call(ranks, train, "lamb+int8", tmp_path, resume=True, seed=2, arguments=arguments)


def test_clipping_on_one_rank_follows_torch(tmp_path):
    mine = call(1, train, "adamw", tmp_path / "mine", arguments={"max_grad_norm": 0.1})
    theirs = call(1, train_torch, tmp_path / "theirs", max_grad_norm=0.1)
    for name, value in mine[0]["parameters"].items():
        first, second = (torch.frombuffer(bytearray(one), dtype=torch.float32) for one in (value, theirs[0][name]))
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


def warnings_of_clipping(folder):
    """Those of a training in which the Trainer clips."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train("lamb", folder, arguments={"max_grad_norm": 1.0})
    return [str(one.message) for one in caught if "slamb" in str(one.message)]


def test_clipping_by_the_norm_of_one_rank_gives_a_warning(tmp_path):
    said = "the Trainer clips the gradients of each of 2 ranks by the norm of its own (max_grad_norm = 1.0)"
    for seen in call(2, warnings_of_clipping, tmp_path):
        assert len(seen) == 1 and said in seen[0] and "max_gradient_norm=1.0" in seen[0]
    assert call(1, warnings_of_clipping, tmp_path) == [[]]


def train_torch(folder, **arguments):
    """The same training by torch.optim.AdamW."""
    kept = OPTIMIZERS["adamw"]
    OPTIMIZERS["adamw"] = (lambda parameters, exchange, **settings: torch.optim.AdamW(parameters, **settings), {})
    try:
        return train("adamw", folder, consolidates=False, arguments=arguments)["parameters"]
    finally:
        OPTIMIZERS["adamw"] = kept
