#!/usr/bin/env python3
"""resources.py [--markdown] OBJECT…: what the kernels of nvcc's objects use of the GPU, from OBJECT.ptxas.txt.

Prints a table: registers a thread, shared bytes a block, and bytes of local memory (stack, spills), which must be 0, for
they cost traffic that no budget counts. Exit: 0; 1 if a kernel uses local memory, a report is missing or has no kernel.
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


def kernels_of(text: str) -> dict:
    """(architecture, mangled name) -> [registers, shared, stack, spilled bytes]."""
    found = {}
    current = None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            current = found.setdefault((match[2], match[1]), [None, 0, None, None])
        elif current is not None and (match := STACK.search(line)):
            current[2] = int(match[1])
            current[3] = int(match[2]) + int(match[3])
        elif current is not None and (match := USED.search(line)):
            current[0] = int(match[1])
            if shared := SHARED.search(line):
                current[1] = int(shared[1])
            current = None
    return found


def readable(names: list) -> list:
    """Names as in the sources, as far as c++filt is there, without what all of them begin with."""
    if not names or shutil.which("c++filt") is None:
        return names
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    kept = []
    for name in text.splitlines():
        name = re.sub(r"^void slamb::detail::cuda::run_kernel<(.*)>\(.*$", r"\1", name)
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
    rows = []
    for (architecture, _), name in zip(sorted(kernels), readable([k[1] for k in sorted(kernels)])):
        rows.append((architecture, name))
    print("| GPU | registers | shared | stack | spilled | kernel |\n| --- | --: | --: | --: | --: | --- |" if markdown
          else f"{'GPU':8} {'registers':>9} {'shared':>7} {'stack':>6} {'spilled':>8}  kernel")
    for key, (architecture, name) in zip(sorted(kernels), rows):
        registers, shared, stack, spilled = kernels[key]
        if registers is None or stack != 0 or spilled != 0:
            wrong += 1
        if markdown:
            print(f"| {architecture} | {registers} | {shared} | {stack} | {spilled} | `{name[:160]}` |")
        else:
            print(f"{architecture:8} {registers!s:>9} {shared:>7} {stack!s:>6} {spilled!s:>8}  {name}")
    print(f"\n{len(kernels)} kernels, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
