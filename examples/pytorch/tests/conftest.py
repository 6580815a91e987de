"""Helpers of the tests: tensors, gradients, comparisons, and double-precision oracles that follow docs/algorithms."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import slamb.torch

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
SHAPES = ((6, 5), (7,), (3, 2, 4), ())

CLASSES = {
    "adamw": slamb.torch.AdamW,
    "lamb": slamb.torch.Lamb,
    "slamb": slamb.torch.Slamb,
    "one_bit_adam": slamb.torch.OneBitAdam,
    "one_bit_lamb": slamb.torch.OneBitLamb,
    "zero_one_adam": slamb.torch.ZeroOneAdam,
}
# Settings by which a few steps of small tensors reach every phase, and one process makes compression errors.
SHORT = {
    "adamw": {},
    "lamb": {},
    "slamb": {"dense_below": 0, "k": 0.25, "beta3": 0.5},
    "one_bit_adam": {"warm_up_steps": 3, "compress_single_rank": True},
    "one_bit_lamb": {"warm_up_steps": 3, "compress_single_rank": True},
    "zero_one_adam": {
        "variance_freeze_step": 4,
        "variance_update_scaler": 1,
        "local_interval_scaler": 2,
        "local_interval_clipper": 2,
        "compress_single_rank": True,
    },
}


# Needs other packages: pytest collects this folder only if it is named, as `run.sh --clients` does.
collect_ignore = ["clients"]


def pytest_terminal_summary(terminalreporter, config):
    if not any("clients" in Path(one).parts for one in config.args):
        terminalreporter.write_line("Not in this run: tests/clients; see bash tests/run.sh --clients")


def skip_before(major, minor, what):
    return pytest.mark.skipif((major, minor) > VERSION, reason=f"torch {torch.__version__} has no {what}")


# ---------------------------------------------------------------------------------------------------------------- Tensors


def noise(shape, seed, dtype=torch.float32):
    """Normal random numbers, the same at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_parameters(shapes=SHAPES, dtype=torch.float32, seed=1):
    return [torch.nn.Parameter(noise(shape, 97 * seed + i, dtype)) for i, shape in enumerate(shapes)]


def copies_of(parameters):
    return [torch.nn.Parameter(p.detach().clone()) for p in parameters]


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def give_gradients(parameters, step, factor=1.0):
    """Gradients that depend on the step and the parameter's number only."""
    for i, p in enumerate(parameters):
        p.grad = noise(p.shape, 1000 * step + i + 1, p.dtype) * factor


def train(optimizer, first, last, factor=1.0):
    """Takes steps first … last."""
    for step in range(first, last + 1):
        give_gradients(parameters_of(optimizer), step, factor)
        optimizer.step()


def gradients_of(parameters):
    return [np.asarray(p.grad.double().numpy()) for p in parameters]


