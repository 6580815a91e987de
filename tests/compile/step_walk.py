#!/usr/bin/env python3
"""Counts what a reader of a step has to read.

    step_walk.py lines INCLUDE_FOLDER             the lines of each recipe's step, which may be MOST_LINES
    step_walk.py files INCLUDE_FOLDER COMPILER    the headers, and the doors between them, of a step of SLAMB on the host with two
                                                  ranks that are threads; COMPILER: g++
    step_walk.py --self-test

A step is the bodies of begin(), exchange() and finish(). A header is counted if the step runs any of its code, be it one line. A door
is a function that is entered from another header. The step is compiled without inlining, and takes the branches of an ordinary step:
no averaging, no comparison of parameters.
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_LINES = 40
RECIPES = ("lamb", "slamb", "one_bit", "zero_one_adam")
PARTS = (r"  void begin\(\) override ", r"  bool exchange\(const gradient_bucket& \w+\) override ", r"  void finish\(\) override ")

PROGRAM = r"""
#include <slamb/slamb.hpp>
#include <slamb/threads.hpp>
#include <cstdio>
#include <set>
#include <thread>
#include <utility>
#include <vector>
static thread_local std::vector<void*>* entered = nullptr;
static std::set<std::pair<void*, void*>> edges;
static bool is_walking = false;
#define PLAIN __attribute__((no_instrument_function))
extern "C" PLAIN void __cyg_profile_func_enter(void* function, void*) {
  if (entered == nullptr || !is_walking) return;
  is_walking = false;
  edges.insert({entered->empty() ? nullptr : entered->back(), function});
  entered->push_back(function);
  is_walking = true;
}
extern "C" PLAIN void __cyg_profile_func_exit(void*, void*) {
  if (entered != nullptr && is_walking && !entered->empty()) entered->pop_back();
}
int main() {
  slamb::thread_group group(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&group, rank] {
      std::vector<float> w(20000, 1.0F), g(20000, 0.5F);
      const std::vector<slamb::parameter> tensors{{.data = w.data(), .gradient = g.data(), .size = w.size()}};
      slamb::slamb<slamb::thread_communicator> optimizer(tensors, {}, group.communicator(rank), {.threads = 1});
      optimizer.step(0.01);
      optimizer.step(0.01);
      std::vector<void*> stack;
      if (rank == 0) entered = &stack;
      if (rank == 0) is_walking = true;
      optimizer.step(0.01);
      if (rank == 0) is_walking = false;
      entered = nullptr;
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& [from, to] : edges) std::printf("%p %p\n", from, to);
}
"""


def body_lines(text, opening):
    """The lines between the braces of the function that begins with `opening`, or the one line that it is."""
    match = re.search(opening, text)
    if match is None:
        raise ValueError(f"there is no {opening!r}")
    depth, at = 0, match.end()
    while True:
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            break
        at += 1
    body = text[match.end() + 1:at].strip("\n")
    return max(1, len([line for line in body.split("\n") if line.strip()]))


def count_lines(include):
    wrong = 0
    for recipe in RECIPES:
        text = (include / "slamb/optimizer" / (recipe + ".hpp")).read_text(encoding="utf-8")
        lines = sum(body_lines(text, opening) for opening in PARTS)
        print(f"{recipe}: a step of {lines} lines")
        wrong += lines > MOST_LINES
    print(f"{len(RECIPES)} recipes, {wrong} with more than {MOST_LINES} lines")
    return wrong == 0


def walk(include, compiler):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "walk.cpp").write_text(PROGRAM, encoding="utf-8")
        subprocess.run([compiler, "-std=c++20", "-O0", "-g", "-no-pie", "-finstrument-functions", f"-I{include}",
                        "-finstrument-functions-exclude-file-list=/usr/", "walk.cpp", "-o", "walk", "-pthread"], cwd=root, check=True)
        pairs = [line.split() for line in subprocess.run(["./walk"], cwd=root, check=True, capture_output=True,
                                                         text=True).stdout.splitlines()]
        addresses = sorted({a for pair in pairs for a in pair if a != "(nil)"})
        lines = subprocess.run(["addr2line", "-e", "walk"] + addresses, cwd=root, check=True, capture_output=True,
                               text=True).stdout.splitlines()
    where = {}
    for address, line in zip(addresses, lines):
        path, _, number = line.split(" ")[0].rpartition(":")
        where[address] = (path.split("/slamb/")[-1], number) if f"{include}/slamb/" in path else None
    functions, doors = collections.defaultdict(set), collections.defaultdict(set)
    for source, target in pairs:
        to = where[target]
        if to is None:
            continue
        functions[to[0]].add(to)
        if where.get(source) is None or where[source][0] != to[0]:
            doors[to[0]].add(to)
    return functions, doors


def level_of(header):
    return header.split("/")[0] if not header.startswith("detail/") else "/".join(header.split("/")[:2])


def count_files(include, compiler):
    functions, doors = walk(include.resolve(), compiler)
    if "optimizer/slamb.hpp" not in functions:
        print("the step of optimizer/slamb.hpp was not taken")
        return False
    levels = collections.defaultdict(list)
    for header in sorted(functions):
        levels[level_of(header)].append(header)
    for level, headers in sorted(levels.items()):
        print(f"{level}: {len(headers)} headers, {sum(len(doors[h]) for h in headers)} doors")
        for header in headers:
            print(f"    {header}: {len(functions[header])} functions, {len(doors[header])} doors")
    print(f"{len(functions)} headers, {sum(map(len, doors.values()))} doors")
    return True


def self_test():
    text = "  void begin() override { a(); }\n\n  void finish() override {\n    if (x) {\n      b();\n    }\n\n    c();\n  }\n"
    found = [body_lines(text, PARTS[0]), body_lines(text, PARTS[2])]
    print(f"self-test: {found}")
    return found == [1, 4]


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    if len(sys.argv) == 3 and sys.argv[1] == "lines":
        return 0 if count_lines(pathlib.Path(sys.argv[2])) else 1
    if len(sys.argv) == 4 and sys.argv[1] == "files":
        return 0 if count_files(pathlib.Path(sys.argv[2]), sys.argv[3]) else 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
