#!/usr/bin/env python3
"""keep_ptxas_report.py NVCC ARGUMENT…: runs nvcc, and keeps what ptxas -v says beside the object, as OBJECT.ptxas.txt.

CMake puts it before the compiler (CUDA_COMPILER_LAUNCHER). What else nvcc says is passed on.
"""
import pathlib
import subprocess
import sys


def main() -> int:
    command = sys.argv[1:]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    report = [line for line in result.stderr.splitlines() if line.startswith("ptxas info") or "bytes stack frame" in line]
    kept = set(report)
    for line in result.stderr.splitlines():
        if line not in kept:
            print(line, file=sys.stderr)
    if result.returncode == 0 and "-o" in command:
        target = pathlib.Path(command[command.index("-o") + 1])
        target.with_name(target.name + ".ptxas.txt").write_text("\n".join(report) + "\n")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
