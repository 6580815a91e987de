"""Replays of the traces in tests/data, which were computed in double precision from the equations.

Each rank of a process group gives an optimizer its own gradients, and compares the parameters after each step.
"""

from pathlib import Path

import numpy as np
import torch

import slamb.torch
from checks import bits, check, raises, rank, run

FOLDER = Path(__file__).resolve().parents[4] / "tests" / "data"
TOLERANCE = 1e-4  # of the largest parameter

CLASSES = {
    "adamw": slamb.torch.AdamW,
    "lamb": slamb.torch.Lamb,
    "one_bit_adam": slamb.torch.OneBitAdam,
    "one_bit_lamb": slamb.torch.OneBitLamb,
    "zero_one_adam": slamb.torch.ZeroOneAdam,
}  # not SLAMB: no compressor of the package takes the selections of a trace
# Keys of a trace, and the settings that they are here.
SETTINGS = {
    "bias_correction": ("bias_correction", lambda text: text == "1"),
    "scales": ("scales", str),
    "warmup_steps": ("warm_up_steps", int),
    "variance_freeze_step": ("variance_freeze_step", int),
    "variance_update_scaler": ("variance_update_scaler", int),
    "local_step_scaler": ("local_interval_scaler", int),
    "local_step_clipper": ("local_interval_clipper", int),
    "trust_min": ("trust_ratio_lower", float),
    "trust_max": ("trust_ratio_upper", float),
    "trust_beta": ("trust_ratio_average", float),
    "factor_min": ("trust_ratio_factor_lower", float),
    "factor_max": ("trust_ratio_factor_upper", float),
    "factor_threshold": ("trust_ratio_factor_change", float),
}


class Trace:
    def __init__(self, name):
        self.words, self.shapes = {}, []
        for line in (FOLDER / name / "trace.txt").read_text().splitlines():
            key, *values = line.split()
            if key == "tensor":
                self.shapes.append(tuple(map(int, values)))
            else:
                self.words[key] = values[0]
        self.ranks, self.steps = int(self.words["world"]), int(self.words["steps"])
        self.name, self.is_bf16 = name, self.words.get("parameter_type") == "bf16"

    def read(self, file, *dimensions):
        return np.fromfile(FOLDER / self.name / file, "<f4").reshape(*dimensions, -1)

    def tensors(self, values):
        """The tensors that lie one after another in `values`."""
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        return [torch.from_numpy(one.copy()).view(s) for one, s in zip(np.split(values, np.cumsum(sizes)[:-1]), self.shapes)]

    def settings(self):
        found = dict(SETTINGS[key][:1] + (SETTINGS[key][1](text),) for key, text in self.words.items() if key in SETTINGS)
        if self.words["algorithm"].startswith(("one_bit", "zero_one")):
            found["zero_aware"] = False  # traces exchange all elements
            found["update_bound"] = None  # and take the papers' steps
        return found

    def replay(self, **changed):
        """Takes the steps of the trace, with other settings if any are given.

        :return: the largest error of any step, in parts of the largest parameter of that step
        """
        words = self.words
        dtype = torch.bfloat16 if self.is_bf16 else torch.float32
        parameters = [torch.nn.Parameter(p.to(dtype)) for p in self.tensors(self.read("params0.f32", 1)[0])]
        optimizer = CLASSES[words["algorithm"]](
            parameters,
            **{
                "lr": float(words["lr"]),
                "betas": (float(words["beta1"]), float(words["beta2"])),
                "eps": float(words["eps"]),
                "weight_decay": float(words["weight_decay"]),
                **self.settings(),
                **changed,
            },
        )
        given = self.read("grads.f32", self.steps, self.ranks)[:, rank()]
        expected = self.read("params.f32", self.steps, self.ranks)[:, rank()]
        errors = []
        for step in range(self.steps):
            for p, g in zip(parameters, self.tensors(given[step])):
                p.grad = g.to(dtype)
            optimizer.step()
            errors.append(self._error(self._reached(optimizer, parameters), expected[step]))
        assert optimizer.statistics()["step"] == self.steps
        return float(np.max(errors))  # NaN if there is one

    def _reached(self, optimizer, parameters):
        """The float parameters: of bfloat16, their masters, to which they must be rounded, bit for bit."""
        if not self.is_bf16:
            return parameters
        masters = [optimizer._parts[0].tensors.masters[i] for i in range(len(parameters))]
        assert bits(parameters) == bits(m.to(torch.bfloat16) for m in masters), "parameters are not their masters, rounded"
        return masters

    def _error(self, reached, expected):
        difference = torch.cat([p.detach().flatten() for p in reached]).numpy().astype(np.float64) - expected
        return float(np.abs(difference).max() / np.abs(expected).max())


