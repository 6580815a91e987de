#!/usr/bin/env python3
"""Measures what compiling programs on top of the library costs: CPU seconds, user and system, and peak memory.

    python3 bench/compile_time.py [--compiler g++] [--flags="-std=c++20 -O2"] [--repeat 3] [--only WORDS] [--no-nvcc]
                                  [--include FOLDER] [--compare FOLDER]

Each row is a program that includes slamb.hpp, or the narrowest header for what it uses. A row "elsewhere" is a source that leaves
its optimizer to another source of the program, by `extern template`. Sources are compiled and not linked, and those for nvcc are
linked too, except "elsewhere"; without nvcc they are left out. The time is the median over the repetitions, with the minimum
behind it; memory is the largest of all processes of a compilation. --compare runs each row on two folders of headers in
turns, so that both have the same machine.
Exits with 1 if a compiler fails, and says why.
"""
import argparse
import os
import pathlib
import shlex
import shutil
import statistics
import sys
import tempfile


class Failure(Exception):
    pass


class Program:
    def __init__(self, name, headers, body, nvcc=False, linked=True):
        self.name, self.headers, self.nvcc, self.linked = name, headers, nvcc, linked
        self.source = "".join(f"#include <{header}>\n" for header in headers) + body


def training(optimizer, communicator="", elsewhere=False):
    """A program that makes an optimizer of this type, for which each rank calls train(), and steps once."""
    declaration = f"extern template struct slamb::detail::recipe_maker<{optimizer}::recipe_type>;" if elsewhere else ""
    call = "train();" if not communicator else "slamb::run_ranks(2, train);"
    return f"""
#include <utility>
#include <vector>
{declaration}
void train({communicator and communicator + " communicator"}) {{
  std::vector<float> weights(100, 1.0F), gradient(100, 0.5F);
  const std::vector<slamb::parameter> parameters = {{
      {{.data = weights.data(), .gradient = gradient.data(), .size = weights.size()}}}};
  {optimizer} optimizer(parameters, {{}}{communicator and ", std::move(communicator)"});
  optimizer.step(0.01);
}}
int main() {{ {call} }}
"""


LAMB = ("slamb::lamb<>",)
SLAMB = ("slamb::slamb<slamb::thread_communicator, slamb::chain<slamb::random_k<>, slamb::int8>>", "slamb::thread_communicator")
LAMB_ON_GPU = ("slamb::lamb<slamb::self_communicator, slamb::cuda_backend>",)

UMBRELLA = ("slamb/slamb.hpp",)
# The narrow headers are one for each optimizer; a row whose header is not there is left out, and said to be.
LAMB_HEADERS = ("slamb/lamb.hpp",)
SLAMB_HEADERS = ("slamb/sparse_momentum.hpp", "slamb/threads.hpp")
GPU_HEADERS = ("slamb/lamb.hpp", "slamb/cuda.cuh")
PROGRAMS = (
    Program("the umbrella header", UMBRELLA, "int main() {}\n"),
    Program("lamb, umbrella", UMBRELLA, training(*LAMB)),
    Program("lamb, narrow", LAMB_HEADERS, training(*LAMB)),
    Program("lamb, narrow, elsewhere", LAMB_HEADERS, training(*LAMB, elsewhere=True)),
    Program("slamb + random_k + int8, umbrella", UMBRELLA, training(*SLAMB)),
    Program("slamb + random_k + int8, narrow", SLAMB_HEADERS, training(*SLAMB)),
    Program("slamb + random_k + int8, narrow, elsewhere", SLAMB_HEADERS, training(*SLAMB, elsewhere=True)),
    Program("lamb on a GPU, umbrella, nvcc", UMBRELLA, training(*LAMB_ON_GPU), nvcc=True),
    Program("lamb on a GPU, narrow, nvcc", GPU_HEADERS, training(*LAMB_ON_GPU), nvcc=True),
    Program("lamb on a GPU, narrow, elsewhere, nvcc", GPU_HEADERS, training(*LAMB_ON_GPU, elsewhere=True), nvcc=True, linked=False),
)


def cost_of(command, folder):
    """CPU seconds and peak MB of a command with all that it starts."""
    log = folder / "log.txt"
    with open(log, "wb") as output:
        # A child of its own, whose use of resources is then that of its own children as well.
        child = os.fork()
        if child == 0:
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.execvp(command[0], command)
            except OSError as error:
                os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        lines = log.read_text(errors="replace").splitlines()
        raise Failure("\n".join([f"{shlex.join(command)} exits with {code}:", *lines[:20], *(["…"] if lines[20:] else [])]))
    kilobytes = usage.ru_maxrss / 1024 if sys.platform == "darwin" else usage.ru_maxrss
    return usage.ru_utime + usage.ru_stime, kilobytes / 1024


