"""Lightning: the Trainer with automatic and manual optimization, and Fabric. Before a save, Lightning calls
consolidate_state_dict() on all ranks by itself."""

import pickle
import warnings

import lightning
import pytest
import torch
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

import slamb.torch
from processes import call, call_afresh
from training import (
    HALF,
    OPTIMIZERS,
    STEPS,
    Data,
    Model,
    batch,
    bits,
    make,
    make_schedule,
    steps_taken,
)


def count_of_ranks():
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


class Automatic(lightning.LightningModule):
    """Lightning takes the steps of the optimizer and of the schedule."""

    def __init__(self, name, seed, **settings):
        super().__init__()
        self.model = Model(seed)
        self._made_by = name, settings
        # Lightning does not continue in the middle of a plain loader: a checkpoint has the number of batches so far.
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def next_batch(self):
        self.seen += 1
        return batch(self.seen.item(), self.global_rank, self.trainer.world_size)

    def training_step(self, *_):
        return self.model(**self.next_batch())["loss"]

    def configure_optimizers(self):
        name, settings = self._made_by
        optimizer = make_torch(self.parameters()) if name == "torch" else make(name, self.parameters(), **settings)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make_schedule(optimizer), "interval": "step"}}


class Manual(Automatic):
    """The module takes them. From the start of each training another group has joined, through Lightning's wrapper."""

    def __init__(self, name, seed, **settings):
        super().__init__(name, seed, **settings)
        self.automatic_optimization = False
        self.scale = torch.nn.Parameter(torch.full((4,), 0.5 * seed))

    def configure_optimizers(self):
        name, settings = self._made_by
        parameters = self.model.parameters()
        optimizer = make_torch(parameters) if name == "torch" else make(name, parameters, **settings)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}

    def setup(self, stage):
        self._has_group = False

    def on_train_start(self):
        self.add_group()

    def add_group(self):
        if not self._has_group:
            self._has_group = True
            self.optimizers().add_param_group({"params": [self.scale], "lr": 1e-3})

    def training_step(self, *_):
        examples = self.next_batch()
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad()
        loss = self.model(**examples)["loss"] + (self.scale * examples["x"][:, :4]).mean().square()
        self.manual_backward(loss)
        optimizer.step()
        schedule.step()


