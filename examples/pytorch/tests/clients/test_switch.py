"""The guide for those who come from another optimizer, docs/how-to/switch.md: it has each of their options, and what it says to write has
their numbers."""

import importlib
import inspect
import re
import sys
import types
from pathlib import Path

import pytest
import torch

import slamb.torch
from slamb import _native

PAGE = (Path(__file__).parents[4] / "docs" / "how-to" / "switch.md").read_text()
TIMM = Path(sys.prefix).joinpath("lib", f"python3.{sys.version_info.minor}", "site-packages", "timm")


def timm_lamb():
    """Lamb of timm, without the models of timm, which need torchvision."""
    for name, folder in (("timm", TIMM), ("timm.optim", TIMM / "optim")):
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
    return importlib.import_module("timm.optim.lamb").Lamb


def bitsandbytes(name):
    return getattr(importlib.import_module("bitsandbytes.optim"), name)


def section(title):
    return re.split(r"^## ", PAGE.split(f"## {title}\n", 1)[1], flags=re.M)[0]


@pytest.mark.parametrize(
    "title, find",
    [
        ("Lamb of timm", timm_lamb),
        ("bitsandbytes", lambda: bitsandbytes("AdamW8bit")),
        ("bitsandbytes", lambda: bitsandbytes("LAMB8bit")),
        ("bitsandbytes", lambda: bitsandbytes("LAMB")),
        ("FusedLAMB of apex", lambda: pytest.importorskip("apex.optimizers").FusedLAMB),
        ("FusedAdam of apex", lambda: pytest.importorskip("apex.optimizers").FusedAdam),
    ],
)
def test_the_page_has_each_of_their_options(title, find):
    theirs = {name for name in inspect.signature(find().__init__).parameters if name not in ("self", "params")}
    assert theirs and not {name for name in theirs if f"`{name}`" not in section(title)}


@pytest.mark.parametrize(
    "options, ours",
    [
        ({}, {"max_gradient_norm": 1.0, "adapt_without_weight_decay": False}),
        ({"max_grad_norm": None, "always_adapt": True}, {}),
        ({"max_grad_norm": None, "always_adapt": True, "trust_clip": True}, {"trust_ratio_upper": 1.0}),
        (
            {"max_grad_norm": 0.1, "bias_correction": False},
            {"max_grad_norm": 0.1, "bias_correction": False, "adapt_without_weight_decay": False},
        ),
    ],
)
def test_lamb_has_the_numbers_of_timm(options, ours):
    torch.manual_seed(5)
    start = [torch.randn(20, 12), torch.randn(12), torch.randn(7, 3)]
    theirs = [torch.nn.Parameter(p.clone()) for p in start]
    mine = [torch.nn.Parameter(p.clone()) for p in start]

    def groups(parameters):
        return [{"params": parameters[::2]}, {"params": parameters[1:2], "weight_decay": 0.0}]

    first, second = timm_lamb()(groups(theirs), lr=0.02, **options), slamb.torch.Lamb(groups(mine), lr=0.02, **ours)
    for _ in range(20):
        for a, b in zip(theirs, mine):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        first.step()
        second.step()
    assert max(float((a - b).detach().abs().max()) for a, b in zip(theirs, mine)) < 1e-6
    assert max(float((a.detach() - p).abs().max()) for a, p in zip(theirs, start)) > 1e-2


def moved_by(make, shape=(100, 100), size=0.01, steps=5):
    """The parameters after some steps with the same gradients."""
    torch.manual_seed(7)
    parameter = torch.nn.Parameter(size * torch.randn(shape))
    optimizer = make([parameter])
    for _ in range(steps):
        parameter.grad = torch.randn(shape)
        optimizer.step()
    return parameter.detach()


def update_in_torch(name, g, p, m, v, norm, max_norm, p_norm, b1, b2, b3, alpha, eps, decay, step, lr, scale, skip_zeros):
    """The code of bitsandbytes for devices without kernels of their own. That for CPUs has another norm: of updates without bias
    correction."""
    default = importlib.import_module("bitsandbytes.backends.default.ops")
    adam = default.name2optimizer_id[name]
    norm.zero_()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        default._optimizer_precondition_32bit(g, p, m, v, norm, b1, b2, eps, decay, step, lr, scale, adam)
        default._optimizer_update_32bit(
            g, p, m, v, norm, max_norm, p_norm, b1, b2, b3, alpha, eps, decay, step, lr, scale, adam
        )


@pytest.mark.parametrize("size", [0.01, 3.0])  # trust ratios below and above the bound
def test_lamb_has_the_numbers_of_bitsandbytes(size, monkeypatch):
    bitsandbytes("LAMB32bit")
    monkeypatch.setattr(torch.ops.bitsandbytes, "optimizer_update_32bit", update_in_torch)
    theirs = moved_by(lambda p: bitsandbytes("LAMB32bit")(p, lr=0.02), size=size)
    mine = moved_by(lambda p: slamb.torch.Lamb(p, lr=0.02, eps=1e-8, weight_decay=0.0, trust_ratio_upper=1.0), size=size)
    assert float((theirs - mine).abs().max()) < 1e-6
    start = moved_by(lambda p: torch.optim.SGD(p, lr=0.0), size=size)
    assert float((theirs - start).abs().max()) > 1e-4
    unbounded = moved_by(lambda p: slamb.torch.Lamb(p, lr=0.02, eps=1e-8, weight_decay=0.0), size=size)
    assert torch.equal(unbounded, mine) == (size < 1)


def test_lamb_8bit_of_bitsandbytes_is_adam_as_the_page_says():
    lamb = moved_by(lambda p: bitsandbytes("LAMB8bit")(p, lr=0.01))
    assert torch.equal(lamb, moved_by(lambda p: bitsandbytes("AdamW8bit")(p, lr=0.01, weight_decay=0.0)))
    mine = moved_by(lambda p: slamb.torch.AdamW(p, lr=0.01, weight_decay=0.0, moments="8-bit"))
    exact = moved_by(lambda p: slamb.torch.AdamW(p, lr=0.01, weight_decay=0.0))
    assert float((mine - exact).norm()) < 1.5 * float((lamb - exact).norm())


def test_each_line_of_the_first_table_can_be_written():
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and "slamb.torch." in line]
    calls = re.findall(r"slamb\.torch\.(AdamW|Lamb)\(p, ([^)]*)…\)", "\n".join(lines))
    assert len(calls) >= 7
    for name, arguments in calls:
        getattr(slamb.torch, name)([torch.nn.Parameter(torch.ones(3))], **eval(f"dict({arguments})"))
    hooks = re.findall(r'slamb\.torch\.compression_hook\("([^)]*)"\)', PAGE)
    assert hooks and set(hooks) <= set(_native.compressors("mean"))
