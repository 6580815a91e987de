"""keep_gradients_local and consolidate_on_save with stand-ins for trainers, in a single process. With the trainers themselves:
tests/clients."""

import warnings

import pytest
import torch

import slamb.torch as st


class Engine(torch.nn.Module):
    """What is asked of an engine of DeepSpeed."""

    def __init__(self, stage=0, fp16=False, bf16=False, clipping=1.0):
        super().__init__()
        self.enable_backward_allreduce = True
        self.options = stage, fp16, bf16, clipping
        self.optimizer = st.AdamW([torch.nn.Parameter(torch.ones(3))])
        self.saved = []

    def zero_optimization_stage(self):
        return self.options[0]

    def fp16_enabled(self):
        return self.options[1]

    def bfloat16_enabled(self):
        return self.options[2]

    def gradient_clipping(self):
        return self.options[3]

    def save_checkpoint(self, folder, tag=None):
        """Saves."""
        self.saved.append((folder, tag, len(self.optimizer.calls)))
        return "done"


class PipelineEngine(Engine):
    pipeline_enable_backward_allreduce = True


def test_an_engine_without_zero_keeps_its_gradients_local():
    engine = Engine()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one rank may clip by its own norm
        assert st.keep_gradients_local(engine) is engine
    assert engine.enable_backward_allreduce is False


@pytest.mark.parametrize(
    "engine, said",
    [
        (Engine(stage=1), "ZeRO stage 1, .*use stage 0, or fully_shard"),
        (Engine(stage=3), "ZeRO stage 3"),
        (Engine(fp16=True), "with fp16, .*use torch_autocast, or convert the model"),
        (Engine(bf16=True), "with bf16"),
        (PipelineEngine(), "a PipelineEngine of DeepSpeed"),
    ],
)
def test_other_engines_are_refused_and_nothing_has_changed(engine, said):
    with pytest.raises(ValueError, match=said):
        st.keep_gradients_local(engine)
    assert engine.enable_backward_allreduce is True


def test_an_engine_collects_the_states_of_all_ranks_before_each_save(monkeypatch):
    engine = Engine()
    engine.optimizer.calls = []
    monkeypatch.setattr(engine.optimizer, "consolidate_state_dict", lambda: engine.optimizer.calls.append("collected"))
    st.consolidate_on_save(engine)
    assert engine.save_checkpoint("folder", tag="second") == "done"
    assert engine.saved == [("folder", "second", 1)]
    assert engine.save_checkpoint.__doc__ == "Saves."


def test_other_objects_are_refused():
    for call in (st.keep_gradients_local, st.consolidate_on_save):
        with pytest.raises(TypeError, match=rf"slamb: {call.__name__}\(\) was given a list, but it must be"):
            call([1])


def test_a_model_that_nothing_wraps_stays_as_it_is():
    model = torch.nn.Linear(2, 3)
    assert st.keep_gradients_local(model) is model
    model.module = model  # a cycle ends
    assert st.keep_gradients_local(model) is model


def test_a_model_in_fully_sharded_data_parallel_is_refused():
    class FullyShardedDataParallel(torch.nn.Module):
        pass

    model = torch.nn.Sequential()
    model.module = FullyShardedDataParallel()
    with pytest.raises(ValueError, match="FullyShardedDataParallel.*give the optimizer process_group and shard_group"):
        st.keep_gradients_local(model)
