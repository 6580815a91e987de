"""Compares methods on the same training, with the same effort for each.

    python3 examples/pytorch/compare.py run lm.csv --task lm
    python3 examples/pytorch/compare.py report lm.csv --plot lm.svg

`run` trains every method with learning rates of one grid on seed 0: from the rate 0.004 upwards or downwards, until rates on both
sides of the best are tried, and at least four. If the lowest of them has failed, lower ones are tried too. A training has failed if
its loss is no better than that of a guess, which gives all outcomes the same probability. Then `run` trains with the best rate on
the seeds 1, 2 and 3. The logs of all trainings are added to the file. Trainings that it has already are not repeated, so `run` can
be interrupted, and continues.

`report` prints tables in Markdown: the loss for each rate (search), at the end (end), and at each tenth of the steps (course). Of
several files, it prints common ones. --plot draws the losses during the trainings, --ends those at the end against the bytes sent.

    sudo python3 examples/pytorch/compare.py run lm-100mbit.csv --task lm --link 100mbit --best-of lm.csv --seeds 1
    python3 examples/pytorch/compare.py times lm-100mbit.csv lm-1gbit.csv --losses lm.csv

With --link, every rank is in a network namespace of its own, and its link to the others is limited (see bench/network/run.sh). With
--best-of, rates are the best of another file. `times` prints when each method has reached the loss at which torch's AdamW ended.
Links do not change losses, so one seed gives the seconds; with --losses, other files give the losses of several seeds.

A method is written with its options, as in "slamb k=0.3 local_steps=10". The option lr gives the rate, and nothing is searched.
What follows -- goes to the training, for example -- --steps 2400.
"""

import argparse
import contextlib
import csv
import fcntl
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import train_images
import train_lm

from training import loop, report
from training.curves import read_log
from training.methods import METHODS as KNOWN_METHODS

HERE = Path(__file__).parent
METHODS = (
    "ddp",
    "ddp+fp16",
    "ddp+powersgd",
    "ddp+int8",
    "adamw",
    "lamb",
    "slamb",
    "slamb+int8",
    "slamb_by_differences",
    "one_bit_adam",
    "one_bit_lamb",
    "zero_one_adam",
)
TASKS = {"lm": train_lm.LanguageModel, "images": train_images.Images}
RATES = tuple(0.000125 * 2**i for i in range(10))  # 0.000125 … 0.064


class Failure(Exception):
    """Ends the program with a message."""


