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


def test_each_line_of_the_first_table_can_be_written():
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and "slamb.torch." in line]
    calls = re.findall(r"slamb\.torch\.(AdamW|Lamb)\(p, ([^)]*)…\)", "\n".join(lines))
    assert len(calls) >= 7
    for name, arguments in calls:
        getattr(slamb.torch, name)([torch.nn.Parameter(torch.ones(3))], **eval(f"dict({arguments})"))
    hooks = re.findall(r'slamb\.torch\.compression_hook\("([^)]*)"\)', PAGE)
    assert hooks and set(hooks) <= set(_native.compressors("mean"))
