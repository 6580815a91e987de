"""The choice of the compiled module for a processor."""

import importlib
import platform
from pathlib import Path

import pytest

import slamb
from slamb import _load

LEVELS = _load._FLAGS_OF_LEVEL
V2, V3, V4 = LEVELS[2], LEVELS[2] | LEVELS[3], LEVELS[2] | LEVELS[3] | LEVELS[4]


@pytest.mark.parametrize(
    "flags, level",
    [
        (set(), 1),
        ({"fpu", "sse2"}, 1),
        (V2, 2),
        (V3, 3),
        (V4, 4),
        (V4 | {"avx512_vnni", "amx_tile"}, 4),
        (LEVELS[3], 1),
        (LEVELS[2] | LEVELS[4], 2),
        (LEVELS[3] | LEVELS[4], 1),
    ],
)
def test_a_processor_has_a_level_if_it_has_all_flags_of_it_and_of_those_below(flags, level):
    assert _load.level_of(flags) == level


@pytest.mark.parametrize("higher, flags", [(2, V2), (3, V3), (4, V4)])
def test_each_flag_of_a_level_is_needed(higher, flags):
    for flag in LEVELS[higher]:
        assert _load.level_of(flags - {flag}) == higher - 1


@pytest.mark.parametrize(
    "built, level, chosen",
    [
        ({"_native"}, 1, "_native"),
        ({"_native"}, 4, "_native"),
        ({"_native"}, 0, "_native"),
        ({"_native_v2"}, 2, "_native_v2"),
        ({"_native_v2", "_native_v3", "_native_v4"}, 4, "_native_v4"),
        ({"_native_v2", "_native_v3", "_native_v4"}, 3, "_native_v3"),
        ({"_native_v2", "_native_v4"}, 3, "_native_v2"),
        ({"_native", "_native_v3"}, 2, "_native"),
        ({"_native", "_native_v3"}, 3, "_native_v3"),
        ({"_native", "_native_v2"}, 0, "_native"),
    ],
)
def test_the_highest_module_that_the_processor_can_run_is_chosen(built, level, chosen):
    assert _load.choose(built, level) == chosen


@pytest.mark.parametrize(
    "built, level, text",
    [
        ({"_native_v3"}, 2, r"level 3, but this processor has level 2.*SLAMB_LEVELS=v2"),
        ({"_native_v4", "_native_v3"}, 1, r"level 3 and 4, but this processor has level 1.*SLAMB_LEVELS=v2"),
        ({"_native_v4"}, 3, r"level 4, but this processor has level 3.*SLAMB_LEVELS=v3"),
    ],
)
def test_an_import_error_says_what_was_built_what_the_processor_has_and_how_to_build(built, level, text):
    with pytest.raises(ImportError, match=text):
        _load.choose(built, level)


def test_an_installation_without_a_compiled_module_says_so():
    with pytest.raises(ImportError) as error:
        _load.choose(set(), 3)
    assert "level none" not in str(error.value)


def test_a_processor_that_is_not_x86_is_not_offered_a_build_for_a_level_of_x86():
    with pytest.raises(ImportError) as error:
        _load.choose({"_native_v3"}, 0)
    assert "has level 0" not in str(error.value)
    assert "SLAMB_LEVELS=v" not in str(error.value)


@pytest.mark.parametrize(
    "text, level",
    [
        (f"processor\t: 0\nflags\t\t: {' '.join(sorted(V3))}\nbugs\t:\n", 3),
        (f"vmx flags\t: {' '.join(sorted(V4))}\nflags\t\t: {' '.join(sorted(V2))}\n", 2),
        ("processor : 0\n", 1),
        ("", 1),
    ],
)
def test_the_flags_are_those_of_proc_cpuinfo(monkeypatch, text, level):
    monkeypatch.setattr(Path, "read_text", lambda self, *args, **kwargs: text)
    assert _load._level_of_this_processor() == level


def test_the_loaded_module_is_one_that_this_processor_can_run():
    built = {path.name.partition(".")[0] for path in Path(_load.__file__).parent.glob("_native*.so")}
    assert _load.native.__name__.rpartition(".")[2] in built
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    assert _load.native.__name__ == "slamb." + _load.choose(built, _load._level_of_this_processor() if is_x86 else 0)


def test_each_kind_of_device_has_its_module_or_an_error_that_says_how_to_get_it():
    assert _load.module_for("cpu") is _load.native
    with pytest.raises(ValueError, match="device of type meta.*keep them in host memory"):
        _load.module_for("meta")
    if not list(Path(_load.__file__).parent.glob("_native_cuda*.so")):
        with pytest.raises(ValueError, match="device of type cuda.*SLAMB_PYTHON_CUDA=ON"):
            _load.module_for("cuda")


def test_the_version_is_that_of_the_compiled_module():
    assert slamb.__version__ == _load.native.version
    assert len(slamb.__version__.split(".")) == 3


def test_every_public_name_can_be_imported():
    module = importlib.import_module("slamb.torch")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
