#!/usr/bin/env python3
"""Times torch.optim.AdamW on the GPU at hand, over the tensors that slamb_bench_gpu steps over.

    python3 bench/gpu/torch_adamw.py --bench PATH_OF_slamb_bench_gpu

Prints a table in Markdown. Exit: 0; 77 where PyTorch or a GPU is missing.
"""
import argparse
import math
import statistics
import subprocess
import sys

SKIPPED = 77
BATCHES = 7
WARM_UP = 5
BYTES_OF_STEP = 28  # of an element: p, m, v read and written, g read


def read_shapes(bench, model):
    """The tensors of a model, as slamb_bench_gpu lists them."""
    listed = subprocess.run([bench, f"--shapes={model}"], check=True, capture_output=True, text=True).stdout
    return [tuple(int(size) for size in line.split()) for line in listed.splitlines()]


def seconds_of_step(torch, shapes, steps, as_graph, **kind):
    """Seconds of a step on the device: the median over batches of steps that are enqueued without waiting."""
    parameters = [torch.nn.Parameter(0.05 * torch.randn(shape, device="cuda")) for shape in shapes]
    for parameter in parameters:
        parameter.grad = 0.001 * torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, capturable=as_graph, **kind)
    step = optimizer.step
    for _ in range(WARM_UP):
        step()
    if as_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.step()
        step = graph.replay
    seconds = []
    for _ in range(BATCHES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) * 1e-3 / steps)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="path of slamb_bench_gpu, which knows the tensors")
    bench = parser.parse_args().bench
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch")
        return SKIPPED
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        return SKIPPED
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; {BYTES_OF_STEP} bytes an element a step.\n")
    print("| step | params | ns/param | ms | GB/s |\n| --- | --: | --: | --: | --: |")
    for model, steps in (("bert-large", 20), ("1m", 200)):
        shapes = read_shapes(bench, model)
        elements = sum(math.prod(shape) for shape in shapes)
        for name, kind, as_graph in (
            ("fused", {"fused": True}, False),
            ("fused/graph", {"fused": True}, True),
            ("foreach", {"foreach": True}, False),
        ):
            seconds = seconds_of_step(torch, shapes, steps, as_graph, **kind)
            rate = BYTES_OF_STEP * elements / seconds * 1e-9
            print(f"| `AdamW/{name}/{model}` | {elements} | {seconds * 1e9 / elements:.4f} | {seconds * 1e3:.3f} | {rate:.0f} |",
                  flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
