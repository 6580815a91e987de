#!/usr/bin/env python3
"""Turns results of slamb_bench into the Markdown tables of docs/performance.md.

    slamb_bench --benchmark_repetitions=5 --benchmark_out=FILE.json --benchmark_out_format=json
    python3 bench/table.py FILE.json [FILE.json ...]

Each number is the median over the repetitions of a benchmark, in all files together. Exits with 1 if a benchmark
failed or a file is not such a result, and says why.
"""
import json
import statistics
import sys

COUNTERS = ("parameters", "bytes_per_param", "ns_per_param", "of_copy", "of_triad", "copy_GB_per_s", "triad_GB_per_s")
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


class BadInput(Exception):
    pass


def read(path):
    """The context of a result and its runs, without the library's own aggregates."""
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        runs = [run for run in result["benchmarks"] if run.get("run_type", "iteration") == "iteration"]
        context = result["context"]
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: not a result of Google Benchmark with 'context' and 'benchmarks'") from error
    if not runs:
        raise BadInput(f"{path}: no runs; leave out --benchmark_report_aggregates_only and similar options")
    for run in runs:
        check(path, run)
    return context, runs


def check(path, run):
    name = run.get("run_name", "a run without a name")
    if run.get("error_occurred"):
        raise BadInput(f"{path}: {name} failed: {run.get('error_message', 'no reason was given')}")
    missing = [key for key in (*COUNTERS, "run_name", "real_time", "time_unit", "iterations") if key not in run]
    if missing:
        raise BadInput(f"{path}: {name} has no {', '.join(missing)}")
    if run["time_unit"] not in MILLISECONDS:
        raise BadInput(f"{path}: {name} has an unknown time_unit, {run['time_unit']!r}")


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def rows_by_shapes(runs):
    """{shapes: {name without shapes: [run, ...]}}, in the order of the runs."""
    tables = {}
    for run in runs:
        name, _, shapes = run["run_name"].rpartition("/")
        tables.setdefault(shapes, {}).setdefault(name, []).append(run)
    return tables


def describe(context):
    facts = [f"{context.get('num_cpus', '?')} processors at {context.get('mhz_per_cpu', '?')} MHz"]
    facts += [f"{label} {context[key]}" for key, label in
              (("threads", "threads:"), ("simd_bytes", "bytes of a SIMD register:"), ("compiler", "compiler:"))
              if key in context]
    return ", ".join(facts) + f"; {context.get('date', 'no date')}"


def print_table(shapes, rows):
    every = [run for runs in rows.values() for run in runs]
    print(f"\n**{shapes}**, {every[0]['parameters']:,.0f} parameters; copy {median(every, 'copy_GB_per_s'):.1f} GB/s, "
          f"triad {median(every, 'triad_GB_per_s'):.1f} GB/s (medians)\n")
    print("| benchmark | bytes/param | ns/param | ms/step | of copy | of triad | repetitions |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, runs in rows.items():
        time = statistics.median(run["real_time"] * MILLISECONDS[run["time_unit"]] for run in runs)
        print(f"| `{name}` | {median(runs, 'bytes_per_param'):.1f} | {median(runs, 'ns_per_param'):.3f} | {time:.1f} "
              f"| {median(runs, 'of_copy'):.2f} | {median(runs, 'of_triad'):.2f} | {len(runs)} |")


def main(paths):
    if not paths or any(path.startswith("-") for path in paths):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        results = [read(path) for path in paths]
    except BadInput as error:
        print(f"table.py: {error}", file=sys.stderr)
        return 1
    for line in dict.fromkeys(describe(context) for context, _ in results):
        print(line)
    for shapes, rows in rows_by_shapes([run for _, runs in results for run in runs]).items():
        print_table(shapes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
