"""The 1-bit optimizers of DeepSpeed 0.19.6, the last version that had them, against those here: with the same gradients they have the
same parameters, and a training that one has saved continues in the other.

The sources of 0.19.6 are in build/pytorch/deepspeed-0.19.6, where tests/run.sh --clients puts them. Their exchange needs CuPy and
NCCL, so these tests have one of their own, written from its equations: docs/algorithms/one_bit_exchange.md.
"""

import inspect
import os
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import slamb.torch
from processes import call, call_afresh
from slamb.torch import _deepspeed

SOURCES = Path(sys.prefix).parent / "deepspeed-0.19.6"
pytestmark = pytest.mark.skipif(not SOURCES.is_dir(), reason=f"no sources of DeepSpeed 0.19.6 in {SOURCES}")

TOLERANCE = 1e-5
FREEZE = 6
INTERVALS = {"var_freeze_step": 9, "var_update_scaler": 2, "local_step_scaler": 3, "local_step_clipper": 4}
# DeepSpeed pads each tensor to whole bytes for each rank, and counts the padding in scales; here nothing is padded. In 1-bit Adam and 0/1
# Adam each tensor has two phases of its own there, and here all have them together: they are the same for one tensor.
SEVERAL, ONE = ((32, 24), (64,), (5, 64), (128,)), ((32, 24),)
OPTIMIZERS = {
    "OneBitAdam": ("adam", "OnebitAdam", {"freeze_step": FREEZE, "weight_decay": 0.01, "eps": 1e-6}, ONE),
    "OneBitLamb": ("lamb", "OnebitLamb", {"freeze_step": FREEZE, "weight_decay": 0.01, "coeff_beta": 0.7}, SEVERAL),
    "ZeroOneAdam": ("zoadam", "ZeroOneAdam", {**INTERVALS, "weight_decay": 0.01, "eps": 1e-6}, ONE),
}


class Backend:
    """The exchange of DeepSpeed: signs with worker and server errors, and a scale of each rank and chunk."""

    def __init__(self, mpu=None):
        self.size, self.rank = dist.get_world_size(), dist.get_rank()

    def compressed_allreduce(self, buffer, worker_error, server_error, local_rank):
        assert buffer.numel() == worker_error.numel(), "the tensors of the tests need no padding"
        x = buffer.flatten() + worker_error
        sent = x.norm() / x.numel() ** 0.5 * _signs(x)
        worker_error.copy_(x - sent)
        dist.all_reduce(sent)
        chunk = (sent / self.size).chunk(self.size)[self.rank] + server_error
        back = chunk.norm() / chunk.numel() ** 0.5 * _signs(chunk)
        server_error.copy_(chunk - back)
        parts = [torch.empty_like(back) for _ in range(self.size)]
        dist.all_gather(parts, back)
        buffer.copy_(torch.cat(parts).view(buffer.shape))
        return buffer


def _signs(x):
    return torch.where(x < 0, -1.0, 1.0)


def import_theirs(name):
    """The class of DeepSpeed 0.19.6, with the exchange above."""
    if str(SOURCES) not in sys.path:
        sys.path.insert(0, str(SOURCES))
        # What it compiles is not what the newest version compiles under the same names.
        os.environ["TORCH_EXTENSIONS_DIR"] = str(SOURCES / "compiled")
    import deepspeed

    assert deepspeed.__version__.startswith("0.19.6"), deepspeed.__version__
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    sys.modules["deepspeed.runtime.comm.nccl"] = types.SimpleNamespace(NcclBackend=Backend)
    module, kind, _, _ = OPTIMIZERS[name]
    return getattr(__import__(f"deepspeed.runtime.fp16.onebit.{module}", fromlist=[kind]), kind)


def numbers(shapes, *seed):
    generator = torch.Generator().manual_seed(hash(seed) % 2**31)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def parameters_of(shapes):
    return [torch.nn.Parameter(value) for value in numbers(shapes, 1)]


def gradients(shapes, step, rank):
    """Of tensors whose gradients differ in size, around a common part."""
    common, own = numbers(shapes, 2), numbers(shapes, 3, step, rank)
    return [(a + b) * 0.1 * (i + 1) for i, (a, b) in enumerate(zip(common, own))]


def averaged(values):
    for value in values:
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return values


class Theirs:
    """DeepSpeed's optimizer, and the part of its engine that averages gradients."""

    local_rank, mpu = 0, None

    def __init__(self, name):
        _, _, options, self.shapes = OPTIMIZERS[name]
        self.enable_backward_allreduce = True
        self.parameters = parameters_of(self.shapes)
        self.optimizer = import_theirs(name)(self.parameters, deepspeed=self, lr=0.01, **options)

    def step(self, step):
        own = gradients(self.shapes, step, dist.get_rank())
        for p, g in zip(self.parameters, averaged(own) if self.enable_backward_allreduce else own):
            p.grad = g
        self.optimizer.step()