def command_for(program, include, folder, arguments):
    source = folder / ("program.cu" if program.nvcc else "program.cpp")
    source.write_text(program.source, encoding="utf-8")
    if program.nvcc:
        return [arguments.nvcc, *shlex.split(arguments.nvcc_flags), f"-I{include}", *([] if program.linked else ["-c"]),
                str(source), "-o", str(folder / "program")]
    return [arguments.compiler, *shlex.split(arguments.flags), "-pthread", f"-I{include}", "-c", str(source), "-o",
            str(folder / "program.o")]


def measure(program, includes, arguments, folder):
    """A list of (seconds, megabytes) for each folder of headers, of which they take turns."""
    costs = [[] for _ in includes]
    for _ in range(arguments.repeat):
        for include, cost in zip(includes, costs):
            cost.append(cost_of(command_for(program, include, folder, arguments), folder))
    return costs


def cells_of(cost):
    seconds = [s for s, _ in cost]
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f})", f"{max(m for _, m in cost):.0f}"


def row_of(program, costs):
    cells = [cell for cost in costs for cell in cells_of(cost)]
    if len(costs) == 2:
        first, second = (statistics.median(s for s, _ in cost) for cost in costs)
        cells.append(f"{second / first:.2f}")
    return f"| {program.name} | {' | '.join(cells)} |"


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, 1 or more")
    return int(text)


def headers_folder(text):
    if not (pathlib.Path(text) / UMBRELLA[0]).is_file():
        raise argparse.ArgumentTypeError(f"'{text}' has no {UMBRELLA[0]}")
    return pathlib.Path(text).resolve()


def parse_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"), help="compiles for the host (default: $CXX or g++)")
    parser.add_argument("--flags", default="-std=c++20 -O2", help="of that compiler, as one argument (default: %(default)s)")
    parser.add_argument("--include", type=headers_folder, default=pathlib.Path(__file__).resolve().parent.parent / "include",
                        help="the folder of the headers (default: that beside this script's folder)")
    parser.add_argument("--compare", type=headers_folder, help="a second folder of headers, measured in turns with the first")
    parser.add_argument("--repeat", type=positive, default=3, help="compilations of each program (default: %(default)s)")
    parser.add_argument("--only", help="only rows whose name has these words")
    parser.add_argument("--no-nvcc", action="store_true", help="leave out what nvcc compiles")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc"))
    parser.add_argument("--nvcc-flags", default="-std=c++20 -O2 -arch=sm_90", help="(default: %(default)s)")
    arguments = parser.parse_args()
    if not shutil.which(arguments.compiler):
        parser.error(f"--compiler: '{arguments.compiler}' is not found")
    arguments.programs = [p for p in PROGRAMS if not arguments.only or arguments.only in p.name]
    if not arguments.programs:
        parser.error(f"--only: '{arguments.only}' matches none of {', '.join(p.name for p in PROGRAMS)}")
    return arguments


def main():
    arguments = parse_command_line()
    includes = [arguments.include, *([arguments.compare] if arguments.compare else [])]
    print(f"{arguments.compiler} {arguments.flags}; {arguments.repeat} repetitions; CPU seconds as median (minimum)")
    for number, include in enumerate(includes, 1):
        print(f"folder {number}: {include}")
    columns = [f"{what} {number}" if arguments.compare else what for number in range(1, len(includes) + 1)
               for what in ("CPU s", "peak MB")]
    columns += ["ratio 2 / 1"] if arguments.compare else []
    print(f"\n| program | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)
    left_out = []
    with tempfile.TemporaryDirectory() as folder:
        for program in arguments.programs:
            lacking = [str(include) for include in includes if not all((include / header).is_file() for header in program.headers)]
            if program.nvcc and (arguments.no_nvcc or not arguments.nvcc):
                left_out.append(f"{program.name}: {'--no-nvcc' if arguments.no_nvcc else 'nvcc is not found'}")
            elif lacking:
                left_out.append(f"{program.name}: no {program.headers[0]} in {' and '.join(lacking)}")
            else:
                print(row_of(program, measure(program, includes, arguments, pathlib.Path(folder))), flush=True)
    for line in left_out:
        print(f"left out: {line}")
    if len(left_out) == len(arguments.programs):
        raise Failure("no program could be measured")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"compile_time.py: {failure}")
