"""Trains the language model of train_lm.py by many ranks in one process, with each of several methods.

    cmake --preset examples && cmake --build --preset examples --target slamb_many_ranks
    python3 examples/many_ranks/train.py ranks.csv --lr 0.016 --methods lamb "one_bit_lamb warm_up_steps=20 update_bound=off"
    python3 examples/pytorch/compare.py report ranks.csv --tables end course

Every rank has parameters of its own, and an optimizer in a thread of its own, over slamb::thread_communicator. One forward and
backward pass computes the losses and gradients of all ranks. Model, data, batches, rates and settings of the methods are those of
examples/pytorch/train_lm.py with as many processes: the rate rises for 1/20 of the steps, and then falls as a cosine to 0. Only
matrices decay, and only they have a trust ratio; with --adapt all, vectors have one too, and the numbers are those of train_lm.py.
The validation loss is that of the mean of the ranks' parameters.

The tensors are on the device of the library: on the host, or on a GPU, where products are in bfloat16 and a pass is a CUDA graph.

A method is written with its options, as in "slamb k=0.3 local_steps=10". The option lr gives its rate. Without it, and without
--lr, the rate is searched on seed 0 as compare.py does. The file of results has the format of compare.py. A training is added to
it when it has ended, and is not repeated, so the program can be interrupted, and continues. With --details the file also has the
drift, which is the distance of the ranks' parameters from their mean by the norm of the mean; the bytes sent per parameter and step; and
the milliseconds of a pass and of a step of all ranks.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Optional

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "examples" / "pytorch")]

import compare  # noqa: E402
import train_lm  # noqa: E402
from ranks import Ranks, RanksError, load  # noqa: E402
from stacked_gpt import StackedGpt  # noqa: E402

from training import loop, methods, report  # noqa: E402
from training.curves import Row  # noqa: E402

LIBRARY = Path(os.environ.get("SLAMB_MANY_RANKS", ROOT / "build" / "examples" / "bin" / "libslamb_many_ranks.so"))
OPTIMIZERS = {  # by the class in slamb.torch: the name in optimizers.cpp
    "AdamW": "adamw",
    "Lamb": "lamb",
    "Slamb": "slamb",
    "OneBitAdam": "one_bit_adam",
    "OneBitLamb": "one_bit_lamb",
    "ZeroOneAdam": "zero_one_adam",
}
CORPUS_BYTES = 150_000_000  # after which no more files of --corpus are read
SIZES = {"ranks": 16, "width": 64, "layers": 2, "heads": 4, "context": 64, "batch": 2, "steps": 600, "evaluations": 20}
WARM_UP = 0.05  # as train_lm.py has it


class Trainings(compare.Comparison):
    """Trainings in this process that fill in what results lack."""

    def __init__(self, given: argparse.Namespace) -> None:
        """
        :param given: the arguments of the command line
        :raises compare.Failure, ValueError, RanksError: for what is seen to be wrong before a training
        """
        for name in SIZES:
            if getattr(given, name) < 1:
                raise compare.Failure(f"--{name}: {getattr(given, name)} is not at least 1")
        self.given = given
        self.end = time.monotonic() + given.seconds
        self.library = load(given.library)
        self.device = torch.device(self.library.many_ranks_device().decode())
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu and not torch.cuda.is_available():
            raise compare.Failure(f"--library: {given.library} is for a GPU, and PyTorch finds none")
        text = None if given.corpus is None else train_lm.read_sources(given.corpus, enough=CORPUS_BYTES)
        self.language = train_lm.LanguageModel(given, text)
        self.validation = self.language.validation_batches(0, 1)
        for method in given.methods:
            probe = torch.zeros(given.ranks, 1, device=self.device)
            probe.grad = torch.zeros_like(probe)
            with self.ranks_of(method, [probe]):
                pass
        training = f"{settings_of(given, self.on_gpu)}; {self.language.description}; torch {torch.__version__}"
        super().__init__(compare.Results(given.file, training), "lm", given.ranks, "", [], list(compare.RATES))
        self.longest = max((log[-1]["seconds"] for log in self.results.logs.values()), default=0.0)  # of a training

    def train(self, method: str, lr: float, seed: int) -> list[Row]:
        """The log of a training, which is made if it is not there."""
        if (method, lr, seed) not in self.results.logs:
            name = f"{method}, lr {lr:g}, seed {seed}"
            start = time.monotonic()
            if start + self.longest > self.end:
                raise compare.Failure(f"{name} would end after --seconds; the next run of the program goes on with it")
            try:
                log = self.make_log(method, lr, seed)
            except RanksError as error:
                raise compare.Failure(f"{name}: {error}") from None
            self.results.add(method, lr, seed, log)
            seconds = time.monotonic() - start
            self.longest = max(self.longest, seconds)
            print(f"{name}: {log[-1][report.measure_of(log)]:.4g}, {seconds:.0f} s", flush=True)
        return self.results.logs[method, lr, seed]

    def ranks_of(self, method: str, parameters: list[torch.Tensor]) -> Ranks:
        """The optimizers of a method."""
        optimizer, options = optimizer_of(method, self.given.steps)
        return Ranks(self.library, optimizer, options, parameters, methods.WEIGHT_DECAY, self.given.adapt == "all")

    def make_log(self, method: str, lr: float, seed: int) -> list[Row]:
        steps, ranks = self.given.steps, self.given.ranks
        torch.manual_seed(seed)
        dtype = torch.bfloat16 if self.on_gpu else torch.float32
        model = StackedGpt(self.language.make_model().to(self.device), ranks, dtype)
        batches = [loop.batches_of(seed, rank, ranks) for rank in range(ranks)]
        evaluate_at = {round(steps * i / self.given.evaluations) for i in range(1, self.given.evaluations + 1)}
        log: list[Row] = []
        losses: list[float] = []  # since the last evaluation
        of_passes = of_steps = 0.0  # seconds
        inputs = torch.zeros(ranks, self.given.batch, self.given.context, dtype=torch.int64, device=self.device)
        targets = torch.zeros_like(inputs)
        compute = self.replayed(lambda: pass_of(model, inputs, targets))
        with self.ranks_of(method, list(model.parameters.values())) as optimizers:
            for step in range(1, steps + 1):
                batch = [torch.stack(of_ranks) for of_ranks in zip(*map(self.language.batch, batches))]
                start = self.now()
                inputs.copy_(batch[0])
                targets.copy_(batch[1])
                of_ranks = compute()
                passed = self.now()
                optimizers.step(lr * self.part_of_rate(step))
                losses.append(of_ranks.mean().item())
                of_passes += passed - start
                of_steps += self.now() - passed
                if step in evaluate_at:
                    row = {"step": step, "train_loss": sum(losses) / len(losses), "bits_per_byte": self.bits_per_byte(model)}
                    row |= {"sent_bytes": optimizers.sent_bytes(), "seconds": of_passes + of_steps}
                    if self.given.details:
                        sent = row["sent_bytes"] / step / sum(p[0].numel() for p in model.parameters.values())
                        row |= {"drift": model.drift(), "bytes_per_parameter": sent}
                        row |= {"ms_passes": 1e3 * of_passes / step, "ms_step": 1e3 * of_steps / step}
                    log.append(row)
                    losses.clear()
        return log

    def part_of_rate(self, step: int) -> float:
        """The part of the highest rate in this step, counted from 1."""
        warm_up = max(1, round(self.given.warm_up * self.given.steps))
        part = loop.part_of_rate(step - 1, warm_up, self.given.steps)
        return part if step <= warm_up else self.given.final_rate + (1.0 - self.given.final_rate) * part

    def replayed(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """The function; on a GPU as a graph, which reads and writes the same memory in every call."""
        if not self.on_gpu:
            return work
        torch.cuda.empty_cache()  # of the training before: the library does not allocate by PyTorch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    def now(self) -> float:
        """The time, after all work on the device."""
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    @torch.no_grad()
    def bits_per_byte(self, model: StackedGpt) -> float:
        """On the validation data, with the mean of the ranks' parameters."""
        mean = model.mean_parameters()
        sequences = [(i[None].to(self.device), t[None].to(self.device)) for i, t in self.validation]
        losses = [model.losses(i, t, mean) * i.shape[1] for i, t in sequences]
        return torch.cat(losses).sum().item() / sum(len(i) for i, _ in self.validation) / math.log(2.0)


