"""The engine of DeepSpeed without ZeRO: loss scaling, 16 bits, checkpoints of all ranks, and configurations that cannot work."""

import warnings

import deepspeed
import pytest
import torch.distributed as dist

import slamb.torch
from processes import call, call_afresh
from training import HALF, OPTIMIZERS, STEPS, Model, batch, bits, make, steps_taken

CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "steps_per_print": 10**9}
PRECISIONS = {
    "float32": {},
    "bfloat16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "float16": {"torch_autocast": {"enabled": True, "dtype": "float16"}},  # with a GradScaler
}


def engine_of(name, seed, config, precision=None):
    model = Model(seed)
    if precision is not None:
        model = model.to(precision)
    optimizer = make(name, model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={**CONFIG, **config})
    return engine, model, optimizer


def train(name, folder, config, resume=False, seed=1, overflow_in=None):
    """Trains all steps, and saves after `HALF` in `folder`; or continues from there."""
    engine, model, optimizer = engine_of(name, seed, config)
    slamb.torch.keep_gradients_local(engine)
    slamb.torch.consolidate_on_save(engine)
    first = 0
    if resume:
        engine.load_checkpoint(str(folder))
        first = engine.global_steps
    for step in range(first, STEPS):
        loss = engine(**batch(step, dist.get_rank(), dist.get_world_size()))["loss"]
        engine.backward(loss)
        if step == overflow_in and dist.get_rank() == 1:
            next(model.parameters()).grad[0] = float("inf")
        engine.step()
        if step == HALF - 1:
            engine.save_checkpoint(str(folder))
    return {"parameters": bits(model), "steps": steps_taken(optimizer), "finite": all(p.isfinite().all() for p in model.parameters())}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_training_has_the_same_bits(name, precision, tmp_path):
    config = PRECISIONS[precision]
    whole = call(2, train, name, tmp_path, config)
    assert whole == call(2, train, name, tmp_path, config, resume=True, seed=2)
    assert [one["steps"] for one in whole] == [STEPS] * 2
    if name != "slamb":
        assert whole[0] == whole[1]


def test_a_fresh_process_resumes_with_the_same_bits(tmp_path):
    whole = call(2, train, "one_bit_adam", tmp_path, {})
    assert whole == call_afresh(2, train, "one_bit_adam", tmp_path, {}, resume=True, seed=2)


def test_an_overflow_on_one_rank_skips_the_step_on_all(tmp_path):
    for one in call(2, train, "one_bit_adam", tmp_path, PRECISIONS["float16"], overflow_in=STEPS - 2):
        assert one["finite"] and one["steps"] == STEPS - 1


def train_plainly(name):
    model = Model(1)
    optimizer = make(name, model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(**batch(step, dist.get_rank(), dist.get_world_size()))["loss"].backward()
        optimizer.step()
    return bits(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_engine_has_the_bits_of_a_plain_loop(name, tmp_path):
    assert [one["parameters"] for one in call(2, train, name, tmp_path, {})] == call(2, train_plainly, name)


def refusal(config):
    """What is said of a configuration that cannot work."""
    try:
        engine, *_ = engine_of("one_bit_adam", 1, config)
        slamb.torch.keep_gradients_local(engine)
    except (ValueError, RuntimeError, AssertionError) as failure:
        return f"{type(failure).__name__}: {failure}"
    return "nothing"


@pytest.mark.parametrize(
    "config, said",
    [
        ({"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}, "ZeRO"),
        ({"zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}, "ZeRO"),
        ({"zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True}, "ZeRO"),
        ({"bf16": {"enabled": True}}, "DeepSpeed"),  # fp16 is the same wrapper, which DeepSpeed refuses on a CPU
    ],
)
def test_what_cannot_work_is_refused(config, said):
    for seen in call_afresh(2, refusal, config):
        assert "slamb: " in seen and said in seen, seen


def warnings_of_clipping():
    engine, *_ = engine_of("lamb", 1, {"gradient_clipping": 1.0})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        slamb.torch.keep_gradients_local(engine)
    return [str(one.message) for one in caught]


def test_clipping_by_the_norm_of_one_rank_gives_a_warning():
    for seen in call(2, warnings_of_clipping):
        assert len(seen) == 1 and "DeepSpeed clips the gradients of each of 2 ranks" in seen[0]
        assert "gradient_clipping = 1.0" in seen[0] and "max_gradient_norm=1.0" in seen[0]


def test_without_local_gradients_the_first_step_says_what_to_do():
    for seen in call(2, train_with_averaged_gradients):
        assert "slamb.torch.keep_gradients_local" in seen


def train_with_averaged_gradients():
    engine, model, _ = engine_of("one_bit_adam", 1, {})
    engine.backward(engine(**batch(0, dist.get_rank(), dist.get_world_size()))["loss"])
    with pytest.raises(RuntimeError) as failure:
        engine.step()
    return str(failure.value)
