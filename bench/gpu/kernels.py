#!/usr/bin/env python3
"""What each kernel of a step costs on the GPU at hand, as NVIDIA Nsight Compute counts it.

    python3 bench/gpu/kernels.py --bench PATH_OF_slamb_bench_gpu [NAME …]

NAME is a benchmark's; without any, those of the large model on one rank. Prints a table in Markdown: instructions that are
executed and bytes of device memory that are moved, of each parameter; microseconds, with nothing in the caches at first;
registers of a thread. Exit: 0; 77 where ncu or a GPU is missing.
"""
import argparse
import csv
import math
import re
import shutil
import subprocess
import sys

SKIPPED = 77
STEPS = ["adamw", "lamb", "slamb/block:1", "slamb/block:16", "slamb/top_k", "one_bit_lamb"]
TIME, INSTRUCTIONS, BYTES, REGISTERS = METRICS = [
    "gpu__time_duration.sum",
    "smsp__inst_executed.sum",
    "dram__bytes.sum",
    "launch__registers_per_thread",
]
LAUNCHES = 40  # which are the first steps
WARP = 32  # threads that execute an instruction at once


def elements_of(bench, model):
    """The parameters of a model, as slamb_bench_gpu lists its tensors."""
    listed = subprocess.run([bench, f"--shapes={model}"], check=True, capture_output=True, text=True).stdout
    return sum(math.prod(int(size) for size in line.split()) for line in listed.splitlines())


def kernels_of(bench, name):
    """The last launch of each kernel among the first ones of a benchmark: by kernel, the value of each metric."""
    command = ["ncu", "--csv", "--clock-control", "none", "--metrics", ",".join(METRICS), "--kernel-name", "run_kernel"]
    command += ["--launch-count", str(LAUNCHES), "--kill", "yes", bench, f"--filter={name}"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    launches = {}
    for row in csv.DictReader(lines):
        _, values = launches.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
        values[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return dict(launches[i] for i in sorted(launches))


def short(kernel):
    """`run_pass<update_and_sum>` of `void slamb::detail::cuda::run_kernel<slamb::detail::run_pass<…>>(T1)`."""
    inner = re.sub(r"^.*?run_kernel<|>\(.*$", "", kernel)
    names = re.findall(r"[a-z_0-9]+", re.sub(r"\w+::", "", inner))
    policies = {"unit_trust_ratio", "layerwise_trust_ratio", "rescaled_trust_ratio", "frozen_trust_ratio", "float", "in_order"}
    return "`" + " ".join(name for name in names[:4] if name not in policies and not name.isdigit()) + "`"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="path of slamb_bench_gpu")
    parser.add_argument("names", metavar="NAME", nargs="*", default=STEPS, help="a benchmark of it")
    arguments = parser.parse_args()
    listed = subprocess.run([arguments.bench, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for name in arguments.names:
        if name not in listed:
            parser.error(f"{arguments.bench} has no benchmark {name!r}; it has {', '.join(listed)}")
    if shutil.which("ncu") is None:
        print("skipped: ncu is not on PATH")
        return SKIPPED
    print("| step | kernel | us | instructions/param | bytes/param | registers |")
    print("| --- | --- | --: | --: | --: | --: |")
    for name in arguments.names:
        elements = elements_of(arguments.bench, "1m" if "/1m" in name else "bert-large")
        kernels = kernels_of(arguments.bench, name)
        if not kernels:
            print(f"skipped: ncu has counted no kernel of {name}")
            return SKIPPED
        for kernel, of in kernels.items():
            print(
                f"| `{name}` | {short(kernel)} | {of[TIME] / 1e3:.1f} | {of[INSTRUCTIONS] * WARP / elements:.1f} "
                f"| {of[BYTES] / elements:.2f} | {of[REGISTERS]:.0f} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