def ours(name, **changed):
    _, _, options, shapes = OPTIMIZERS[name]
    parameters = parameters_of(shapes)
    config = {"type": name, "params": {"lr": 0.01, **options, **changed}}
    return parameters, slamb.torch.from_deepspeed(parameters, config, update_bound=None)


def take(optimizer, parameters, name, step):
    for p, g in zip(parameters, gradients(OPTIMIZERS[name][3], step, dist.get_rank())):
        p.grad = g
    optimizer.step()


def distance(first, second):
    largest = max(float(p.detach().abs().max()) for p in second)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in zip(first, second)) / largest


def compare(name, steps):
    """The distance after each step. Their first step takes none: it allocates memory."""
    theirs = Theirs(name)
    before = {} if name == "ZeroOneAdam" else {"freeze_step": FREEZE - 1}
    parameters, optimizer = ours(name, **before)
    theirs.step(0)
    seen = []
    for step in range(1, steps):
        theirs.step(step)
        take(optimizer, parameters, name, step)
        seen.append((distance(parameters, theirs.parameters), optimizer.statistics()["phase"]))
    return seen


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_gradients_give_the_same_parameters_in_both_phases(name):
    for seen in call_afresh(2, compare, name, 24):
        assert len({phase for _, phase in seen}) == 2
        print(name, {phase: f"{max(d for d, its in seen if its == phase):.1e}" for _, phase in seen})
        assert max(d for d, _ in seen) < TOLERANCE, seen


# --------------------------------------------------------------------------------------------------------- A state of theirs


def forget_errors(optimizer):
    """As a load of a checkpoint does. Their load also begins the intervals of 0/1 Adam again, so this one is of the tests."""
    for error in (*getattr(optimizer, "worker_errors", ()), *getattr(optimizer, "server_errors", ())):
        error.zero_()
    for entry in optimizer.state.values():
        for key in ("worker_error", "server_error"):
            if key in entry:
                entry[key].zero_()


def checkpoint_of(theirs, name):
    """That of rank 0, which theirs is: parameters of other ranks differ in their last bits with 0/1 Adam."""
    own = {
        "module": {str(i): p.detach() for i, p in enumerate(theirs.parameters)},
        "optimizer": theirs.optimizer.state_dict(),
        "dp_world_size": dist.get_world_size(),
        "mp_world_size": 1,
        "global_steps": 7,
        "ds_config": {"optimizer": {"type": name, "params": OPTIMIZERS[name][2]}},
    }
    saved = [own]
    dist.broadcast_object_list(saved)
    return saved[0]


def as_module(parameters):
    module = torch.nn.ParameterList(parameters)
    assert list(module.state_dict()) == [str(i) for i in range(len(parameters))]
    return module


def go_on(name, before, after, names_no_optimizer=False):
    """They train `before` steps; then both continue, without compression errors. The distances after each step."""
    theirs = Theirs(name)
    for step in range(before):
        theirs.step(step)
    checkpoint = checkpoint_of(theirs, name)
    if names_no_optimizer:
        del checkpoint["ds_config"]
    parameters, optimizer = ours(name)
    take(optimizer, parameters, name, 0)  # what is loaded replaces it
    rest = slamb.torch.load_deepspeed(checkpoint, as_module(parameters), optimizer)
    assert rest["global_steps"] == 7 and "module" not in rest and "optimizer" not in rest
    assert distance(parameters, theirs.parameters) == 0.0 or (name == "ZeroOneAdam" and dist.get_rank() > 0)
    forget_errors(theirs.optimizer)
    seen = []
    for step in range(before, before + after):
        theirs.step(step)
        take(optimizer, parameters, name, step)
        seen.append(distance(parameters, theirs.parameters))
    return seen, optimizer.statistics()


# Their step number counts the first one, which takes none.
@pytest.mark.parametrize(
    "name, before",
    [("OneBitAdam", 4), ("OneBitAdam", FREEZE), ("OneBitAdam", 10)]
    + [("OneBitLamb", 4), ("OneBitLamb", FREEZE), ("OneBitLamb", FREEZE + 1), ("OneBitLamb", 14)]
    + [("ZeroOneAdam", 6), ("ZeroOneAdam", 10), ("ZeroOneAdam", 12), ("ZeroOneAdam", 16), ("ZeroOneAdam", 20)],
)
def test_a_training_of_theirs_continues(name, before):
    for seen, now in call_afresh(2, go_on, name, before, 10):
        print(name, before, f"{max(seen):.1e}")
        assert max(seen) < TOLERANCE, seen
        assert now["step"] == before + 10 - (name == "ZeroOneAdam")
        if name != "ZeroOneAdam" and before >= FREEZE:
            assert now["warm_up_ended_after"] == FREEZE


