#!/usr/bin/env python3
"""resources.py [--markdown] OBJECT…: what the kernels of nvcc's objects use of the GPU, from OBJECT.ptxas.txt.

Prints a table: registers a thread, shared bytes a block, and bytes of local memory (stack, spills), which must be 0, for
they cost traffic that no budget counts. For sm_80 to sm_89, whose reports say how much constant memory a kernel uses, the parameter
must be as long on the device as its type is on the host: nvcc 13.0 lays out some types in two ways. Exit: 0; 1 if a kernel uses
local memory or has a parameter of another size, or if a report is missing or has no kernel.
"""
import pathlib
import re
import shutil
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
CONSTANT = re.compile(r"(\d+) bytes cmem\[0\]")
HOST_BYTES = re.compile(r"10run_kernel.*Lm(\d+)EEEvT_$")  # the last argument of launcher.cuh's run_kernel
BYTES_BEFORE_PARAMETERS = {"sm_8": 0x160}  # of constant memory


def kernels_of(text: str) -> dict:
    """(architecture, mangled name) -> [registers, shared, stack, spilled bytes, constant bytes]."""
    found = {}
    current = None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            current = found.setdefault((match[2], match[1]), [None, 0, None, None, None])
        elif current is not None and (match := STACK.search(line)):
            current[2] = int(match[1])
            current[3] = int(match[2]) + int(match[3])
        elif current is not None and (match := USED.search(line)):
            current[0] = int(match[1])
            if shared := SHARED.search(line):
                current[1] = int(shared[1])
            if constant := CONSTANT.search(line):
                current[4] = int(constant[1])
            current = None
    return found


def parameter_fits(architecture: str, name: str, constant) -> bool:
    """False if the kernel's parameter is longer or shorter on the device than on the host, or if nobody says so."""
    host, before = HOST_BYTES.search(name), BYTES_BEFORE_PARAMETERS.get(architecture[:4])
    if before is None or "10run_kernel" not in name:
        return True
    return host is not None and constant == before + int(host[1])


def readable(names: list) -> list:
    """Names as in the sources, as far as c++filt is there, without what all of them begin with."""
    if not names or shutil.which("c++filt") is None:
        return names
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    kept = []
    for name in text.splitlines():
        name = re.sub(r"^void slamb::detail::cuda::run_kernel<(.*), \d+ul>\(.*$", r"\1", name)
        kept.append(name.replace("slamb::detail::cuda::", "").replace("slamb::detail::", "").replace("slamb::", ""))
    return kept


def main() -> int:
    arguments = sys.argv[1:]
    markdown = "--markdown" in arguments
    objects = [a for a in arguments if a != "--markdown" and a.endswith((".cu.o", ".cu.obj", ".cu"))]
    kernels = {}
    wrong = 0 if objects else 1
    for name in objects:
        path = pathlib.Path(name + ".ptxas.txt")
        of_object = kernels_of(path.read_text()) if path.is_file() else {}
        if not of_object:
            print(f"{path}: no report of ptxas -v about any kernel")
            wrong += 1
        kernels.update(of_object)
    rows, faults = [], []
    for (architecture, _), name in zip(sorted(kernels), readable([k[1] for k in sorted(kernels)])):
        rows.append((architecture, name))
    print("| GPU | registers | shared | stack | spilled | kernel |\n| --- | --: | --: | --: | --: | --- |" if markdown
          else f"{'GPU':8} {'registers':>9} {'shared':>7} {'stack':>6} {'spilled':>8}  kernel")
    for key, (architecture, name) in zip(sorted(kernels), rows):
        registers, shared, stack, spilled, constant = kernels[key]
        if registers is None or stack != 0 or spilled != 0:
            wrong += 1
        elif not parameter_fits(*key, constant):
            wrong += 1
            faults.append(f"{name}: on the device its parameter has another size than on the host: {constant} bytes of cmem[0]")
        if markdown:
            print(f"| {architecture} | {registers} | {shared} | {stack} | {spilled} | `{name[:160]}` |")
        else:
            print(f"{architecture:8} {registers!s:>9} {shared:>7} {stack!s:>6} {spilled!s:>8}  {name}")
    print("\n".join(["", *faults, f"{len(kernels)} kernels, {wrong} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
