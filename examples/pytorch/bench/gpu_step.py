"""Times steps of AdamW on a GPU beside torch.optim.AdamW(fused=True), in one run.

    python3 examples/pytorch/bench/gpu_step.py [--elements 28000000] [--tensors 150] [--rounds 5] [--steps 50]

Prints Markdown: the median over rounds of the time of a step, of all work on the device, in microseconds, eager and as a CUDA graph.
Exits with 77 without a GPU or without a module for it.
"""

import argparse
import statistics
import sys

import torch

import slamb.torch
from slamb._load import module_for

COLUMNS = 256


def make_parameters(elements, tensors):
    """Matrices, because SLAMB sends tensors of one dimension completely."""
    torch.manual_seed(0)
    rows = max(1, elements // tensors // COLUMNS)
    parameters = [torch.nn.Parameter(torch.randn(rows, COLUMNS, device="cuda")) for _ in range(tensors)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


def seconds_of(step, steps):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000.0 / steps


def captured(optimizer):
    """Replays a step. The result keeps the optimizer, whose memory the graph uses."""
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()

    def replay():
        graph.replay()
        return optimizer

    return replay


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--elements", type=int, default=28_000_000)
    arguments.add_argument("--tensors", type=int, default=150)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=50)
    chosen = arguments.parse_args()
    try:
        if not torch.cuda.is_available():
            raise ValueError("no GPU")
        module_for("cuda")
    except ValueError as missing:
        print(missing, file=sys.stderr)
        return 77

    def parameters():
        return make_parameters(chosen.elements, chosen.tensors)

    steps = {
        "slamb.torch.AdamW": slamb.torch.AdamW(parameters()).step,
        "torch.optim.AdamW(fused=True)": torch.optim.AdamW(parameters(), fused=True).step,
        "torch.optim.AdamW(foreach=True)": torch.optim.AdamW(parameters(), foreach=True).step,
        "slamb.torch.AdamW, graph": captured(slamb.torch.AdamW(parameters())),
        "torch.optim.AdamW(fused=True), graph": captured(torch.optim.AdamW(parameters(), fused=True, capturable=True)),
        "slamb.torch.Lamb": slamb.torch.Lamb(parameters()).step,
        "slamb.torch.Slamb": slamb.torch.Slamb(parameters()).step,
    }
    times = {name: [] for name in steps}
    for step in steps.values():
        seconds_of(step, 5)
    for _ in range(chosen.rounds):
        for name, step in steps.items():
            times[name].append(seconds_of(step, chosen.steps))
    gpu = torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {gpu}, about {chosen.elements} elements in {chosen.tensors} matrices\n")
    print("| step | µs | relative to fused |\n|---|--:|--:|")
    fused = statistics.median(times["torch.optim.AdamW(fused=True)"])
    for name, all_times in times.items():
        median = statistics.median(all_times)
        print(f"| `{name}` | {1e6 * median:.0f} | {median / fused:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