@pytest.mark.parametrize("name, before", [("OneBitAdam", 10), ("OneBitLamb", 4), ("OneBitLamb", 14), ("ZeroOneAdam", 16)])
def test_a_state_without_a_configuration_is_recognized(name, before):
    for seen, _ in call_afresh(2, go_on, name, before, 10, names_no_optimizer=True):
        assert max(seen) < TOLERANCE, seen


# ----------------------------------------------------------------------------------------------------- A checkpoint of theirs


class Net(torch.nn.Module):
    """768 parameters in one tensor, and with `several` two more of 128."""

    def __init__(self, several):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(24, 32, bias=False)
        self.rest = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(128)) for _ in range(2)] if several else [])

    def forward(self, x):
        y = self.first(x).tanh()
        for p in self.rest:
            y = y + torch.nn.functional.linear(y, p.view(4, 32)).mean(-1, keepdim=True)
        return (y.float() - 0.3).square().mean()


def input_of(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(16, 24, generator=generator).to(dtype)


def train_by_engine(name, folder, before, precision):
    """Their engine trains and saves; then both continue. The distances of the parameters."""
    import_theirs(name)
    import deepspeed

    several = OPTIMIZERS[name][3] is SEVERAL
    options = {"lr": 0.01, **OPTIMIZERS[name][2]}
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
        "optimizer": {"type": name, "params": options},
        **precision,
    }
    dtype = torch.bfloat16 if precision else torch.float32
    theirs = Net(several).to(dtype)
    engine, wrapper, _, _ = deepspeed.initialize(model=theirs, model_parameters=list(theirs.parameters()), config=config)
    for step in range(before):
        engine.backward(engine(input_of(step, dtype)))
        engine.step()
    engine.save_checkpoint(folder)
    dist.barrier()
    # The float32 copies of 16 bits become the parameters; another seed shows that all comes from the checkpoint.
    model = Net(several)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(9.0)
    more = {"scales": "fused"} if name != "OneBitLamb" else {}
    optimizer = slamb.torch.from_deepspeed(model.parameters(), {"optimizer": config["optimizer"]}, update_bound=None, **more)
    rest = slamb.torch.load_deepspeed(folder, model, optimizer)
    assert rest["global_steps"] == before
    inner = getattr(wrapper, "optimizer", wrapper)
    forget_errors(inner)

    def copies():
        if not precision:
            return list(theirs.parameters())
        if hasattr(wrapper, "fp32_groups_flat"):
            flat, parameters = wrapper.fp32_groups_flat[0].detach(), list(theirs.parameters())
            return [piece.view(p.shape) for piece, p in zip(flat.split([p.numel() for p in parameters]), parameters)]
        return list(wrapper.fp32_groups[0])

    seen = [distance(list(model.parameters()), copies())]
    for step in range(before, before + 6):
        engine.backward(engine(input_of(step, dtype)))
        # The same gradients for both: those of their model.
        for own, its in zip(model.parameters(), theirs.parameters()):
            own.grad = its.grad.float().clone()
        engine.step()
        optimizer.step()
        seen.append(distance(list(model.parameters()), copies()))
    return seen, type(wrapper).__name__


PRECISIONS = {"float32": {}, "bfloat16": {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_of_their_engine_continues(name, precision, tmp_path):
    # Behind the warm-up, where the gradients of each rank are its own, as here.
    before = 10
    if name == "ZeroOneAdam":  # whose step 16 exchanges; with copies, the engine takes one at its construction
        before = 16 if precision == "float32" else 15
    for seen, wrapper in call_afresh(2, train_by_engine, name, str(tmp_path), before, PRECISIONS[precision]):
        print(name, precision, wrapper, f"{max(seen):.1e}")
        assert max(seen) < TOLERANCE, seen


# ------------------------------------------------------------------------------------------------------------------- Options


def options_of(name):
    parameters = inspect.signature(import_theirs(name).__init__).parameters
    return {key: one.default for key, one in parameters.items() if key not in ("self", "params")}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_option_of_theirs_has_a_meaning_or_a_reason(name):
    kind = _deepspeed._kind_of(name)
    for theirs in call(2, options_of, name):
        known = {*kind.options, *_deepspeed._WITHOUT_MEANING, "bias_correction"}
        assert theirs.keys() <= known
        assert kind.options.keys() <= theirs.keys(), "an option that they do not have"
        for key, own in kind.options.items():
            default = {"weight_decay": 0.0, **kind.defaults}.get(key)
            if default is None:
                default = inspect.signature(kind.own.__init__).parameters.get(own, types.SimpleNamespace(default=theirs[key])).default
            assert default == theirs[key] or key == "max_grad_norm", key


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_documentation_has_each_option_of_theirs(name):
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "deepspeed.md").read_text()
    for theirs in call(2, options_of, name):
        missing = [key for key in theirs if not re.search(rf"`{key}`", page)]
        assert not missing