def pass_of(model: StackedGpt, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Computes the gradients of all ranks. Returns their losses."""
    model.zero_grad()
    of_ranks = model.losses(inputs, targets)
    of_ranks.sum().backward()
    return of_ranks.detach()


def settings_of(given: argparse.Namespace, on_gpu: bool) -> str:
    """For the first line of a file: what its trainings have in common. Options are left out where that keeps older files valid."""
    words = [f"--{name} {getattr(given, name)}" for name in SIZES if name != "ranks"] + [f"--adapt {given.adapt}"]
    words += ["--biases no"] if given.biases == "no" else []
    words += [f"--warm-up {given.warm_up:g}"] if given.warm_up != WARM_UP else []
    words += [f"--final-rate {given.final_rate:g}"] if given.final_rate else []
    words += ["--details"] if given.details else []
    return f"many_ranks/train.py, {given.ranks} ranks{' on a GPU' if on_gpu else ''}, {' '.join(words)}"


def optimizer_of(method: str, steps: int) -> tuple[str, str]:
    """The name and the options of a method's optimizer, for `Ranks`.

    :raises compare.Failure, ValueError: for a method that there is not, or text that is no option
    """
    name, *texts = method.split() or [""]
    if name not in methods.OWN:
        raise compare.Failure(f"--methods: '{method}' is none of {', '.join(methods.OWN)}, with options behind the name")
    kind, settings = methods.OWN[name]
    options = {**settings(steps), **loop.options_of([text for text in texts if not text.startswith("lr=")])}
    texts = ["off" if value is None else str(value) for value in options.values()]  # None: as slamb.torch has it
    return OPTIMIZERS[kind], " ".join(map("=".join, zip(options, texts)))


def parse(arguments: Optional[list[str]] = None) -> argparse.Namespace:
    """
    :param arguments: None: those of the command line
    """
    parser = argparse.ArgumentParser(description=__doc__.strip(), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the file of results, which is made or continued")
    names = " ".join(methods.OWN)
    parser.add_argument("--methods", nargs="+", default=list(methods.OWN), metavar="METHOD", help=f"({names})")
    parser.add_argument("--lr", nargs="+", type=float, metavar="RATE", help="the highest learning rates; left out: searched")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="SEED", help="(1 2 3)")
    texts = {"ranks": "number of them, at most 64", "context": "bytes of a sequence", "batch": "sequences of a rank in a step"}
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{texts.get(name, '')} ({default})".lstrip())
    adapted = "tensors with LAMB's trust ratio: matrices (default), or all, as in train_lm.py"
    parser.add_argument("--adapt", choices=("matrices", "all"), default="matrices", help=adapted)
    parser.add_argument("--biases", choices=("yes", "no"), default="yes", help="in the linear layers of blocks (yes)")
    parser.add_argument("--warm-up", type=loop.part, default=WARM_UP, help=f"the part of the steps in which the rate rises ({WARM_UP:g})")
    parser.add_argument("--final-rate", type=loop.part, default=0.0, help="the rate at the end, as a part of the highest (0)")
    parser.add_argument("--corpus", type=Path, help="a folder whose Python sources replace those of the standard library")
    parser.add_argument("--details", action="store_true", help="also columns for the drift of ranks, bytes and times")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no training that would end later than that")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="the built library; SLAMB_MANY_RANKS names another default")
    return parser.parse_args(arguments)


def work(given: argparse.Namespace) -> None:
    trainings = Trainings(given)
    with trainings.results.locked():
        for method in given.methods:
            has_rate = any(option.startswith("lr=") for option in method.split())
            rates = [trainings.search(method)] if has_rate or given.lr is None else given.lr
            for lr in rates:
                for seed in given.seeds:
                    trainings.train(method, lr, seed)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        work(parse())
    except (compare.Failure, RanksError, OSError, ValueError) as error:
        raise SystemExit(f"train.py: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