def names():
    found = sorted(folder.name for folder in FOLDER.iterdir() if (folder / "trace.txt").exists())
    return [name for name in found if Trace(name).words["algorithm"] in CLASSES]


@check(lambda name: Trace(name).ranks, each=names())
def replays(name):
    error = Trace(name).replay()
    assert error <= TOLERANCE, f"{error:.3g} of the largest parameter"


@check(4)
def every_trace_that_the_package_can_express_is_replayed():
    algorithms = {name: Trace(name).words["algorithm"] for name in sorted(one.name for one in FOLDER.iterdir())}
    assert sorted(set(algorithms) - set(names())) == [name for name, which in algorithms.items() if which == "slamb"]
    assert set(CLASSES) == {algorithms[name] for name in names()}
    assert {name for name in names() if Trace(name).is_bf16} == {"bf16-adamw", "bf16-lamb", "bf16-one-bit-lamb"}


@check(4)
def a_replay_with_another_setting_fails():
    for name, changed in [
        ("adamw", {"lr": 0.0101}),
        ("adamw", {"bias_correction": False}),
        ("lamb", {"trust_ratio_upper": 0.02}),
        ("one-bit-adam-fused", {"scales": "per_tensor"}),
        ("one-bit-adam-per-tensor", {"warm_up_steps": 6}),
        ("one-bit-lamb", {"trust_ratio_average": 0.8}),
        ("one-bit-lamb", {"trust_ratio_upper": 0.015}),
        ("one-bit-lamb", {"trust_ratio_factor_upper": 0.9}),
        ("one-bit-lamb", {"trust_ratio_factor_lower": 1.5}),
        ("one-bit-lamb", {"trust_ratio_factor_change": 0.001}),
        ("zero-one-adam", {"local_interval_clipper": 2}),
        ("zero-one-adam", {"variance_update_scaler": 1}),
        ("bf16-adamw", {"betas": (0.9, 0.99)}),
    ]:
        error = Trace(name).replay(**changed)
        assert not error <= TOLERANCE, f"{name} with {changed}: {error:.3g} of the largest parameter"


@check(4)
def a_replay_without_an_exchange_fails():
    assert Trace("adamw").replay(exchange=False) > TOLERANCE


def replay_with_a_change(name, change):
    """Replays a trace, with change(parameters) after its last step."""
    trace, steps = Trace(name), []
    reached = trace._reached

    def after_the_change(optimizer, parameters):
        steps.append(0)
        if len(steps) == trace.steps:
            with torch.no_grad():
                change(parameters)
        return reached(optimizer, parameters)

    trace._reached = after_the_change
    return trace.replay()


@check(4)
def one_wrong_element_is_found():
    largest = Trace("adamw").read("params.f32").max()

    def add(value):
        return lambda parameters: parameters[-1].add_(value)

    assert replay_with_a_change("adamw", add(0.0)) <= TOLERANCE
    assert not replay_with_a_change("adamw", add(2e-4 * float(largest))) <= TOLERANCE
    assert not replay_with_a_change("zero-one-adam", lambda parameters: parameters[0][0, 0].fill_(float("nan"))) <= TOLERANCE
    with raises(AssertionError, "not their masters, rounded"):
        replay_with_a_change("bf16-adamw", add(1.0))


if __name__ == "__main__":
    run(globals())
