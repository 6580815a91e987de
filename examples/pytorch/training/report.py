"""Tables of many trainings, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Optional

from training.curves import Row, draw, draw_ends, mean_and_sd

Logs = dict[tuple[str, float, int], list[Row]]  # by method, rate and seed

DENSE = ("adamw", "ddp", "lamb")
SEARCH_SEED = 0
TABLES = ("search", "end", "course")
GUESS = {"bits_per_byte": 8.0, "cross_entropy": math.log(10.0)}  # the loss of a model that gives all outcomes one probability


def measure_of(log: list[Row]) -> str:
    """The name of the validation loss: the column behind train_loss."""
    names = list(log[0])
    return names[names.index("train_loss") + 1]


def is_dense(method: str) -> bool:
    """Whether its ranks send every element of the gradient as a float."""
    name, *options = method.split()
    return name in DENSE and not any(option.startswith("compressor=") for option in options)


def final_loss(log: list[Row]) -> float:
    """Infinite if the training has failed: it is no better than a guess, or has diverged."""
    return loss_at(log[-1], measure_of(log))


def loss_at(row: Row, measure: str) -> float:
    """Infinite if it is no better than a guess."""
    return row[measure] if row[measure] < GUESS[measure] else math.inf


def best_rate(logs: Logs, method: str) -> Optional[float]:
    """The rate with the least loss in the search; None if nothing was searched, or all has failed."""
    searched = {lr: final_loss(log) for (name, lr, seed), log in logs.items() if name == method and seed == SEARCH_SEED}
    best = min(searched, key=searched.__getitem__, default=None)
    return None if best is None or math.isinf(searched[best]) else best


def rate_of(logs: Logs, method: str) -> Optional[float]:
    """The rate that the name of the method gives, or the best of the search, or the only one. None if there is no such rate."""
    fixed = [option[3:] for option in method.split()[1:] if option.startswith("lr=")]
    if fixed:
        return float(fixed[0])
    best = best_rate(logs, method)
    rates = {lr for name, lr, _ in logs if name == method}
    return best if best is not None else rates.pop() if len(rates) == 1 else None


def counted(logs: Logs, seeds: list[int], methods: Optional[list[str]]) -> dict[str, tuple[float, list[list[Row]]]]:
    """By method: its rate, and the logs of the seeds. Says which methods lack a seed, and leaves them out."""
    found = {}
    for name in methods or dict.fromkeys(name for name, _, _ in logs):
        lr = rate_of(logs, name)
        missing = [seed for seed in seeds if (name, lr, seed) not in logs]
        if lr is None:
            print(f"\n(`{name}` is left out: no search has found a rate.)")
        elif missing:
            print(f"\n(`{name}` is left out: no training at its best rate {lr:g} with seed {', '.join(map(str, missing))}.)")
        else:
            found[name] = lr, [logs[name, lr, seed] for seed in seeds]
    return found


def write(
    logs: Logs,
    methods: Optional[list[str]],
    seeds: list[int],
    plot: Optional[Path],
    tables: Collection[str] = TABLES,
    ends: Optional[Path] = None,
) -> None:
    """Prints tables, and draws plots.

    :param plot: of the losses during the trainings
    :param tables: some of TABLES
    :param ends: a plot of the losses at the end
    :raises ValueError: for a method of which there is nothing
    :raises ImportError: for a plot without matplotlib
    """
    if plot is not None or ends is not None:
        import matplotlib  # noqa: F401
    for name in methods or ():
        if not any(name == method for method, _, _ in logs):
            raise ValueError(f"there is no training by '{name}', only by {', '.join(dict.fromkeys(m for m, _, _ in logs))}")
    measure = measure_of(next(iter(logs.values())))
    if "search" in tables:
        write_search(logs, methods, measure)
    by_method = counted(logs, seeds, methods) if plot or ends or set(tables) - {"search"} else {}
    if not by_method:
        return
    if "end" in tables:
        write_ends(by_method, measure, seeds)
    if "course" in tables:
        write_course(by_method, measure)
    if plot is not None:
        draw(plot, {name: of_seeds for name, (_, of_seeds) in by_method.items()}, measure, measure.replace("_", " "))
    if ends is not None:
        of_methods = {
            name: (_sent_bytes(of_seeds) / 1e6, *mean_and_sd([final_loss(log) for log in of_seeds]))
            for name, (_, of_seeds) in by_method.items()
        }
        draw_ends(ends, of_methods, measure.replace("_", " ") + " at the end")


def write_search(logs: Logs, methods: Optional[list[str]], measure: str) -> None:
    searched: dict[str, dict[float, float]] = {}
    for (name, lr, seed), log in logs.items():
        if seed == SEARCH_SEED and (not methods or name in methods):
            searched.setdefault(name, {})[lr] = final_loss(log)
    if not searched:
        print(f"\n(No rates were searched: there is no training with seed {SEARCH_SEED}.)")
        return
    rates = sorted({lr for losses in searched.values() for lr in losses})
    print(f"\n{measure} at the end by learning rate, seed {SEARCH_SEED}:\n")
    _table(["method", *(f"{lr:g}" for lr in rates)])
    for name in methods or searched:
        losses = searched.get(name, {})
        best = min(losses.values(), default=math.nan)
        cells = [_loss(losses[lr], losses[lr] == best) if lr in losses else "" for lr in rates]
        print(f"| `{name}` | {' | '.join(cells)} |")


def write_ends(by_method: dict[str, tuple[float, list[list[Row]]]], measure: str, seeds: list[int]) -> None:
    """The ends, with losses relative to the best dense method, and bytes relative to a dense method."""
    ends = {name: [final_loss(log) for log in of_seeds] for name, (_, of_seeds) in by_method.items()}
    dense = {name: mean_and_sd(losses)[0] for name, losses in ends.items() if is_dense(name)}
    best = min((name for name in dense if math.isfinite(dense[name])), key=dense.__getitem__, default=None)
    log = next(iter(by_method.values()))[1][0]
    more = [name for name in log[0] if name not in ("step", "train_loss", measure, "sent_bytes", "seconds")]
    sent = {name: _sent_bytes(of_seeds) for name, (_, of_seeds) in by_method.items()}
    dense_bytes = next((sent[name] for name in dense), math.nan)
    print(f"\nThe end, step {log[-1]['step']:.0f}, mean ± standard deviation of the seeds {', '.join(map(str, seeds))}:\n")
    against = f"beside `{best}`" if best else "beside the best dense method"
    _table(["method", "lr", measure, against, *more, "MB sent", "dense bytes / bytes"])
    for name, (lr, of_seeds) in by_method.items():
        mean, deviation = mean_and_sd(ends[name])
        relative = f"{100 * (mean / dense[best] - 1):+.1f} %" if best and math.isfinite(mean) else ""
        others = [_with_deviation([one[-1][column] for one in of_seeds]) for column in more]
        times_less = f"{dense_bytes / sent[name]:.1f}" if sent[name] and not math.isnan(dense_bytes) else ""
        cells = [f"{lr:g}", _with_deviation(ends[name]), relative, *others, f"{sent[name] / 1e6:.1f}", times_less]
        print(f"| `{name}` | {' | '.join(cells)} |")


def _sent_bytes(of_seeds: list[list[Row]]) -> float:
    return sum(log[-1]["sent_bytes"] for log in of_seeds) / len(of_seeds)


def write_course(by_method: dict[str, tuple[float, list[list[Row]]]], measure: str) -> None:
    """At each tenth of the steps, or at each evaluation if there are fewer."""
    rows = min(len(log) for _, of_seeds in by_method.values() for log in of_seeds)
    columns = min(10, rows)
    shown = [rows * column // columns - 1 for column in range(1, columns + 1)]
    log = next(iter(by_method.values()))[1][0]
    print(f"\n{measure} during the training, mean ± standard deviation:\n")
    _table(["method", *(f"step {log[i]['step']:.0f}" for i in shown)])
    for name, (_, of_seeds) in by_method.items():
        cells = [_with_deviation([loss_at(log[i], measure) for log in of_seeds]) for i in shown]
        print(f"| `{name}` | {' | '.join(cells)} |")


def write_times(files: dict[str, Logs], target_of: str, losses: Optional[Logs] = None, within: float = 0.0) -> None:
    """Seconds until the validation loss is that of dense AdamW at its end with the same seed, by link.

    :param files: by link: the logs of one seed and one rate for each method, which give the seconds
    :param target_of: the method whose final loss is the target
    :param losses: with the same rates, give the losses of all their seeds but that of the search; None: those of the files
    :param within: by how many percent the loss may be above the target
    :raises ValueError: if there are several trainings by a method in a file, no end of the target, or no losses or seconds of a
        method
    """
    for link, logs in files.items():
        timed: dict[str, tuple[float, list[Row]]] = {}
        for (name, lr, seed), log in logs.items():
            if name in timed:
                raise ValueError(f"{link} has several trainings by {name}; times are of one rate and seed: --best-of, --seeds 1")
            timed[name] = lr, log
        if target_of not in timed:
            raise ValueError(f"{link} has no training by {target_of}, whose final loss is the target")
        courses = {name: _courses(logs, losses, name, lr) for name, (lr, _) in timed.items()}
        targets = {seed: final_loss(course) * (1.0 + within / 100.0) for seed, course in courses[target_of].items()}
        if not targets or not all(map(math.isfinite, targets.values())):
            raise ValueError(f"no training by {target_of} for {link} has ended with a finite loss, which is the target")
        for name, (lr, _) in timed.items():
            if missing := targets.keys() - courses[name].keys():
                seeds = ", ".join(map(str, sorted(missing)))
                raise ValueError(f"no losses of {name} for {link} at rate {lr:g} with seed {seeds}")
        measure = measure_of(timed[target_of][1])
        end = f"the end of `{target_of}`" + (f" and {within:g} %" if within else "")
        print(f"\n{link}: time until {measure} {_with_deviation(list(targets.values()))}, {end}:\n")
        _table(["method", "seconds of the training", "steps until then", "seconds until then", "times as fast"])
        slow: list[float] = []
        for name in sorted(timed, key=lambda name: name != target_of):
            log = timed[name][1]
            steps = [steps_until(courses[name][seed], loss) for seed, loss in targets.items()]
            seconds = _seconds_at(steps, log, f"{link}, {name}")
            slow = slow or seconds
            if None in steps:
                by = "" if len(steps) == 1 else f" by {steps.count(None)} of {len(steps)}"
                losses_of = _with_deviation([final_loss(courses[name][seed]) for seed in targets])
                cells = [f"not reached{by} ({losses_of})", "", ""]
            else:
                ratios = [slow_one / one for slow_one, one in zip(slow, seconds)]
                cells = [_with_deviation(steps, 0), _with_deviation(seconds, 0), _with_deviation(ratios, 1)]
            print(f"| `{name}` | {log[-1]['seconds']:.0f} | {' | '.join(cells)} |")


def _courses(logs: Logs, losses: Optional[Logs], method: str, lr: float) -> dict[int, list[Row]]:
    """By seed: the logs of a file, or those of others without the search."""
    if losses is not None:
        logs = {key: log for key, log in losses.items() if key[2] != SEARCH_SEED}
    return {seed: log for (name, of_lr, seed), log in sorted(logs.items()) if name == method and of_lr == lr}


def _seconds_at(steps: list[Optional[float]], log: list[Row], name: str) -> list[float]:
    """Of the steps that are not None.

    :raises ValueError: if the log lacks one
    """
    seconds = {row["step"]: row["seconds"] for row in log}
    for step in steps:
        if step is not None and seconds.get(step, 0.0) <= 0.0:
            raise ValueError(f"{name}: no seconds at step {step:g}, where the losses have one")
    return [seconds[step] for step in steps if step is not None]


def steps_until(log: list[Row], loss: float) -> Optional[float]:
    """The first step at which an evaluation has this loss or less. None if there is none."""
    return next((row["step"] for row in log if row[measure_of(log)] <= loss), None)


def _table(heads: list[str]) -> None:
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")


def _loss(value: float, is_best: bool) -> str:
    if not math.isfinite(value):
        return "failed"
    return f"**{value:.3f}**" if is_best else f"{value:.3f}"


def _with_deviation(values: list[float], digits: int = 3) -> str:
    mean, deviation = mean_and_sd(values)
    if not math.isfinite(mean):
        return "failed"
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"
