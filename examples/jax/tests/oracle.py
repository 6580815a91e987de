"""The equations of docs/algorithms, in double precision: what slamb.jax must compute. Nothing here is taken from the library."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Tensor:
    size: int
    decay: float = 0.01
    adapt: bool = True
    compress: bool = True


@dataclass
class Piece:
    """The elements of one tensor that lie in one chunk (one_bit_exchange.md, "Where elements go")."""

    tensor: int
    first: int  # of the tensor
    count: int
    owner: int
    code: int  # of the first element in the owner's message


def pieces_of(tensors: list[Tensor], ranks: int) -> tuple[list[Piece], int]:
    """All pieces, and the number of codes of a message: (11), (13)."""
    n = sum(t.size for t in tensors if t.compress)
    chunk = 128 * -(-n // (128 * ranks))
    codes, pieces, before = [0] * ranks, [], 0
    for number, tensor in enumerate(tensors):
        if not tensor.compress:
            continue
        at = 0
        while at < tensor.size:
            owner = (before + at) // chunk
            count = min(tensor.size - at, (owner + 1) * chunk - before - at)
            pieces.append(Piece(number, at, count, owner, codes[owner]))
            codes[owner] += 16 * -(-count // 16)
            at += count
        before += tensor.size
    return pieces, max(codes)


def philox(key: int, low: int, high: int) -> list[int]:
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    mask = 0xFFFFFFFF
    k0, k1 = key & mask, key >> 32
    x = [low & mask, low >> 32, high & mask, high >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k0, b & mask, (a >> 32) ^ x[3] ^ k1, a & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return x


def draws(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """U of elements first … of a stream: compressors.md (13)."""
    all_draws = []
    for counter in range(first // 8, (first + count - 1) // 8 + 1):
        words = philox(seed, counter, stream)
        all_draws += [(words[i // 2] >> 16 * (i % 2)) & 0xFFFF for i in range(8)]
    return (np.array(all_draws[first % 8 : first % 8 + count], np.float64) + 0.5) / 2**16


@dataclass
class Exchange:
    """The compressed exchange of one training: one_bit_exchange.md (1) … (9), on all ranks."""

    tensors: list[Tensor]
    ranks: int
    compressor: str
    seed: int = 0
    keeps_worker_error: bool = True  # a fault to plant
    swaps_chunks: bool = False  # likewise
    worker: list[list[np.ndarray]] = field(default_factory=list)  # [ranks][tensors]
    server: list[np.ndarray] = field(default_factory=list)  # [tensors]

    def __post_init__(self) -> None:
        self.pieces, self.codes = pieces_of(self.tensors, self.ranks)
        self.worker = [[np.zeros(t.size) for t in self.tensors] for _ in range(self.ranks)]
        self.server = [np.zeros(t.size) for t in self.tensors]

    def __call__(self, t: int, signals: list[list[np.ndarray]]) -> list[np.ndarray]:
        """The mean of `signals` [ranks][tensors], sent in few bits."""
        decoded = []
        for rank in range(self.ranks):
            z = [x + e for x, e in zip(signals[rank], self.worker[rank])]
            sent = self._coded(z, [self.pieces], t << 16 | rank)
            decoded.append(sent)
            if self.keeps_worker_error:
                old = self.worker[rank]
                self.worker[rank] = [a - b if s.compress else e for a, b, s, e in zip(z, sent, self.tensors, old)]
        y = [sum(d[i] for d in decoded) / self.ranks + self.server[i] for i in range(len(self.tensors))]
        mean = [np.zeros(s.size) for s in self.tensors]
        for rank in range(self.ranks):
            own = [p for p in self.pieces if p.owner == rank]
            coded = self._coded(y, [own], ~(t << 16 | rank) & (2**64 - 1))
            for p in own:
                mean[p.tensor][p.first : p.first + p.count] = coded[p.tensor][p.first : p.first + p.count]
        self.server = [a - b for a, b in zip(y, mean)]
        for i, tensor in enumerate(self.tensors):
            if not tensor.compress:
                mean[i] = sum(signals[rank][i] for rank in range(self.ranks)) / self.ranks
                self.server[i] = np.zeros(tensor.size)
        if self.swaps_chunks:
            mean = [m[::-1].copy() for m in mean]
        return mean

    # decode(encode(z)) over groups of pieces; the elements of a group share a scale of signs.
    def _coded(self, z: list[np.ndarray], groups: list[list[Piece]], stream: int) -> list[np.ndarray]:
        result = [np.zeros(s.size) for s in self.tensors]
        for group in groups:
            parts = [z[p.tensor][p.first : p.first + p.count] for p in group]
            if self.compressor == "sign":
                n = sum(len(part) for part in parts)
                scale = math.sqrt(sum(float(part @ part) for part in parts) / n) if n else 0.0
                coded = [np.where(part >= 0, scale, -scale) for part in parts]
            else:
                levels = {"int4": 7, "int8": 127}[self.compressor]
                coded = [self._integers(part, p, levels, stream) for part, p in zip(parts, group)]
            for part, p in zip(coded, group):
                result[p.tensor][p.first : p.first + p.count] = part
        return result

    # compressors.md (5) … (7), with blocks of 128
    def _integers(self, z: np.ndarray, piece: Piece, levels: int, stream: int) -> np.ndarray:
        u = draws(self.seed, stream, piece.owner * self.codes + piece.code, piece.count)
        result = np.zeros(len(z))
        for first in range(0, len(z), 128):
            block = slice(first, first + 128)
            scale = float(np.abs(z[block]).max())
            if scale > 0:
                q = np.floor(levels * np.abs(z[block]) / scale + u[block])
                result[block] = np.sign(z[block]) * q * scale / levels
        return result


@dataclass
class Training:
    """AdamW and LAMB: lamb.md (1) … (7)."""

    recipe: str
    tensors: list[Tensor]
    parameters: list[np.ndarray]
    rate: float
    exchange: Exchange | None  # None: dense
    beta1: float = 0.9
    beta2: float = 0.999
    max_norm: float = math.inf
    taken: int = 0

    def __post_init__(self) -> None:
        self.epsilon = 1e-6 if self.recipe == "lamb" else 1e-8
        self.parameters = [np.asarray(p, np.float64).ravel() for p in self.parameters]
        self.momentum = [np.zeros(t.size) for t in self.tensors]
        self.variance = [np.zeros(t.size) for t in self.tensors]

    def step(self, gradients: list[list[np.ndarray]]) -> None:
        """Takes a step with gradients [ranks][tensors], or skips it if one is not finite."""
        signals = [[np.asarray(g, np.float64).ravel() for g in of_rank] for of_rank in gradients]
        if not all(np.isfinite(g).all() for of_rank in signals for g in of_rank):
            return
        self.taken += 1
        t = self.taken
        if self.exchange is None:
            mean = [sum(of_rank[i] for of_rank in signals) / len(signals) for i in range(len(self.tensors))]
        else:
            mean = self.exchange(t, signals)
        norm = math.sqrt(sum(float(g @ g) for g in mean))
        factor = min(1.0, self.max_norm / (norm + 1e-6))
        for i, tensor in enumerate(self.tensors):
            g = factor * mean[i]
            m = self.momentum[i] = self.beta1 * self.momentum[i] + (1 - self.beta1) * g
            v = self.variance[i] = self.beta2 * self.variance[i] + (1 - self.beta2) * g * g
            p = self.parameters[i]
            u = m / (1 - self.beta1**t) / (np.sqrt(v / (1 - self.beta2**t)) + self.epsilon) + tensor.decay * p
            self.parameters[i] = p - self.rate * self._ratio(p, u, tensor) * u

    def _ratio(self, p: np.ndarray, u: np.ndarray, tensor: Tensor) -> float:
        if self.recipe == "adamw" or not tensor.adapt:
            return 1.0
        norms = np.linalg.norm(p), np.linalg.norm(u)
        return norms[0] / norms[1] if min(norms) > 0 else 1.0


@dataclass
class OneBitTraining:
    """1-bit Adam and 1-bit LAMB: one_bit_adam.md (1) … (9), one_bit_lamb.md (1) … (20), update_bound.md (1), (2), (4), (5), (7), (8)."""

    recipe: str
    tensors: list[Tensor]
    parameters: list[np.ndarray]
    rate: float
    exchange: Exchange
    warm_up: int
    beta1: float = 0.9
    beta2: float = 0.999
    taken: int = 0

    epsilon = 1e-8
    average = 0.9

    def __post_init__(self) -> None:
        n = len(self.tensors)
        self.parameters = [np.asarray(p, np.float64).ravel() for p in self.parameters]
        self.momentum = [np.zeros(t.size) for t in self.tensors]
        self.variance = [np.zeros(t.size) for t in self.tensors]
        self.late = [np.zeros(t.size, bool) for t in self.tensors]
        self.fresh = [np.zeros(t.size) for t in self.tensors]
        self.mean_ratio, self.factor, self.scale = np.zeros(n), np.ones(n), np.ones(n)
        own = (1 - self.beta1) / math.sqrt((1 - self.beta2) * (1 - self.beta1**2 / self.beta2))
        self.bound = (1 + 2**-16) * own

    def step(self, gradients: list[list[np.ndarray]]) -> None:
        signals = [[np.asarray(g, np.float64).ravel() for g in of_rank] for of_rank in gradients]
        if not all(np.isfinite(g).all() for of_rank in signals for g in of_rank):
            return
        self.taken += 1
        if self.taken <= self.warm_up:
            tensors = range(len(self.tensors))
            self._warm_up_step([sum(of_rank[i] for of_rank in signals) / len(signals) for i in tensors])
            if self.taken == self.warm_up:
                self._switch()
        else:
            self._compressed_step(signals)

    def _warm_up_step(self, mean: list[np.ndarray]) -> None:
        for i, tensor in enumerate(self.tensors):
            m = self.momentum[i] = self.beta1 * self.momentum[i] + (1 - self.beta1) * mean[i]
            v = self.variance[i] = self.beta2 * self.variance[i] + (1 - self.beta2) * mean[i] ** 2
            w = np.clip(m / (np.sqrt(v) + self.epsilon), -self.bound, self.bound)
            p = self.parameters[i]
            u = w + tensor.decay * p
            c = 1.0
            if self.recipe == "one_bit_lamb":
                c = self._ratio(p, u, tensor)
                if c != 1.0:
                    self.mean_ratio[i] = self.average * self.mean_ratio[i] + (1 - self.average) * c
            self.parameters[i] = p - self.rate * c * u

    def _ratio(self, p: np.ndarray, u: np.ndarray, tensor: Tensor) -> float:
        norms = np.linalg.norm(p), np.linalg.norm(u)
        return float(np.clip(norms[0] / norms[1], 0.01, 10.0)) if tensor.adapt and min(norms) > 0 else 1.0

    def _switch(self) -> None:
        self.fresh = [v.copy() for v in self.variance]
        self.late = [v == 0 for v in self.variance]
        if self.recipe != "one_bit_lamb":
            return
        counted = [i for i, t in enumerate(self.tensors) if t.compress and t.size > 0]
        q = {i: np.linalg.norm(self.momentum[i]) / math.sqrt(self.tensors[i].size) for i in counted}
        mean = sum(q.values()) / len(q)
        for i in counted:
            self.scale[i] = min(mean / q[i], 1e6) if q[i] > 0 else 1.0

    def _compressed_step(self, signals: list[list[np.ndarray]]) -> None:
        before = self.momentum
        x = [
            [z * (self.beta1 * m + (1 - self.beta1) * g) for z, m, g in zip(self.scale, before, of_rank)]
            for of_rank in signals
        ]
        received = self.exchange(self.taken, x)
        self.momentum = [r / z for r, z in zip(received, self.scale)]
        frozen_bound = self.bound / math.sqrt(1 - self.beta2**self.warm_up)
        for i, tensor in enumerate(self.tensors):
            m, v, late, p = self.momentum[i], self.variance[i], self.late[i], self.parameters[i]
            start = (1 - self.beta2) * (m / (1 - self.beta1)) ** 2
            its = np.where(late & (v == 0), start, v)
            bound = np.where(late, self.bound, frozen_bound)
            w = np.where(its > 0, np.clip(m / (np.sqrt(its) + self.epsilon), -bound, bound), 0.0)
            u = w + tensor.decay * p
            rate = 1.0
            if self.recipe == "one_bit_lamb":
                rate = self._frozen_rate(i, before[i], w, u)
            self.parameters[i] = p - self.rate * rate * u
            continued = self.beta2 * v + (1 - self.beta2) * m**2 / (1 - self.beta1)
            self.variance[i] = np.where(late, np.where(v == 0, start, continued), v)

    def _frozen_rate(self, i: int, before: np.ndarray, w: np.ndarray, u: np.ndarray) -> float:
        tensor, m, v = self.tensors[i], self.momentum[i], self.variance[i]
        g = (m - self.beta1 * before) / (1 - self.beta1)
        self.fresh[i] = self.beta2 * self.fresh[i] + (1 - self.beta2) * g**2
        if not tensor.adapt:
            return 1.0
        if self.mean_ratio[i] == 0:
            return self._ratio(self.parameters[i], u, tensor)
        quotient = (np.sqrt(v) + self.epsilon) / (np.sqrt(self.fresh[i]) + self.epsilon)
        h = float(np.where(self.late[i], 1.0, quotient).max())
        if tensor.decay > 0:
            rho = min(1.0, np.linalg.norm(w) / np.linalg.norm(u)) if np.linalg.norm(u) > 0 else 1.0
            h = h * rho + 1 - rho
        last = self.factor[i]
        self.factor[i] = np.clip(np.clip(h, 0.5, 4.0), 0.9 * last, 1.1 * last)
        return self.mean_ratio[i] * self.factor[i]
