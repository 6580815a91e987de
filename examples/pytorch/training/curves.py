"""Logs of trainings: their files, and plots of them."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path

Row = dict[str, float]  # step, train_loss, the measures of the task, sent_bytes (by rank 0), seconds (without evaluations)


def write_log(file: Path, rows: list[Row]) -> None:
    """Replaces the file. It is complete, or the old one."""
    new = file.with_suffix(".new")
    with new.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: format(value, ".10g") for name, value in row.items()})
    new.replace(file)


def read_log(file: Path) -> list[Row]:
    with file.open(newline="", encoding="utf-8") as stream:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]


def mean_and_sd(values: list[float]) -> tuple[float, float]:
    """The standard deviation is that of a sample; 0 for one value. Both are infinite if a value is not finite."""
    if not all(math.isfinite(value) for value in values):
        return math.inf, math.inf
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def draw(file: Path, logs: dict[str, list[list[Row]]], measure: str, text: str) -> None:
    """Plots a measure against steps and against bytes sent, each curve the mean of its logs.

    :raises ImportError: without matplotlib
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "slamb"  # the same file from the same numbers
    figure, (by_step, by_bytes) = pyplot.subplots(1, 2, figsize=(14, 5), sharey=True, layout="constrained")
    colors = pyplot.get_cmap("tab20").colors
    for number, (name, runs) in enumerate(logs.items()):
        style = {"label": name, "color": colors[number % len(colors)], "linestyle": ("-", "--")[number % 2]}
        means = [statistics.fmean(row[measure] for row in rows) for rows in zip(*runs)]
        by_step.plot([row["step"] for row in runs[0]], means, **style)
        by_bytes.plot([row["sent_bytes"] / 1e6 for row in runs[0]], means, **style)
    # Without the first tenth of the steps, whose losses are large, and without what diverges.
    late = [row[measure] for runs in logs.values() for run in runs for row in run if row["step"] > run[-1]["step"] / 10]
    finite = sorted(filter(math.isfinite, late))
    if finite:
        by_step.set_ylim(0.98 * finite[0], 1.02 * min(finite[-1], 5.0 * finite[len(finite) // 2]))
    by_step.set(xlabel="steps", ylabel=text)
    by_bytes.set(xlabel="megabytes sent per rank", xscale="log")
    for axes in (by_step, by_bytes):
        axes.grid(alpha=0.3)
    by_bytes.legend(bbox_to_anchor=(1.02, 1.0), loc="upper left", borderaxespad=0.0, fontsize="small")
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def draw_ends(file: Path, ends: dict[str, tuple[float, float, float]], text: str) -> None:
    """Plots the loss at the end of each method against what a rank has sent, with the front: the methods that no other
    beats in both.

    :param ends: by method: the megabytes; the mean and the standard deviation of the losses. Methods that sent nothing or have
        failed are left out
    :param text: what the loss is
    :raises ImportError: without matplotlib
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    matplotlib.rcParams["svg.hashsalt"] = "slamb"
    figure, axes = pyplot.subplots(figsize=(12, 6.5), layout="constrained")
    colors = pyplot.get_cmap("tab10").colors
    shown = {name: end for name, end in ends.items() if end[0] > 0.0 and math.isfinite(end[1])}
    families = list(dict.fromkeys(name.split()[0] for name in shown))
    for number, (name, (megabytes, mean, deviation)) in enumerate(shown.items()):
        family = families.index(name.split()[0])
        style = {"color": colors[family % len(colors)], "marker": "osD^vPX*"[family % 8], "capsize": 3}
        axes.errorbar(megabytes, mean, deviation, label=f"{number + 1}: {name}", linestyle="", **style)
        axes.annotate(f"{number + 1}", (megabytes, mean), xytext=(6, 4), textcoords="offset points", fontsize="small")
    front = front_of([(megabytes, mean) for megabytes, mean, _ in shown.values()])
    axes.step([at[0] for at in front], [at[1] for at in front], where="post", color="gray", linewidth=0.8, zorder=0)
    axes.set(xlabel="megabytes sent per rank", xscale="log", ylabel=text)
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(alpha=0.3)
    axes.legend(bbox_to_anchor=(1.02, 1.0), loc="upper left", borderaxespad=0.0, fontsize="small")
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def front_of(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both values, or in one and equals in the other; with ascending first values."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
