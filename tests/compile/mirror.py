#!/usr/bin/env python3
"""Tests lie as the headers do, so that the test of a header is found by its name.

    mirror.py ROOT FOLDER…    FOLDER: those below ROOT/tests of which slamb_tests has the sources
                              prints what is wrong, and fails if anything is

- tests/X/name.cpp tests include/slamb/X/name.hpp, X/detail/name.hpp or detail/X/name.hpp, or a concept of core/concepts.hpp.
  Several sources for one header are name_aspect.cpp. For tests/examples/X and tests/support/tests the headers are in examples/X
  and tests/support. properties/ and faults/ are about many headers.
- A public header, one outside detail/, has a source named after it; or a case `name: …`, if no other public header has this
  name; or is in ELSEWHERE. A header that only includes others has nothing to test.
- Each source is in a namespace of its path: several are compiled as one.
- The subject of cases, what stands before the colon, has one spelling.
- Patterns by which a preset or tests/run.sh chooses sources, or leaves them out, name those that there are.
"""
import pathlib
import re
import sys

OF_MANY = {"properties", "faults"}  # headers
OF_OTHER_PROGRAMS = {"replay", "support"}  # as folders with a CMakeLists.txt

# Public headers without a test named after them: the test that covers each, a word in that test as evidence, and the reason.
ELSEWHERE = {
    "slamb.hpp": ("compile/using_directive.cpp", "slamb::names", "a program must compile"),
    "compressor/dense_in.hpp": ("properties/dense_compressor.cpp", "dense_in", "the optimizers have its Compressor"),
    "communicator/nccl_options.hpp": ("distributed/nccl/handles.cpp", "nccl_options", "it needs the stand-in for NCCL"),
    "communicator/thread_options.hpp": ("communicator/thread_communicator.cpp", "timeouts out of range", "thread_group takes them"),
    "optimizer/device_learning_rates.hpp": ("properties/graphs.cpp", "device_learning_rates", "graphs read them"),
    "optimizer/rank_options.hpp": ("properties/steps_in_parts.cpp", "bucket_bytes = 0", "whole optimizers have them"),
    "backend/cuda/cuda_backend.cuh": ("device/other_recipes.cu", "cuda_backend", "it needs a GPU"),
    "backend/cuda/emulated_backend.hpp": ("properties/emulated_replay.cpp", "emulated", "whole optimizers run on it"),
    "backend/host/host_backend.hpp": ("faults/bad_input.cpp", "a number of threads out of range", "whole optimizers run on it"),
    "communicator/cuda/thread_communicator.cuh": ("device/communicator.cpp", "cuda_thread_communicator", "it needs a GPU"),
    "communicator/cuda/staged_communicator.hpp": ("distributed/mpi/devices/staged.cpp", "staged_communicator", "it needs mpirun"),
    "communicator/mpi_device_options.hpp": ("distributed/mpi/devices/communicator.cpp", "mpi_device_options", "it needs mpirun"),
    "communicator/mpi_environment.hpp": ("distributed/mpi/main.cpp", "mpi_environment", "it needs mpirun"),
    "communicator/mpi_error.hpp": ("distributed/mpi/failures.cmake", "message_another_size", "its text is what a rank prints"),
    "communicator/mpi_hierarchy.hpp": ("distributed/mpi/hierarchy.cpp", "split_by_node", "it needs mpirun"),
    "communicator/mpi_options.hpp": ("distributed/mpi/calls.cpp", "mpi_options", "it needs mpirun"),
    "communicator/nccl_error.hpp": ("distributed/nccl/failures.cpp", "nccl_error", "it needs the stand-in for NCCL"),
    "communicator/nccl_types.hpp": ("distributed/nccl/calls.cpp", "nccl_type", "it needs the stand-in for NCCL"),
    "impl/host.hpp": ("compile/consumer_compiled/CMakeLists.txt", "slamb::compiled", "the compiled form includes it, and a package is tested"),
    "core/config.hpp": ("compile/rejected_language.cmake", "the first error is another", "programs in other languages must not compile"),
    "core/storage_bytes.hpp": ("properties/bytes_by_type.cpp", "storage_bytes", "the counts of passes take it"),
    "core/allocator.hpp": ("faults/bad_input.cpp", "an allocator that fails", "whole optimizers take memory from it"),
    "core/concepts.hpp": ("compile/must_fail/communicator_without_size.cpp", "expect: all_reduce_sum needs", "programs must not compile"),
    "core/error.hpp": ("faults/failed_calls.cpp", "communicator_error", "others throw it"),
    "core/parameter.hpp": ("pass/layout.cpp", "parameter", "others read it"),
    "core/real.hpp": ("backend/host/simd.cpp", "slamb/core/real.hpp", "floats are compared with lanes of vectors"),
    "error_feedback/no_error_feedback.hpp": ("exchange/quantized.cpp", "no_error_feedback", "only facts, which exchanges ask for"),
    "error_feedback/residual.hpp": ("exchange/quantized.cpp", "residual", "only facts, which exchanges ask for"),
    "error_feedback/two_sided.hpp": ("exchange/quantized.cpp", "two_sided", "only facts, which exchanges ask for"),
    "plan/shapes.hpp": ("plan/traffic.cpp", "plan::world's ranks", "plans are made of them"),
}


def stems(*folders):
    return {p.stem for folder in folders for p in folder.glob("*") if p.suffix in (".hpp", ".cuh")}


def text_of(path):
    return path.read_text(encoding="utf-8")


def named_after(name, headers):
    """The header, or concept, that a source called `name` tests."""
    return max((h for h in headers if name == h or name.startswith(h + "_")), key=len, default=None)


