"""Ranks that share one GPU, over NCCL: every optimizer and compressor, compared with host tensors over Gloo.

    torchrun --nproc_per_node 2 ranks.py [--device cuda:0] [--lose] [CHECK]…

NCCL takes the ranks for hosts, because each claims one; see docs/how-to/nccl.md. --device cpu: all of it over Gloo. --lose: the
last rank is killed in the middle of a training, and the others print what they are told. torchrun would end them first, so
test_ranks.py starts these processes itself.
"""

import argparse
import os
import re
import signal
import sys
import time
import weakref
from pathlib import Path

SETTINGS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MAX_CTAS": "2",
    "CUDA_MODULE_LOADING": "EAGER",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # otherwise torch ends a process that has lost a peer
}
if "RANK" in os.environ:  # before the first call of NCCL
    os.environ["NCCL_HOSTID"] = f"slamb-rank-{os.environ['RANK']}"
    for _name, _value in SETTINGS.items():
        os.environ.setdefault(_name, _value)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))

import checks  # noqa: E402
from checks import are_equal_on_all_ranks, check, gradients, rank, require_same_bits, size  # noqa: E402
from slamb.torch import AdamW, Lamb, OneBitAdam, OneBitLamb, Slamb, ZeroOneAdam, compression_hook  # noqa: E402

DEVICE = torch.device("cpu")
SECONDS = 150  # for all checks of a launch
STEPS = 25
SHAPES = ((60, 50), (50,), (3, 5, 20), (1,))

_SPARSE = {"k": 0.25}
_SLAMB = {"k": 0.25, "dense_below": 40, "local_steps": 5}
_ZERO_ONE = {
    "variance_freeze_step": 8,
    "variance_update_scaler": 2,
    "local_interval_scaler": 4,
    "local_interval_clipper": 2,
}
_LR = {AdamW: 1e-2, Lamb: 2e-2, Slamb: 2e-2, OneBitAdam: 3e-3, OneBitLamb: 2e-2, ZeroOneAdam: 1e-3}
# Settings by which a few steps reach every phase.
OPTIMIZERS = {
    "adamw": (AdamW, {}),
    "adamw+8-bit": (AdamW, {"moments": "8-bit"}),
    "adamw+bf16-momentum": (AdamW, {"moments": "bf16-momentum"}),
    "lamb+8-bit": (Lamb, {"moments": "8-bit"}),
    **{f"lamb+{c}": (Lamb, {"compressor": c}) for c in ("none", "int8", "int4", "sign", "natural", "bf16", "fp16", "four_levels")},
    **{f"lamb+{c}": (Lamb, {"compressor": c, **_SPARSE}) for c in ("random_k", "top_k", "random_k+int8")},
    **{
        f"slamb+{c}": (Slamb, {"compressor": c, **_SLAMB})
        for c in ("random_k", "top_k", "random_k+int8", "random_k+int4", "random_k+sign")
    },
    **{
        f"slamb_by_differences+{c}": (
            Slamb,
            {"compressor": "random_k+int8", "parameter_sync": c, **_SLAMB, "local_steps": 2},
        )
        for c in ("four_levels", "int4", "sign")
    },
    **{
        f"{name}+{c}": (kind, {"compressor": c, "eps": 1e-4, **settings})
        for name, kind, settings in (
            ("one_bit_adam", OneBitAdam, {"warm_up_steps": 6}),
            ("one_bit_lamb", OneBitLamb, {"warm_up_steps": 6}),
            ("zero_one_adam", ZeroOneAdam, _ZERO_ONE),
        )
        for c in ("sign", "int8", "int4")
    },
}
# One of each kind, for checks that take long, and for more ranks.
KINDS = (
    "adamw",
    "lamb+none",
    "lamb+int4",
    "slamb+random_k+int8",
    "slamb_by_differences+four_levels",
    "one_bit_adam+sign",
    "one_bit_lamb+sign",
    "zero_one_adam+sign",
)


def ranks_of(name):
    return (2, 4) if name in KINDS else 2


_group = None


def group():
    """The process group of the device. torch holds it until the default group is destroyed."""
    global _group
    made = None if _group is None else _group()
    if made is None:
        made = dist.new_group(backend="gloo" if DEVICE.type == "cpu" else "nccl", timeout=checks.TIMEOUT)
        _group = weakref.ref(made)
    return made


def make(name, parameters, process_group):
    kind, settings = OPTIMIZERS[name]
    return kind(parameters, **{"lr": _LR[kind], **settings, "process_group": process_group})


def parameters_on(device):
    return [torch.nn.Parameter(p.detach().to(device)) for p in checks.make_parameters(SHAPES)]


def give(parameters, step):
    for p, g in zip(parameters, gradients(step, rank(), SHAPES)):
        p.grad = g.to(p.device)


def train(optimizer, parameters, steps):
    for step in steps:
        give(parameters, step)
        optimizer.step()


def on_host(tensors):
    return [t.detach().to("cpu", copy=True) for t in tensors]


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(DEVICE)


def loss_of(model, seed, batch=64):
    x = checks.noise((batch, 40), 77, seed).to(DEVICE)
    return torch.nn.functional.mse_loss(model(x), x[:, :10].sum(1, keepdim=True))


