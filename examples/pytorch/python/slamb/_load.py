"""Imports the compiled module for the processor at hand.

A wheel has it for one or several levels of x86-64 (`x86-64-v2`, `-v3`, `-v4`). Code for a higher level than the processor's would
end the process by an illegal instruction, so it is never loaded.
"""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path
from types import ModuleType

_FLAGS_OF_LEVEL = {
    2: {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    3: {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    4: {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


def level_of(flags: set[str]) -> int:
    """The highest level of x86-64 whose instructions a processor with these flags of /proc/cpuinfo has."""
    level = 1
    for higher, needed in _FLAGS_OF_LEVEL.items():
        if not needed <= flags:
            break
        level = higher
    return level


def _level_of_this_processor() -> int:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return level_of(set(value.split()))
    return 1


def choose(built: set[str], level: int) -> str:
    """The module to import, of the names of those that were built. A module without a level runs on every processor.

    :raises ImportError: if all are for processors of a higher level
    """
    for n in range(level, 0, -1):
        if f"_native_v{n}" in built:
            return f"_native_v{n}"
    if "_native" in built:
        return "_native"
    if not built:
        raise ImportError("slamb has no compiled module beside its Python files; install it with pip")
    levels = " and ".join(sorted(name.removeprefix("_native_v") for name in built))
    if level == 0:
        raise ImportError(
            f"slamb was built for x86-64 of level {levels}, but this processor is none of x86-64; build it on this machine"
        )
    raise ImportError(
        f"slamb was built for x86-64 of level {levels}, but this processor has level {level}; build it on this machine, "
        f"or with --config-settings=cmake.define.SLAMB_LEVELS=v{max(level, 2)}"
    )


def module_for(device: str) -> ModuleType:
    """The module for tensors on a kind of device.

    :raises ValueError: if this build has none
    """
    if device == "cpu":
        return native
    if device == "cuda" and list(Path(__file__).parent.glob("_native_cuda*.so")):
        return importlib.import_module("slamb._native_cuda")
    raise ValueError(
        f"slamb: parameters are on a device of type {device}, for which this build has no module; keep them in host memory"
        + (", or install with --config-settings=cmake.define.SLAMB_PYTHON_CUDA=ON" if device == "cuda" else "")
    )


def _load() -> ModuleType:
    built = {path.name.partition(".")[0] for path in Path(__file__).parent.glob("_native*.so")} - {"_native_cuda"}
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return importlib.import_module("slamb." + choose(built, _level_of_this_processor() if is_x86 else 0))


native = _load()
sys.modules["slamb._native"] = native  # by the name of its type stub