def bytes_of(tensor):
    """The elements of a tensor in logical order, as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def contents(value):
    """A value whose equality is that of all bits of all tensors within."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), bytes_of(value))
    if isinstance(value, dict):
        return {key: contents(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [contents(one) for one in value]
    return value


def assert_same_bits(actual, expected):
    are_same = contents(actual) == contents(expected)
    assert are_same, "bits differ"


def assert_near(parameters, expected, rtol=1e-5, atol=1e-6):
    """Requires tensors or arrays to agree element by element."""
    assert len(parameters) == len(expected)
    for i, (p, e) in enumerate(zip(parameters, expected)):
        actual = p.detach().double().numpy() if isinstance(p, torch.Tensor) else p
        wanted = e.detach().double().numpy() if isinstance(e, torch.Tensor) else e
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol, err_msg=f"tensor {i}")


def follow_torch(optimizer, reference, steps, change=lambda optimizer, step: None, before=lambda parameters: None, first=1):
    """Requires the optimizer to follow one of torch.optim, with the same changes before each step."""
    for step in range(first, first + steps):
        for one in (optimizer, reference):
            give_gradients(parameters_of(one), step)
            change(one, step)
        before(parameters_of(reference))
        optimizer.step()
        reference.step()
        assert_near(parameters_of(optimizer), parameters_of(reference))


# ---------------------------------------------------------------------------------------------------------------- Oracles


def norm(x):
    return math.sqrt(float(np.sum(np.square(x))))


class Oracle:
    """What the oracles share: parameters and moments in double precision.

    :param bound: of updates, as a number: update_bound.md (1). It may change between steps
    """

    def __init__(self, parameters, decay=0.01, betas=(0.9, 0.999), eps=1e-8, clip=math.inf, bound=math.inf):
        self.p = [np.array(p.detach().double().numpy()) for p in parameters]
        self.m = [np.zeros_like(p) for p in self.p]
        self.v = [np.zeros_like(p) for p in self.p]
        self.decay = [decay] * len(self.p) if isinstance(decay, float) else list(decay)
        self.beta1, self.beta2 = betas
        self.eps, self.clip, self.bound = eps, clip, bound
        self.t = 0

    def clipped(self, gradients):  # lamb.md (2)
        length = math.sqrt(sum(norm(g) ** 2 for g in gradients))
        return [g * min(1.0, self.clip / (length + 1e-6)) for g in gradients]

    def accumulate(self, gradients, with_variance=True):  # lamb.md (3), (4)
        self.t += 1
        for i, g in enumerate(gradients):
            self.m[i] = self.beta1 * self.m[i] + (1 - self.beta1) * g
            if with_variance:
                self.v[i] = self.beta2 * self.v[i] + (1 - self.beta2) * g * g

    def direction(self, i, corrected):  # lamb.md (5), update_bound.md (1)
        m, v = self.m[i], self.v[i]
        if corrected:
            m, v = m / (1 - self.beta1**self.t), v / (1 - self.beta2**self.t)
        return np.clip(m / (np.sqrt(v) + self.eps), -self.bound, self.bound)

    def move(self, i, rate, corrected, ratio=lambda p, u: 1.0):  # lamb.md (5) to (7)
        u = self.direction(i, corrected) + self.decay[i] * self.p[i]
        self.p[i] = self.p[i] - rate * ratio(self.p[i], u) * u

    def count_at_bound(self, corrected=False):
        """The elements whose update is at the bound after the last step."""
        return sum(int(np.sum(np.abs(self.direction(i, corrected)) >= self.bound)) for i in range(len(self.p)))

    def is_at_bound(self):
        return self.count_at_bound() > 0


class LambOracle(Oracle):
    """docs/algorithms/lamb.md. AdamW: adapt is False for all tensors."""

    def __init__(self, parameters, adapt=True, lower=0.0, upper=math.inf, corrected=True, **options):
        super().__init__(parameters, **options)
        self.adapt = [adapt] * len(self.p) if isinstance(adapt, bool) else list(adapt)
        self.lower, self.upper, self.corrected = lower, upper, corrected

    def ratio(self, p, u):  # (9)
        r = 1.0 if norm(p) == 0 or norm(u) == 0 else norm(p) / norm(u)
        return min(max(r, self.lower), self.upper)

    def step(self, gradients, rates):
        self.accumulate(self.clipped(gradients))
        for i, rate in enumerate(rates if isinstance(rates, list) else [rates] * len(self.p)):
            self.move(i, rate, self.corrected, self.ratio if self.adapt[i] else lambda p, u: 1.0)


class SlambOracle(Oracle):
    """docs/algorithms/slamb.md for one rank, with all elements selected (k = None), or the largest part k of each tensor."""

    def __init__(self, parameters, k=None, beta3=0.93, lower=0.01, upper=1000.0, adapt=True, **options):
        super().__init__(parameters, **options)
        self.k, self.beta3, self.lower, self.upper, self.adapt = k, beta3, lower, upper, adapt
        self.last = [np.zeros(p.shape) for p in self.p]  # the step at which an element was last in M

    def selected(self, i):
        m = self.m[i]
        if self.k is None or m.ndim <= 1:
            return np.ones(m.shape, bool)
        count = math.ceil(self.k * m.size)  # compressors.md (15); a tensor is one tile
        least = np.sort(np.abs(m).reshape(-1))[-count]
        return np.abs(m) >= least

    def step(self, gradients, rate):
        self.accumulate(self.clipped(gradients))
        for i, p in enumerate(self.p):
            u = self.direction(i, corrected=True) + self.decay[i] * p  # (5)
            chosen = self.selected(i)
            self.last[i][chosen] = self.t
            s = self.beta3 ** (self.t - self.last[i])  # (6), (7)
            ratio = lambda part: norm(p[part]) / norm(u[part]) if norm(p[part]) * norm(u[part]) > 0 else 1.0  # noqa: E731
            if not self.adapt:
                scale = 1.0
            elif p.ndim <= 1:
                scale = ratio(chosen)  # (12)
            else:
                scale = np.clip(s * ratio(chosen) + (1 - s) * ratio(~chosen), self.lower, self.upper)  # (11), N = 1
            self.p[i] = p - rate * scale * u


class SignExchange:
    """docs/algorithms/one_bit_exchange.md (1) to (9) for one rank, with sign, fused scales and two errors."""

    def __init__(self, parameters):
        self.worker = [np.zeros_like(p) for p in parameters]
        self.server = [np.zeros_like(p) for p in parameters]

    @staticmethod
    def coded(signal, active):
        count = sum(int(a.sum()) for a in active)
        scale = math.sqrt(sum(norm(x[a]) ** 2 for x, a in zip(signal, active)) / count)
        return [np.where(a, np.where(x >= 0, scale, -scale), 0.0) for x, a in zip(signal, active)]

    def __call__(self, signal, active=None):
        active = active or [np.ones(x.shape, bool) for x in signal]
        z = [x + e for x, e in zip(signal, self.worker)]
        sent = self.coded(z, active)
        y = [c + e for c, e in zip(sent, self.server)]
        result = self.coded(y, active)
        self.worker = [np.where(a, x - c, 0.0) for x, c, a in zip(z, sent, active)]
        self.server = [np.where(a, x - c, 0.0) for x, c, a in zip(y, result, active)]
        return result


class OneBitAdamOracle(Oracle):
    """docs/algorithms/one_bit_adam.md for one rank; `compressed`: with compress_single_rank, sign and zero_aware."""

    def __init__(self, parameters, warm_up, compressed=False, **options):
        super().__init__(parameters, **options)
        self.warm_up, self.exchange = warm_up, SignExchange(self.p) if compressed else None

    def step(self, gradients, rate):
        self.accumulate(self.clipped(gradients), with_variance=self.t < self.warm_up)
        if self.t > self.warm_up and self.exchange:
            self.m = self.exchange(self.m, [v > 0 for v in self.v])
        for i in range(len(self.p)):
            self.move(i, rate, corrected=False)


class OneBitLambOracle(Oracle):
    """docs/algorithms/one_bit_lamb.md for one rank, which compresses nothing."""

    def __init__(self, parameters, warm_up, **options):
        super().__init__(parameters, **options)
        self.warm_up = warm_up
        self.mean_ratio = [0.0] * len(self.p)
        self.factor = [1.0] * len(self.p)
        self.fresh = None

    def warm_up_ratio(self, i, p, u):  # (5), (6)
        c = 1.0 if norm(p) == 0 or norm(u) == 0 else min(max(norm(p) / norm(u), 0.01), 10.0)
        if c != 1.0:
            self.mean_ratio[i] = 0.9 * self.mean_ratio[i] + 0.1 * c
        return c

    def frozen_ratio(self, i, p, u):  # (15) to (20)
        d, fresh = np.sqrt(self.v[i]) + self.eps, np.sqrt(self.fresh[i]) + self.eps
        h = float(np.max(d / fresh))
        if self.decay[i] > 0:
            rho = min(1.0, norm(self.direction(i, corrected=False)) / norm(u)) if norm(u) > 0 else 1.0
            h = rho * h + 1 - rho
        h = min(max(h, 0.5), 4.0)
        self.factor[i] = min(max(h, 0.9 * self.factor[i]), 1.1 * self.factor[i])
        return self.mean_ratio[i] * self.factor[i]

    def step(self, gradients, rate):
        warms_up = self.t < self.warm_up
        self.accumulate(gradients, with_variance=warms_up)
        if not warms_up:
            before = self.fresh or self.v
            self.fresh = [self.beta2 * v + (1 - self.beta2) * g * g for v, g in zip(before, gradients)]  # (14)
        for i in range(len(self.p)):
            ratio = self.warm_up_ratio if warms_up else self.frozen_ratio
            self.move(i, rate, False, lambda p, u, i=i, ratio=ratio: ratio(i, p, u))


class ZeroOneAdamOracle(Oracle):
    """docs/algorithms/zero_one_adam.md for one rank, which compresses nothing."""

    def __init__(self, parameters, freeze_step, update_scaler, **options):
        super().__init__(parameters, **options)
        self.freeze_step, self.update_scaler = freeze_step, update_scaler
        self.interval, self.refreshes = 1, 0
        self.is_frozen = False

    def step(self, gradients, rate):
        tau = self.t + 2  # (1), and accumulate() has not counted this step
        refreshes = not self.is_frozen and tau % self.interval == 0
        self.accumulate(gradients, with_variance=refreshes)
        if refreshes:
            self.refreshes += 1
            if self.refreshes % self.update_scaler == 0:  # (7)
                self.interval *= 2
        self.is_frozen = self.is_frozen or tau > self.freeze_step
        for i in range(len(self.p)):
            self.move(i, rate, corrected=False)