def train_model(model, optimizer):
    """Returns the loss before and after, of examples that no rank has trained with."""
    first = float(loss_of(model, 0, 512))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, 1 + STEPS * rank() + step).backward()
        optimizer.step()
    return first


@check(ranks_of, each=OPTIMIZERS)
def the_loss_falls_and_ranks_end_with_equal_parameters(name):
    model = make_model()
    optimizer = make(name, model.parameters(), group())
    first = train_model(model, optimizer)
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks(on_host(model.parameters())), "ranks have different parameters"
    last = float(loss_of(model, 0, 512))
    assert last < 0.9 * first, f"the loss was {first} and is {last}"
    assert optimizer.statistics()["sent_bytes"] > 0


@check(ranks_of, each=OPTIMIZERS)
def parameters_follow_those_of_host_tensors(name):
    """Rounding can change a code or a choice of a few elements, which then move otherwise."""
    ours, theirs = parameters_on(DEVICE), parameters_on("cpu")
    for parameters, process_group in ((ours, group()), (theirs, dist.group.WORLD)):
        train(make(name, parameters, process_group), parameters, range(10))
    ours = torch.cat([p.flatten() for p in on_host(ours)])
    theirs = torch.cat([p.flatten() for p in on_host(theirs)])
    start = torch.cat([p.flatten() for p in on_host(parameters_on("cpu"))])
    apart = (ours - theirs).abs() / theirs.abs().max()
    others = int((apart > 1e-4).sum())
    largest = float(apart.max())
    assert 200 * others <= len(apart), f"{others} of {len(apart)} parameters differ, by up to {largest:.2g} of the largest"
    assert float((theirs - start).abs().max()) > 1e-3


@check((2, 4), each=KINDS)
def all_ranks_skip_a_step_that_one_must_skip(name):
    parameters = parameters_on(DEVICE)
    optimizer = make(name, parameters, group())
    train(optimizer, parameters, range(2))
    before = on_host(parameters)
    give(parameters, 2)
    if rank() == size() - 1:
        parameters[0].grad[3, 4] = float("nan")
    optimizer.step()
    require_same_bits(on_host(parameters), before)
    assert optimizer.statistics()["skipped_steps"] == 1
    train(optimizer, parameters, range(2, 4))
    assert all(torch.isfinite(p).all() for p in parameters)
    assert checks.distance(on_host(parameters), before) > 0


@check((2, 4), each=KINDS)
def a_resumed_training_has_the_bits_of_an_uninterrupted_one(name):
    parameters = parameters_on(DEVICE)
    optimizer = make(name, parameters, group())
    train(optimizer, parameters, range(8))
    others = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    resumed = make(name, others, group())
    resumed.load_state_dict(optimizer.state_dict())
    train(optimizer, parameters, range(8, 12))
    train(resumed, others, range(8, 12))
    require_same_bits(on_host(others), on_host(parameters))


@check(lambda name: (2, 4) if name == "int8" else 2, each=("none", "int8", "int4", "sign", "random_k+int8"))
def a_hook_compresses_the_gradients_of_a_model(compressor):
    model = make_model()
    devices = None if DEVICE.type == "cpu" else [DEVICE]
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=devices, process_group=group())
    ddp.register_comm_hook(None, compression_hook(compressor, group()))
    first = train_model(ddp, torch.optim.SGD(model.parameters(), lr=0.02))
    assert are_equal_on_all_ranks(on_host(model.parameters())), "ranks have different parameters"
    last = float(loss_of(model, 0, 512))
    assert last < 0.9 * first, f"the loss was {first} and is {last}"


def lose_a_rank():
    """The last rank is killed; the others must be told."""
    checks.start()
    parameters = parameters_on(DEVICE)
    optimizer = make("lamb+none", parameters, group())
    began = None
    try:
        for step in range(100000):
            if step == 5:
                began = time.monotonic()
                if rank() == size() - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            train(optimizer, parameters, [step % 10])
            optimizer.statistics()  # waits for the step
    except RuntimeError as error:
        waited = time.monotonic() - began
        text = str(error).replace("\n", " | ")
        is_told = waited < checks.TIMEOUT.total_seconds() + 30 and re.search(r"nccl|ncclResult_t|peer|connection|timed out|timeout", text, re.I)
        print(f"{'ok' if is_told else 'FAILED:'} told after {waited:.1f} s: {text}", flush=True)
        os._exit(0 if is_told else 1)  # neither torch nor Python waits for the lost rank
    print("FAILED: nothing was told", flush=True)
    os._exit(1)


def main():
    global DEVICE
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--device", default="cuda:0")
    arguments.add_argument("--lose", action="store_true")
    arguments.add_argument("checks", nargs="*")
    given = arguments.parse_args()
    DEVICE = torch.device(given.device)
    if DEVICE.type != "cpu":
        torch.cuda.set_device(DEVICE)
    if given.lose:
        return lose_a_rank()
    found = {one.name: one for one in checks.found_in(globals())}
    here = int(os.environ["WORLD_SIZE"])
    names = given.checks or [name for name, one in found.items() if here in one.ranks]
    return checks.make([(name, found[name]) for name in names], SECONDS)


if __name__ == "__main__":
    main()