def make_torch(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def fit(kind, name, folder, resume=False, seed=1, trainer=None, **settings):
    """Trains all steps, and saves after `HALF` in `folder`; or continues from there."""
    warnings.filterwarnings("ignore", module="lightning")
    module = kind(name, seed, **settings)
    ranks = count_of_ranks()
    saves = ModelCheckpoint(dirpath=folder, every_n_train_steps=HALF, save_top_k=-1, filename="{step}")
    options = {
        "accelerator": "cpu",
        "devices": ranks,
        "max_steps": STEPS,
        "logger": False,
        "callbacks": [saves],
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **(trainer or {}),
    }
    if ranks > 1:
        options["strategy"] = DDPStrategy(process_group_backend="gloo")
    client = slamb.torch.keep_gradients_local(lightning.Trainer(**options))
    loader = torch.utils.data.DataLoader(Data(), batch_size=4)
    client.fit(module, loader, ckpt_path=f"{folder}/step={HALF}.ckpt" if resume else None)
    assert client.global_step == STEPS
    return {"parameters": bits(module), "steps": steps_taken(client.optimizers[0]), "values": values(module)}


def values(module):
    return [p.detach().numpy().copy() for p in module.parameters()]


def of_bits(results):
    return [(one["parameters"], one["steps"]) for one in results]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_automatic_optimization_resumes_with_the_same_bits(name, ranks, tmp_path):
    whole = call(ranks, fit, Automatic, name, tmp_path)
    assert of_bits(whole) == of_bits(call(ranks, fit, Automatic, name, tmp_path, resume=True, seed=2))
    assert [one["steps"] for one in whole] == [STEPS] * ranks
    if ranks > 1 and name != "slamb":
        assert whole[0]["parameters"] == whole[1]["parameters"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fresh_process_resumes_with_the_same_bits(ranks, tmp_path):
    whole = call(ranks, fit, Automatic, "slamb", tmp_path)
    assert of_bits(whole) == of_bits(call_afresh(ranks, fit, Automatic, "slamb", tmp_path, resume=True, seed=2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_precision_of_bfloat16_with_clipping_resumes_with_the_same_bits(name, tmp_path):
    options = {"precision": "bf16-mixed", "gradient_clip_val": 0.1}
    whole = call(1, fit, Automatic, name, tmp_path, trainer=options)
    assert of_bits(whole) == of_bits(call(1, fit, Automatic, name, tmp_path, resume=True, seed=2, trainer=options))


def test_precision_of_bfloat16_with_clipping_follows_torch(tmp_path):
    options = {"precision": "bf16-mixed", "gradient_clip_val": 0.1}
    (mine,) = call(1, fit, Automatic, "adamw", tmp_path / "mine", trainer=options)
    (theirs,) = call(1, fit, Automatic, "torch", tmp_path / "theirs", trainer=options)
    (unclipped,) = call(1, fit, Automatic, "torch", tmp_path / "unclipped", trainer={"precision": "bf16-mixed"})
    assert distance(mine, theirs) < 1e-3 < distance(unclipped, theirs)


def distance(first, second):
    return max(abs(a - b).max() for a, b in zip(first["values"], second["values"]))


def test_accumulated_gradients_resume_with_the_same_bits(tmp_path):
    options = {"accumulate_grad_batches": 2}
    whole = call(2, fit, Automatic, "lamb+int8", tmp_path, trainer=options)
    assert of_bits(whole) == of_bits(call(2, fit, Automatic, "lamb+int8", tmp_path, resume=True, seed=2, trainer=options))


def test_the_callback_can_be_pickled_and_is_there_once():
    trainer = slamb.torch.keep_gradients_local(slamb.torch.keep_gradients_local(lightning.Trainer(accelerator="cpu", logger=False)))
    (ours,) = (one for one in trainer.callbacks if type(one).__module__.startswith("slamb"))
    assert type(pickle.loads(pickle.dumps(ours))) is type(ours)
    assert isinstance(ours, lightning.pytorch.callbacks.Callback)


def warnings_of_clipping(name, folder):
    """Those of a training in which Lightning clips."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Automatic, name, folder, trainer={"gradient_clip_val": 0.1})
    return [str(one.message) for one in caught if "slamb" in str(one.message)]


def test_clipping_by_the_norm_of_one_rank_gives_a_warning(tmp_path):
    said = "Lightning clips the gradients of each of 2 ranks by the norm of its own (gradient_clip_val = 0.1)"
    for seen in call(2, warnings_of_clipping, "lamb", tmp_path):
        assert len(seen) == 1 and said in seen[0] and "max_gradient_norm=0.1" in seen[0]
    assert call(1, warnings_of_clipping, "lamb", tmp_path) == [[]]


# ---------------------------------------------------------------------------------------------------------- Manual, groups


class ManualResumed(Manual):
    """Its checkpoint has the group already, so the optimizer needs it before the checkpoint is loaded."""

    def on_fit_start(self):
        self.add_group()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_manual_optimization_with_an_added_group_resumes_with_the_same_bits(name, ranks, tmp_path):
    whole = call(ranks, fit, Manual, name, tmp_path)
    start = Manual("torch", 1).scale.detach().numpy()
    assert all(abs(one["values"][0] - start).min() > 1e-4 for one in whole), "the group that joined was not trained"
    assert of_bits(whole) == of_bits(call(ranks, fit, ManualResumed, name, tmp_path, resume=True, seed=2))
    assert [one["steps"] for one in whole] == [STEPS] * ranks


def test_manual_optimization_with_an_added_group_follows_torch(tmp_path):
    (mine,) = call(1, fit, Manual, "adamw", tmp_path / "mine")
    (theirs,) = call(1, fit, Manual, "torch", tmp_path / "theirs")
    assert distance(mine, theirs) < 1e-5


# ------------------------------------------------------------------------------------------------------------------ Fabric


def train_by_fabric(name, folder, resume=False, seed=1, is_torch=False, **settings):
    """Trains all steps with a group that joins through Fabric's wrapper after two; saves after `HALF`, or continues from there."""
    ranks = count_of_ranks()
    strategy = FabricDDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto"
    fabric = lightning.Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    inner = Model(seed)
    late = [*inner.layers[2].parameters()]
    base = make_torch(inner.layers[0].parameters()) if is_torch else make(name, inner.layers[0].parameters(), **settings)
    model, optimizer = fabric.setup(inner, base)
    slamb.torch.keep_gradients_local(model)

    def steps(first, last):
        for step in range(first, last):
            optimizer.zero_grad()
            fabric.backward(model(**batch(step, fabric.global_rank, ranks))["loss"])
            optimizer.step()

    def join():
        optimizer.add_param_group({"params": late})

    file = f"{folder}/fabric.ckpt"
    state = {"model": model, "optimizer": optimizer, "step": HALF}
    if resume:
        join()
        fabric.load(file, state)
    else:
        steps(0, 2)
        join()
        steps(2, HALF)
        fabric.save(file, state)
    steps(HALF, STEPS)
    return {"parameters": bits(inner), "steps": [float(base.state[p]["step"]) for p in inner.parameters()], "values": values(inner)}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fabric_resumes_with_the_same_bits(name, ranks, tmp_path):
    whole = call(ranks, train_by_fabric, name, tmp_path)
    assert of_bits(whole) == of_bits(call(ranks, train_by_fabric, name, tmp_path, resume=True, seed=2))
    assert whole[0]["steps"] == [STEPS, STEPS, STEPS - 2, STEPS - 2]
    if ranks > 1 and name != "slamb":
        assert whole[0]["parameters"] == whole[1]["parameters"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fresh_process_resumes_by_fabric_with_the_same_bits(ranks, tmp_path):
    whole = call(ranks, train_by_fabric, "lamb+int8", tmp_path)
    assert of_bits(whole) == of_bits(call_afresh(ranks, train_by_fabric, "lamb+int8", tmp_path, resume=True, seed=2))


def test_fabric_with_an_added_group_follows_torch(tmp_path):
    (mine,) = call(1, train_by_fabric, "adamw", tmp_path)
    (theirs,) = call(1, train_by_fabric, "adamw", tmp_path, is_torch=True)
    assert distance(mine, theirs) < 1e-5
    assert mine["steps"] == theirs["steps"]
