"""Trains a task by a method, on the ranks that torchrun has started."""

from __future__ import annotations

import argparse
import ast
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Optional, Protocol

import torch
import torch.distributed as dist
from torch import nn

from training.curves import Row, draw, read_log, write_log
from training.methods import METHODS, Method, Setup


class Task(Protocol):
    """A model and its data. The arguments are those of the command line."""

    measure: str  # the name of the validation loss: the first of `measures`
    measure_text: str  # for a plot
    description: str  # of the data

    def __init__(self, arguments: argparse.Namespace) -> None: ...

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    def make_model(self) -> nn.Module: ...

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of `arguments.batch` examples for a training step, drawn by the generator."""

    def validation_batches(self, rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's part of the validation data."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean over a batch, which training reduces."""

    def measures(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """Means over a batch, by name, for validation."""


def main(kind: type[Task], description: Optional[str]) -> None:
    """The program of a task."""
    given = parse(kind, description)
    if given.out is not None and not given.resume:
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SystemExit(f"{sys.argv[0]}: --out: {error}") from None
    if "RANK" not in os.environ:
        raise SystemExit(f"{sys.argv[0]}: start it by torchrun: torchrun --nproc_per_node 4 {' '.join(sys.argv)}")
    dist.init_process_group("gloo")
    try:
        train(kind(given), given)
    finally:
        dist.destroy_process_group()


def parse(kind: type[Task], description: Optional[str] = None, arguments: Optional[list[str]] = None) -> argparse.Namespace:
    """The arguments of a training.

    :param arguments: None: those of the command line
    """
    parser = argparse.ArgumentParser(
        description=(description or "").strip(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", required=True, choices=METHODS, metavar="NAME", help=", ".join(METHODS))
    parser.add_argument("--lr", type=_positive, required=True, help="the highest learning rate")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="arguments of the optimizer or of the hook")
    parser.add_argument("--steps", type=_count, help="of the training")
    parser.add_argument("--batch", type=_count, help="examples of each rank in a step")
    parser.add_argument("--warm-up", type=part, default=0.05, help="the part of the steps in which the rate rises (0.05)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial parameters and the batches (0)")
    parser.add_argument("--out", type=Path, help="a folder for log.csv, the plot and checkpoints")
    parser.add_argument("--evaluations", type=_count, default=20, help="during the training (20)")
    parser.add_argument("--checkpoints", type=_count, default=0, help="during the training; the last one is kept (0)")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    parser.add_argument("--stop-after", type=_count, help="end after this step, as if interrupted")
    kind.add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        given.options = options_of(given.set)
    except ValueError as error:
        parser.error(str(error))
    if (given.resume or given.checkpoints) and given.out is None:
        parser.error("--resume and --checkpoints need --out")
    return given


def options_of(texts: list[str]) -> dict[str, Any]:
    """Arguments of Python by name.

    :param texts: as "k=0.3" or "compressor=top_k"
    :raises ValueError: for one without a name
    """
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set: {text!r} is not NAME=VALUE, such as k=0.3")
        if name in ("lr", "params"):
            raise ValueError(f"--set: {name} is not an option of its own; give the learning rate by --lr")
        try:
            options[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            options[name] = value
    return options


def train(task: Task, given: argparse.Namespace) -> list[Row]:
    """Trains on the ranks of the default process group, with a progress bar on rank 0.

    :param given: see `parse`
    :return: the log
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(given.seed)
    model = task.make_model()
    batches = batches_of(given.seed, rank, ranks)
    method = METHODS[given.method](Setup(model, given.lr, given.steps, given.options))
    if (given.checkpoints or given.resume) and not method.can_be_saved:
        raise ValueError(f"--checkpoints, --resume: {given.method} cannot continue from a checkpoint")
    warm_up = max(1, round(given.warm_up * given.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(method.optimizer, lambda step: part_of_rate(step, warm_up, given.steps))
    validation = task.validation_batches(rank, ranks)
    if rank == 0:
        elements = sum(p.numel() for p in model.parameters())
        print(f"{given.method}, {ranks} ranks, {elements} parameters; {task.description}", flush=True)

    run = _Run({**_training(given), "ranks": ranks}, method, schedule, model, batches)
    if given.resume:
        run.load(given.out)
    evaluate_at = {round(given.steps * i / given.evaluations) for i in range(1, given.evaluations + 1)}
    save_at = {round(given.steps * i / (given.checkpoints + 1)) for i in range(1, given.checkpoints + 1)}
    last = given.steps if given.stop_after is None else min(given.steps, given.stop_after)
    progress = _progress(range(run.step, last), given.steps, run.step) if rank == 0 else range(run.step, last)
    for _ in progress:
        run.take_step(task)
        if run.step in evaluate_at:
            measures = run.evaluate(task, validation)
            if rank == 0:
                if given.out is not None:
                    write_log(given.out / "log.csv", run.log)
                if hasattr(progress, "set_postfix"):
                    progress.set_postfix({task.measure: f"{measures[task.measure]:.3f}"})
        if run.step in save_at:
            run.save(given.out)
    if rank == 0 and run.log:
        end = run.log[-1]
        values = ", ".join(f"{name} {end[name]:.4f}" for name in end if name not in ("step", "sent_bytes", "seconds"))
        print(f"step {end['step']:.0f}: {values}, {end['sent_bytes']:.0f} bytes sent, {end['seconds']:.1f} s", flush=True)
        if given.out is not None:
            try:
                draw(given.out / "plot.svg", {given.method: [read_log(given.out / "log.csv")]}, task.measure, task.measure_text)
            except ImportError as error:
                print(f"no plot.svg: {error}", flush=True)
    return run.log


def batches_of(seed: int, rank: int, ranks: int) -> torch.Generator:
    """The generator that draws the batches of a rank, other ones on each rank."""
    return torch.Generator().manual_seed(seed * ranks + rank + 1)


def evaluate(task: Task, model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Means over the validation data of all ranks. Collective."""
    sums: dict[str, torch.Tensor] = {}
    count = torch.zeros((), dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for inputs, targets in batches:
            count += len(inputs)
            for name, mean in task.measures(model(inputs), targets).items():
                sums[name] = sums.get(name, 0.0) + mean.double() * len(inputs)
    model.train()
    total = torch.stack([*sums.values(), count])
    dist.all_reduce(total)
    return {name: (value / total[-1]).item() for name, value in zip(sums, total)}


def _checkpoint(folder: Path, step: int) -> Path:
    """The file of this rank."""
    return folder / f"rank{dist.get_rank()}-step{step}.pt"


def _checkpoints(folder: Path) -> dict[int, Path]:
    """The files of this rank, by step."""
    return {int(file.stem.split("-step")[1]): file for file in folder.glob(f"rank{dist.get_rank()}-step*.pt")}


def _training(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments that must be equal when a training continues."""
    others = ("out", "evaluations", "checkpoints", "resume", "stop_after", "set")
    return {name: value for name, value in vars(given).items() if name not in others}


class _Run:
    """A training at some step."""

    def __init__(
        self, training: dict[str, Any], method: Method, schedule: Any, model: nn.Module, batches: torch.Generator
    ) -> None:
        """
        :param training: says how it is trained; a checkpoint of another training is refused
        """
        self.training = training
        self.method = method
        self.schedule = schedule
        self.model = model
        self.batches = batches
        self.step = 0
        self.log: list[Row] = []
        self._train_loss = 0.0  # the sum since the last evaluation, of this rank
        self._losses = 0
        self._seconds = 0.0  # without evaluations
        self._sent_elsewhere = 0.0  # by an earlier process, less what evaluations have sent

    def take_step(self, task: Task) -> None:
        inputs, targets = task.batch(self.batches)
        start = time.perf_counter()
        self.method.optimizer.zero_grad()
        loss = task.loss(self.method.forward(inputs), targets)
        loss.backward()
        self.method.optimizer.step()
        self.schedule.step()
        self._train_loss += loss.item()
        self._seconds += time.perf_counter() - start
        self._losses += 1
        self.step += 1

    def sent_bytes(self) -> float:
        """Of training steps."""
        return self.method.sent_bytes(self.step) + self._sent_elsewhere

    def evaluate(self, task: Task, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
        """Adds a row to the log. Collective.

        :return: the measures on these batches
        """
        sent = self.sent_bytes()
        measures = self.method.with_common_parameters(lambda: evaluate(task, self.model, batches))
        self._sent_elsewhere -= self.sent_bytes() - sent
        train_loss = torch.tensor(self._train_loss / self._losses / dist.get_world_size(), dtype=torch.float64)
        dist.all_reduce(train_loss)
        self.log.append(
            {"step": self.step, "train_loss": train_loss.item(), **measures, "sent_bytes": sent, "seconds": self._seconds}
        )
        self._train_loss, self._losses = 0.0, 0
        return measures

    def save(self, folder: Path) -> None:
        """Writes a checkpoint, and removes older ones when all ranks have written theirs. Collective."""
        saved = self.method.saved
        state = {
            "training": self.training,
            "step": self.step,
            "log": self.log,
            "sums": (self._train_loss, self._losses, self._seconds),
            "sent_bytes": self.sent_bytes(),
            "batches": self.batches.get_state(),
            "model": self.model.state_dict(),
            "optimizer": self.method.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "hook": saved.state_dict() if saved is not None else None,
        }
        file = _checkpoint(folder, self.step)
        torch.save(state, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)
        dist.barrier()
        for older in _checkpoints(folder).values():
            if older != file:
                older.unlink()

    def load(self, folder: Path) -> None:
        """Continues from the last step of which all ranks have a checkpoint. Collective.

        :raises FileNotFoundError, ValueError: if there is none, or of another training
        """
        steps: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(steps, set(_checkpoints(folder)))
        common = set.intersection(*steps)
        if not common:
            found = ", ".join(f"rank {rank}: {sorted(of_rank) or 'none'}" for rank, of_rank in enumerate(steps))
            raise FileNotFoundError(f"--resume: {folder} has no step of which all ranks have a checkpoint; steps of {found}")
        file = _checkpoint(folder, max(common))
        state = torch.load(file, weights_only=False)
        for name, value in self.training.items():
            if state["training"].get(name) != value:
                raise ValueError(f"--resume: {file} is of a training with {name} = {state['training'].get(name)}, not {value}")
        self.step, self.log = state["step"], state["log"]
        self._train_loss, self._losses, self._seconds = state["sums"]
        self.batches.set_state(state["batches"])
        self.model.load_state_dict(state["model"])
        self.method.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.method.saved is not None:
            self.method.saved.load_state_dict(state["hook"])
        self._sent_elsewhere = state["sent_bytes"] - self.method.sent_bytes(self.step)


def part_of_rate(step: int, warm_up: int, steps: int) -> float:
    """The part of the highest rate in step `step` + 1: rises linearly, then falls as a cosine to 0."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _progress(steps: range, total: int, first: int) -> Any:
    """With a bar where there is a terminal and tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        return steps
    return tqdm(steps, total=total, initial=first, disable=None, unit=" steps")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not an integer of at least 1")
    return int(text)


def part(text: str) -> float:
    """A type of arguments."""
    if not 0.0 <= _number(text) <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1]")
    return float(text)


def _positive(text: str) -> float:
    if not 0.0 < _number(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return float(text)


def _number(text: str) -> float:
    """NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