class Results:
    """The logs of trainings, in one file.

    Its first line says how they were trained. The others have a column for the method, the rate and the seed, and those of a log.
    """

    def __init__(self, file: Path, training: str = "") -> None:
        """
        :param training: must be that of the file, if there is one; empty: any, and the file must be there
        :raises Failure: for a file that does not fit
        """
        self.file = file
        self.logs: report.Logs = {}
        self.training = training
        if not file.exists() and training:
            return
        try:
            first, *lines = file.read_text(encoding="utf-8").splitlines() or [""]
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"{file} cannot be read: {error}") from None
        if not first.startswith("# "):
            raise Failure(f"{file} is not a file of compare.py")
        if training and first[2:] != training:
            raise Failure(f"{file} has trainings by '{first[2:]}', not by '{training}'; name another file")
        self.training = first[2:]
        for number, row in enumerate(csv.DictReader(lines), 3):
            try:
                key = (row.pop("method"), float(row.pop("lr")), int(row.pop("seed")))
                self.logs.setdefault(key, []).append({name: float(value) for name, value in row.items()})
            except (KeyError, TypeError, ValueError, AttributeError):
                raise Failure(f"{file}, line {number}: not a row of compare.py") from None
        if not self.logs and not training:
            raise Failure(f"{file} has no trainings")
        for log in self.logs.values():
            if not {"step", "train_loss", "sent_bytes", "seconds"} < log[0].keys() or not report.GUESS.keys() & log[0].keys():
                raise Failure(f"{file} lacks a column: step, train_loss, {' or '.join(report.GUESS)}, sent_bytes, seconds")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else adds trainings meanwhile.

        :raises Failure: if somebody does, or the folder is not writable
        """
        try:
            lock = self.file.with_suffix(".lock").open("w")
        except OSError as error:
            raise Failure(f"{self.file} cannot be written: {error}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"another compare.py adds to {self.file}") from None
            try:
                yield
            finally:
                self.file.with_suffix(".lock").unlink()

    def add(self, method: str, lr: float, seed: int, log: list[dict[str, float]]) -> None:
        """Also to the file, which is replaced as a whole."""
        self.logs[method, lr, seed] = log
        names = ["method", "lr", "seed", *next(iter(self.logs.values()))[0]]
        new = self.file.with_suffix(".new")
        with new.open("w", newline="", encoding="utf-8") as stream:
            stream.write(f"# {self.training}\n")
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(names)
            for (of_method, of_lr, of_seed), rows in sorted(self.logs.items()):
                for row in rows:
                    writer.writerow([of_method, of_lr, of_seed, *(format(row[name], ".7g") for name in names[3:])])
        new.replace(self.file)


class Comparison:
    """Trainings that fill in what results lack."""

    def __init__(self, results: Results, task: str, ranks: int, link: str, options: list[str], rates: list[float]) -> None:
        """
        :param link: limits the links between ranks, as "100mbit"; empty: no limit
        :param options: of the training
        :param rates: the grid
        """
        self.results = results
        self.task = task
        self.ranks = ranks
        self.link = link
        self.options = options
        self.rates = rates

    def search(self, method: str) -> float:
        """The best rate for a method."""
        fixed = [option for option in method.split()[1:] if option.startswith("lr=")]
        if fixed:
            return float(fixed[0][3:])
        losses: dict[int, float] = {}

        def loss(i: int) -> float:
            if i not in losses:
                log = self.train(method, self.rates[i], report.SEARCH_SEED)
                losses[i] = report.final_loss(log)
            return losses[i]

        start = self.rates.index(0.004) if 0.004 in self.rates else len(self.rates) // 2
        wanted = {start}
        while wanted:
            for i in sorted(wanted):
                loss(i)
            best = min(losses, key=losses.__getitem__)
            wanted = {i for i in (best - 1, best + 1) if 0 <= i < len(self.rates)} - losses.keys()
            lowest = min(losses)
            if math.isinf(losses[lowest]) and lowest > 0:
                wanted.add(lowest - 1)
            if not wanted and len(losses) < min(4, len(self.rates)):
                wanted = {min(set(range(len(self.rates))) - losses.keys(), key=lambda i: abs(i - best))}
        return self.rates[best]

    def train(self, method: str, lr: float, seed: int) -> list[dict[str, float]]:
        """The log of a training, which is made if it is not there."""
        if (method, lr, seed) not in self.results.logs:
            name, *settings = method.split()
            settings = [option for option in settings if not option.startswith("lr=")]
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    *self.launcher(folder),
                    *(str(HERE / f"train_{self.task}.py"), "--method", name, "--lr", str(lr), "--seed", str(seed)),
                    *("--out", folder, *self.options, *(["--set", *settings] if settings else [])),
                ]
                environment = {"OMP_NUM_THREADS": "1", **os.environ}
                run_to_its_end(command, environment)
                log = read_log(Path(folder) / "log.csv")
            self.results.add(method, lr, seed, log)
            print(f"{method}, lr {lr:g}, seed {seed}: {log[-1][report.measure_of(log)]:.4g}", flush=True)
        return self.results.logs[method, lr, seed]

    def launcher(self, folder: str) -> list[str]:
        """The command that starts a script on all ranks."""
        if self.link:
            script = str(HERE.parent.parent / "bench" / "network" / "run.sh")
            limits = ["--rates", self.link, "--ranks", str(self.ranks)]
            return ["bash", script, *limits, "--launcher", "environment", "--program", sys.executable, "--"]
        ranks = ["--standalone", "--nproc_per_node", str(self.ranks)]
        return [sys.executable, "-m", "torch.distributed.run", *ranks, "-r", "1", "-t", "1", "--log_dir", folder]


def run_to_its_end(command: list[str], environment: dict[str, str]) -> None:
    """Whatever ends this program, the command and its processes end first, in order.

    :raises Failure: if the command fails
    """
    with tempfile.TemporaryFile("w+") as said:
        # In a session of its own, so that Ctrl-C reaches it only as the signal below.
        child = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = child.wait()
        except BaseException:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
            raise
        if status != 0:
            said.seek(0)
            raise Failure(f"{' '.join(command)} ended with status {status}:\n{said.read()}")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        work()
    except (Failure, ImportError, OSError, ValueError) as error:
        raise SystemExit(f"compare.py: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def work() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip(), formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser("run", help="trains")
    run.add_argument("file", type=Path, help="the file of results, which is made or continued")
    run.add_argument("--task", choices=("lm", "images"), required=True)
    run.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD", help=f"({' '.join(METHODS)})")
    run.add_argument("--rates", nargs="+", type=float, default=RATES, metavar="RATE", help="the grid (0.000125 … 0.064, doubled)")
    run.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3], metavar="SEED", help="(1 2 3)")
    run.add_argument("--ranks", type=int, default=4, help="number of processes (4)")
    run.add_argument("--link", default="", metavar="RATE", help="limits the ranks' links, as 100mbit; needs root")
    run.add_argument("--best-of", type=Path, metavar="FILE", help="take the best rates of these results")
    show = actions.add_parser("report", help="prints tables")
    show.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files of results, of the same training")
    show.add_argument("--plot", type=Path, metavar="FILE", help="also draw the losses, as SVG or PNG")
    show.add_argument("--ends", type=Path, metavar="FILE", help="also draw the losses at the end against the bytes sent")
    show.add_argument("--methods", nargs="+", metavar="METHOD", help="only these, in this order")
    tables = {"nargs": "+", "choices": report.TABLES, "default": report.TABLES}
    show.add_argument("--tables", **tables, help=f"only these ({' '.join(report.TABLES)})")
    show.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="SEED", help="(1 2 3)")

    times = actions.add_parser("times", help="prints times until dense AdamW's loss")
    times.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files of results, one for each link")
    times.add_argument("--losses", type=Path, nargs="+", metavar="FILE", help="whose losses are taken, of all seeds")
    times.add_argument("--within", type=float, default=0.0, metavar="PERCENT", help="the loss may be so much above the target (0)")
    times.add_argument("--target", default="ddp", metavar="METHOD", help="whose final loss is the target (ddp)")

    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    if given.action == "run":
        compare(given, options)
        return
    if options:
        raise Failure(f"{' '.join(options)}: only run passes options to trainings")
    if given.action == "report":
        report.write(together(given.files), given.methods, _different(given.seeds), given.plot, given.tables, given.ends)
    else:
        if not 0.0 <= given.within < 100.0:
            raise Failure(f"--within: {given.within:g} is not in [0, 100)")
        print_times(given)


def print_times(given: argparse.Namespace) -> None:
    losses = None if given.losses is None else together(given.losses)
    links: dict[str, report.Logs] = {}
    for file in given.files:
        results = Results(file)
        if losses is not None and _without_link(results.training) != (of_losses := Results(given.losses[0]).training):
            raise Failure(f"{file} has trainings by '{results.training}', which are not those by '{of_losses}' over a link")
        if file.stem in links:
            raise Failure(f"two files are named {file.stem}, but the name stands for the link")
        links[file.stem] = results.logs
    report.write_times(links, given.target, losses, given.within)


def _without_link(training: str) -> str:
    return re.sub(r"( ranks) (\d+[kmg]?bit|unlimited)(?=[ ;])", r"\1", training)


def together(files: list[Path]) -> report.Logs:
    """The logs of all files.

    :raises Failure: if they are not of the same training, or two have a training in common
    """
    first, *others = [Results(file) for file in files]
    logs = dict(first.logs)
    for other in others:
        if other.training != first.training:
            raise Failure(f"{other.file} has trainings by '{other.training}', but {first.file} by '{first.training}'")
        for method, lr, seed in logs.keys() & other.logs.keys():
            raise Failure(f"{other.file} and another file have a training by {method}, rate {lr:g}, seed {seed}")
        logs |= other.logs
    return logs


def _different(seeds: list[int]) -> list[int]:
    if len(set(seeds)) != len(seeds):
        raise Failure(f"--seeds: {' '.join(map(str, seeds))} has a seed twice")
    return seeds


def compare(given: argparse.Namespace, options: list[str]) -> None:
    """All that can be seen to be wrong is an error before the first training."""
    for method in given.methods:
        if not method or method.split()[0] not in KNOWN_METHODS:
            raise Failure(f"--methods: '{method}' is none of {', '.join(KNOWN_METHODS)}, with options behind the name")
        loop.options_of([option for option in method.split()[1:] if not option.startswith("lr=")])
    if list(given.rates) != sorted(set(given.rates)) or given.rates[0] <= 0.0:
        raise Failure("--rates: must be above 0 and ascend")
    _different(given.seeds)
    if given.ranks < 1:
        raise Failure(f"--ranks: {given.ranks} is not at least 1")
    own = ("--method", "--lr", "--seed", "--out", "--resume", "--stop-after", "--set", "--checkpoints")
    for option in options:
        if option.startswith("--") and any(name.startswith(option.partition("=")[0]) for name in own):
            raise Failure(f"{option} behind -- is set by compare.py itself")
    kind = TASKS[given.task]
    data = kind(loop.parse(kind, arguments=["--method", "lamb", "--lr", "1", *options])).description
    training = " ".join([f"train_{given.task}.py, {given.ranks} ranks", *([given.link] if given.link else []), *options])
    results = Results(given.file, f"{training}; {data}; torch {torch.__version__}")
    comparison = Comparison(results, given.task, given.ranks, given.link, options, list(given.rates))
    with results.locked():
        if given.best_of is None:
            best = {method: comparison.search(method) for method in given.methods}
        else:
            searched = Results(given.best_of).logs
            best = {method: report.rate_of(searched, method) for method in given.methods}
            missing = [method for method, lr in best.items() if lr is None]
            if missing:
                raise Failure(f"{given.best_of} has no search that found a rate for {', '.join(missing)}")
        for method, lr in best.items():
            for seed in given.seeds:
                comparison.train(method, lr, seed)


if __name__ == "__main__":
    main()