def subject_of_header(header):
    """What its cases are called where no source is: cuda_mpi_communicator is in communicator/cuda."""
    return header.stem if "cuda" not in header.parts else "cuda_" + re.sub("^cuda_", "", header.stem)


def names_in(source):
    for literals in re.findall(r'TEST_CASE(?:_TEMPLATE)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text_of(source)):
        yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))


def subjects_in(source):
    return (name.partition(":")[0] for name in names_in(source))


def only_includes(header):
    code = re.sub(r"//.*", "", text_of(header))
    return not re.sub(r"^\s*#.*$", "", code, flags=re.M).strip()


def alternatives(pattern):
    """All that `(a|b)_c|d` can be, without its parentheses; `(a)?` is nothing, too."""
    group = re.search(r"\(([^()]*)\)(\??)", pattern)
    if not group:
        return set(pattern.split("|"))
    options = group[1].split("|") + [""] * len(group[2])
    return set().union(*(alternatives(pattern[: group.start()] + option + pattern[group.end() :]) for option in options))


class tree:
    def __init__(self, root, folders):
        self.root, self.tests, self.include = root, root / "tests", root / "include/slamb"
        self.folders = folders
        self.concepts = set(re.findall(r"^concept (\w+) =", text_of(self.include / "core/concepts.hpp"), flags=re.M))
        found = (p for p in sorted(self.tests.rglob("*")) if p.suffix in (".cpp", ".cu"))
        self.sources = [p.relative_to(self.tests) for p in found if self.tests / "compile" not in p.parents]
        self.spellings = {}  # of each subject: where each is first
        for source in self.sources:
            for subject in subjects_in(self.tests / source):
                spelled = self.spellings.setdefault(re.sub(r"[-_ ]", "", subject).lower(), {})
                spelled.setdefault(subject, source)

    def has(self, folder):
        """Whether the program has its sources; those right below tests/ it has."""
        return folder == "." or any(folder == f or folder.startswith(f + "/") for f in self.folders)

    def header_of(self, source):
        folder = source.parent.as_posix()
        if folder == "support/tests":
            headers = stems(self.tests / "support")
        elif folder.startswith("examples/"):
            headers = stems(self.root / folder)
        else:
            headers = stems(self.include / folder, self.include / folder / "detail", self.include / "detail" / folder)
            headers |= self.concepts if folder != "." else set()
        return named_after(source.stem, headers)

    def wrong_sources(self):
        others = {p.parent.name for p in self.tests.glob("*/CMakeLists.txt")} | OF_OTHER_PROGRAMS
        for source in self.sources:
            folder = source.parent.as_posix()
            if not self.has(folder):
                if source.parts[0] not in others:
                    yield f"tests/{folder}: no program has its sources"
                continue
            namespace = source.with_suffix("").as_posix().replace("/", "_") + "_tests"
            if not re.search(rf"^namespace {namespace} {{", text_of(self.tests / source), flags=re.M):
                yield f"tests/{source}: its tests are not in namespace {namespace}"
            if folder not in OF_MANY and self.header_of(source) is None:
                yield f"tests/{source}: no header of this name in its component"

    def wrong_names(self):
        for source in self.sources:
            for name in names_in(self.tests / source):
                if ";" in name:
                    yield f"tests/{source}: '{name}' has a semicolon, at which CTest divides it into two tests"

    def wrong_subjects(self):
        for spelled in self.spellings.values():
            if len(spelled) > 1:
                yield "one subject, several spellings: " + ", ".join(f"'{s}' ({p})" for s, p in sorted(spelled.items()))

    def wrong_patterns(self):
        names = [source.with_suffix("").as_posix() for source in self.sources]
        for script in ("CMakePresets.json", "tests/run.sh"):
            for pattern in re.findall(r'SLAMB_TESTS_(?:ONLY=|LEFT_OUT=|LEFT_OUT": ")([^"]+)', text_of(self.root / script)):
                for name in alternatives(pattern):
                    if not any(re.fullmatch(name, n) for n in names):
                        yield f"{script}: no source is called '{name}'"

    def untested(self):
        """Public headers after which neither a source nor cases are named."""
        public = (p.relative_to(self.include) for p in sorted(self.include.rglob("*")) if p.suffix in (".hpp", ".cuh"))
        public = [p for p in public if "detail" not in p.parts and not only_includes(self.include / p)]
        sources = {(s.parent, self.header_of(s)) for s in self.sources if self.has(s.parent.as_posix())}
        cases = {s for spelled in self.spellings.values() for s in spelled}
        subjects = [subject_of_header(p) for p in public]
        return {
            header.as_posix()
            for header, subject in zip(public, subjects)
            if (header.parent, header.stem) not in sources and not (subject in cases and subjects.count(subject) == 1)
        }

    def wrong_headers(self):
        untested = self.untested()
        for header in untested - ELSEWHERE.keys():
            yield f"{header}: no test is named after it"
        for header, (test, word, _) in ELSEWHERE.items():
            if header not in untested:
                yield f"{header}: listed as tested elsewhere, but a test is named after it, or it is gone"
            elif not (self.tests / test).exists() or word not in text_of(self.tests / test):
                yield f"{header}: {test} does not have '{word}', which shows that it tests it"

    def wrong(self):
        return sorted({*self.wrong_sources(), *self.wrong_names(), *self.wrong_subjects(), *self.wrong_patterns(), *self.wrong_headers()})


if __name__ == "__main__":
    wrong = tree(pathlib.Path(sys.argv[1]), sys.argv[2:]).wrong()
    print("\n".join(wrong) or "tests mirror the headers")
    sys.exit(1 if wrong else 0)
