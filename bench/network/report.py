#!/usr/bin/env python3
"""Turns results of slamb_bench_mpi into Markdown tables and a plot.

    sudo bash bench/network/run.sh --out results
    mpirun -n CORES build/release/bin/slamb_bench_mpi --json cores.json
    python3 bench/network/report.py results/*.json [--cores cores.json] [--plot FILE.svg]

One table for each file, by bandwidth. With --cores, a run of as many processes as the same machine has cores, also the
throughput that ranks with a core each would have: their exchange as it was measured, and the compute of that run. The plot is
by gnuplot. Exits with 1 if a file is not such a result or gnuplot fails, and says why.
"""
import argparse
import json
import math
import subprocess
import sys

PLOT = """set terminal svg size 760,460 font "sans,12" background "white"
set output "{file}"
set logscale xy
set xlabel "bandwidth of each rank's link, Mbit/s"
set ylabel "steps a second, of dense LAMB's"
set key outside right
set grid
set xrange [{low}:{high}]
set xtics ({tics})
set ytics (0.5, 1, 2, 5, 10, 20, 50)
plot {curves}
"""


class BadInput(Exception):
    pass


SETTINGS = ("parameters", "ranks", "threads", "k", "block", "local_steps", "in_parts")
NUMBERS = ("sent_bytes_per_step", "step_seconds", "compute_seconds", "exchange_seconds", "throughput_of_lamb")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check(path, settings, measurements):
    """That all there is to be is there."""
    for name in (*SETTINGS, "link_bits_per_second"):
        if name not in settings:
            raise BadInput(f"{path}: no '{name}' in its settings; another version of slamb_bench_mpi wrote it")
    if settings["link_bits_per_second"] is not None and not is_number(settings["link_bits_per_second"]):
        raise BadInput(f"{path}: link_bits_per_second is not a number")
    for one in measurements:
        predicted = ("predicted_step_seconds",) if "predicted_step_seconds" in one else ()
        for name in (*NUMBERS, *predicted):
            if not is_number(one.get(name)) or one[name] < 0:
                raise BadInput(f"{path}: {name} of {one['optimizer']} is {one.get(name)!r}, but it must be a number >= 0")
        if one["step_seconds"] == 0:
            raise BadInput(f"{path}: a step of {one['optimizer']} took no time")


def read(path):
    """The settings of a result, and its measurements by optimizer; of LAMB's two the mean."""
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        settings, measured = result["settings"], {}
        check(path, settings, result["measurements"])
        for one in result["measurements"]:
            if one["optimizer"] in measured:  # dense LAMB, first and last
                first = measured[one["optimizer"]]
                one = {key: (value + first[key]) / 2 if isinstance(value, float) else value for key, value in one.items()}
            measured[one["optimizer"]] = one
        measured["lamb"]["throughput_of_lamb"] = 1.0
        return settings, measured
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: not a result of slamb_bench_mpi --json") from error


def require_alike(results, cores_path, cores):
    """--cores must be of the same steps as all the others."""
    for name in ("parameters", "threads", "k", "block", "local_steps", "in_parts"):
        for settings, _ in results:
            if cores[name] != settings[name]:
                raise BadInput(f"{cores_path}: {name} is {cores[name]}, but {settings[name]} over the network")


def name_of(bits):
    if bits is None:
        return "unlimited"
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"


def cells_of(one, lamb, cores):
    """One line of a table: a measurement, dense LAMB's of the same run, and those of ranks with a core each."""
    cells = [f"`{one['optimizer']}`", f"{one['sent_bytes_per_step'] / 1e6:.2f}", f"{one['step_seconds'] * 1e3:.0f}",
             f"{one['compute_seconds'] * 1e3:.0f}", f"{one['exchange_seconds'] * 1e3:.0f}",
             f"{one['throughput_of_lamb']:.2f}"]
    predicted = one.get("predicted_step_seconds")
    cells += [f"{predicted * 1e3:.0f}", f"{predicted / one['step_seconds'] - 1:+.1%}"] if predicted else ["", ""]
    if cores:
        own = cores.get(one["optimizer"])
        cells.append("" if own is None else "{:.2f}".format(
            (lamb["exchange_seconds"] + cores["lamb"]["compute_seconds"]) / (one["exchange_seconds"] + own["compute_seconds"])))
    return cells


