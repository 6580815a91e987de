"""Times steps of optimizers on the CPU: slamb's beside torch's, and slamb's from Python beside the same step in C++.

    python3 examples/pytorch/bench/step.py [--threads N] [--rounds 9] [--elements 2400 1500000 28000000]

Prints Markdown. All times are medians, of one process, in microseconds. A model has 150 tensors of the shapes of a BERT with nine
layers; its width follows from the number of elements.

The first table has steps of each optimizer that follow one another. Each round times all optimizers, so that a machine whose speed
changes treats them alike.

The second table has a step by `optimizer.step()`, one by the compiled optimizer alone, and one by an optimizer of torch that only
calls the compiled one, all with the same parameters and the same state, in turn. Each has the same work before it, so that caches are
alike and the optimizer's threads are awake or asleep alike: a step, as in the first table, or a forward and a backward pass, as in a
training. Differences are medians over turns. "Of torch" is the part of the difference that every optimizer of torch has: the calls
of torch.optim.Optimizer for hooks and the profiler. The rest should not be above 100 µs + 2 % of the step in C++.
"""

import argparse
import gc
import math
import pathlib
import platform
import statistics
import time

import torch

import slamb.torch

LAYERS = 9
RATE = 1e-3


def shapes_of(elements):
    """150 shapes: word, position and type embeddings with a layer norm, 9 layers, and a bias for each word."""
    width = max(1, int(math.sqrt(0.75 * elements / (12 * LAYERS))))
    layer = [(width, width), (width,)] * 4 + [(width,)] * 4 + [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    words = max(2, (elements - LAYERS * sum(map(math.prod, layer))) // (width + 2))
    return [(words, width), (words // width + 1, width), (2, width), (width,), (width,), (words,)] + layer * LAYERS


def make_parameters(shapes):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


def make_optimizers(shapes):
    """Optimizers by name, each with parameters of its own."""

    def torch_adamw(**options):
        return torch.optim.AdamW(make_parameters(shapes), lr=RATE, **options)

    optimizers = {
        "slamb.torch.AdamW": slamb.torch.AdamW(make_parameters(shapes), lr=RATE),
        "torch.optim.AdamW(foreach=False)": torch_adamw(foreach=False),
        "torch.optim.AdamW(foreach=True)": torch_adamw(foreach=True),
        "torch.optim.AdamW(fused=True)": None,
        "slamb.torch.Lamb": slamb.torch.Lamb(make_parameters(shapes), lr=RATE),
        "slamb.torch.Slamb": slamb.torch.Slamb(make_parameters(shapes), lr=RATE),
    }
    try:
        optimizers["torch.optim.AdamW(fused=True)"] = torch_adamw(fused=True)
    except (RuntimeError, TypeError):
        pass  # this torch has none for the CPU
    return optimizers


def seconds_of(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def steps_within(step, seconds):
    """How often a step fits into this time: 3 to 200. Also warms it up."""
    return max(3, min(200, int(seconds / min(seconds_of(step) for _ in range(4)))))


def time_optimizers(optimizers, rounds):
    """The median time of a step, by name; None where there is no optimizer."""
    steps = {name: one.step for name, one in optimizers.items() if one is not None}
    counts = {name: steps_within(step, 0.15) for name, step in steps.items()}
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            times[name].append(statistics.median(seconds_of(step) for _ in range(counts[name])))
    return {name: statistics.median(times[name]) if name in times else None for name in optimizers}


def backward(optimizer):
    """A forward and a backward pass, which give all parameters new gradients at new addresses."""
    optimizer.zero_grad(set_to_none=True)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    torch.stack([p.square().sum() for p in parameters]).sum().backward()


class Least(torch.optim.Optimizer):
    """The least that an optimizer of torch can do: its step is that in C++, between torch's calls for hooks and the profiler."""

    def __init__(self, core):
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {})
        self.core = core

    def step(self, closure=None):
        self.core.step([RATE])


def compare_with_core(optimizer, work, rounds):
    """Medians: the step from Python, the step in C++, their difference, and that of `Least` and the step in C++."""
    part = optimizer._built()[0]
    least = Least(part.core)

    def after_work(step):
        work(optimizer)
        part.refresh(optimizer.param_groups)  # the compiled optimizer knows no other gradients than those it was given
        return seconds_of(step)

    def from_python():
        work(optimizer)
        return seconds_of(optimizer.step)

    steps = [from_python, lambda: after_work(lambda: part.core.step([RATE])), lambda: after_work(least.step)]
    found = []
    for number in range(rounds * steps_within(lambda: [step() for step in steps], 1.0)):
        times = [0.0] * 3
        for i in range(3):
            times[(number + i) % 3] = steps[(number + i) % 3]()
        python, cpp, of_least = times
        found.append((python, cpp, python - cpp, of_least - cpp))
    return [statistics.median(column) for column in zip(*found)]


def processor():
    path = pathlib.Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def cell(seconds):
    return "" if seconds is None else f"{1e6 * seconds:,.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of a step (as torch)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of which medians are taken (9)")
    parser.add_argument("--elements", type=int, nargs="+", default=[2_400, 1_500_000, 28_000_000], help="sizes of models")
    chosen = parser.parse_args()
    if min(chosen.elements) < 2_400:
        parser.error("--elements must be at least 2400, which is a model of width 4")
    if chosen.rounds < 1 or chosen.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    torch.set_num_threads(chosen.threads)
    gc.disable()

    sizes, times, pairs = [], [], []
    for elements in chosen.elements:
        shapes = shapes_of(elements)
        sizes.append(f"{sum(map(math.prod, shapes)):,}")
        optimizers = make_optimizers(shapes)
        times.append(time_optimizers(optimizers, chosen.rounds))
        adamw = optimizers["slamb.torch.AdamW"]
        pairs.append((sizes[-1], "a step", *compare_with_core(adamw, lambda optimizer: optimizer.step(), chosen.rounds)))
        pairs.append((sizes[-1], "a backward pass", *compare_with_core(adamw, backward, chosen.rounds)))
        gc.collect()

    print(f"torch {torch.__version__}, slamb {slamb.__version__}, threads: {chosen.threads}, {processor()}\n")
    print(f"| µs a step, 150 tensors | {' | '.join(f'{size} elements' for size in sizes)} |")
    print("|---|" + "--:|" * len(sizes))
    for name in times[0]:
        if any(of_size[name] is not None for of_size in times):
            print(f"| `{name}` | {' | '.join(cell(of_size[name]) for of_size in times)} |")
    print("\n| `slamb.torch.AdamW`, elements | after | from Python, µs | in C++, µs | difference, µs | of torch, µs | allowed, µs |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for size, before, *columns in pairs:
        print(f"| {size} | {before} | {' | '.join(map(cell, columns))} | {cell(100e-6 + 0.02 * columns[1])} |")


if __name__ == "__main__":
    main()