def print_table(settings, measured, cores):
    head = ["optimizer", "MB a rank a step", "ms a step", "compute", "exchange", "of LAMB's", "predicted ms", "its error"]
    if cores:
        head.append("of LAMB's, a core each")
    print(f"**{name_of(settings['link_bits_per_second'])}**: {settings['parameters']:,} parameters, {settings['ranks']} ranks, "
          f"SLAMB's k = {settings['k']:g} in blocks of {settings['block']}, H = {settings['local_steps']}"
          f"{', steps in parts' if settings['in_parts'] else ''}\n")
    print("| " + " | ".join(head) + " |")
    print("|---|" + "---:|" * (len(head) - 1))
    for one in measured.values():
        print("| " + " | ".join(cells_of(one, measured["lamb"], cores)) + " |")
    print()


def plot(results, file):
    """Throughput by bandwidth: measured as points, predicted as lines. Links without a limit have no place on the axis."""
    limited = [(settings["link_bits_per_second"] / 1e6, measured) for settings, measured in results
               if settings["link_bits_per_second"] is not None]
    if not limited:
        raise BadInput("--plot: no result has a limited link")
    blocks, curves = [], []
    optimizers = dict.fromkeys(name for _, measured in limited for name in measured if name != "lamb")
    for color, optimizer in enumerate(optimizers, start=1):
        rows = []
        for rate, measured in limited:
            if optimizer not in measured or "predicted_step_seconds" not in measured[optimizer]:
                continue
            one = measured[optimizer]
            predicted = measured["lamb"]["predicted_step_seconds"] / one["predicted_step_seconds"]
            rows.append(f"{rate:g} {one['throughput_of_lamb']:.4f} {predicted:.4f}")
        if not rows:
            continue
        label = optimizer.replace("_", " ")
        blocks.append(f"$data{color} << EOD\n" + "\n".join(rows) + "\nEOD\n")
        curves += [f'$data{color} using 1:2 with points pt 7 lc {color} title "{label}"',
                   f"$data{color} using 1:3 with lines lc {color} dt 2 notitle"]
    if not curves:
        raise BadInput("--plot: nothing was predicted")
    curves.append('NaN with lines lc "gray" dt 2 title "predicted"')
    rates = sorted({rate for rate, _ in limited})
    script = "".join(blocks) + PLOT.format(
        file=file.replace("\\", "\\\\").replace('"', '\\"'), low=rates[0] / math.sqrt(10), high=rates[-1] * math.sqrt(10),
        tics=", ".join(f"{rate:g}" for rate in rates), curves=", \\\n     ".join(curves))
    try:
        subprocess.run(["gnuplot"], input=script, text=True, check=True, capture_output=True)
    except FileNotFoundError as error:
        raise BadInput("--plot: gnuplot was not found: apt install gnuplot-nox") from error
    except subprocess.CalledProcessError as error:
        raise BadInput(f"--plot: gnuplot: {error.stderr.strip()}") from error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--cores", metavar="FILE.json", help="a run of as many processes as there are cores")
    parser.add_argument("--plot", metavar="FILE.svg")
    arguments = parser.parse_args()
    try:
        results = sorted((read(path) for path in arguments.files),
                         key=lambda result: result[0]["link_bits_per_second"] or math.inf)
        cores = None
        if arguments.cores:
            settings, cores = read(arguments.cores)
            require_alike(results, arguments.cores, settings)
        for settings, measured in results:
            print_table(settings, measured, cores)
        if arguments.plot:
            plot(results, arguments.plot)
    except BadInput as error:
        sys.exit(f"report.py: {error}")


if __name__ == "__main__":
    main()
