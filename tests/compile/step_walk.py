#!/usr/bin/env python3
"""Counts the code that a reader of a step has to read.

    step_walk.py lines INCLUDE_FOLDER                  the lines of each recipe's step: at most MOST_LINES
    step_walk.py walk PAGE INCLUDE_FOLDER COMPILER     compares docs/walk.md with a step of SLAMB that COMPILER (g++) builds
    step_walk.py --self-test

A step is the bodies of begin(), exchange() and finish(). The compared step is compiled without inlining. It has two ranks that are
threads, and takes the branches of an ordinary step: no averaging, no comparison of parameters.

The rows of the page's first table are doors: to a function of a header that the step enters, from a header of an earlier row.
The second table names the other headers of which the step runs code. Each header is in one table. Headers in the folders of
ALGORITHM are of level A.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_LINES = 40
ALGORITHM = ("optimizer/", "compressor/", "schedule/", "trust_ratio/", "detail/exchange/")
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
    recipes = wrong = 0
    for header in sorted((include / "slamb/optimizer").glob("*.hpp")):
        text = header.read_text(encoding="utf-8")
        if not re.search(r"\bstatic constexpr const char\* recipe_name = \"", text):
            continue
        lines = sum(body_lines(text, opening) for opening in PARTS)
        print(f"{header.stem}: a step of {lines} lines")
        recipes, wrong = recipes + 1, wrong + (lines > MOST_LINES)
    print(f"{recipes} recipes, {wrong} with more than {MOST_LINES} lines")
    return recipes > 0 and wrong == 0


SYMBOL = re.compile(r"operator ?(\(\)|\[\]|->|<<|>>|[<>]=?(?=[( ])|[-+*/%&|^!~=]=?)")


def name_of(signature):
    """The function's own name: "a::b<c>::d(e) const" -> "d", "f a::operator*<b>(c)" -> "operator*"."""
    symbols = SYMBOL.findall(signature)
    plain = re.sub(r"decltype ?\(auto\) ", "", SYMBOL.sub(lambda match: f"operator_{symbols.index(match.group(1))}_", signature))
    text, depth = "", 0
    for character in plain:
        if character == "(" and depth == 0 and re.search(r"\w$", text):
            break
        depth -= character in ">)]}"
        if depth == 0 and character not in "<>()[]{}":
            text += character
        depth += character in "<([{"
    name = re.split(r"::|[\s*&]", text.strip())[-1]
    number = re.fullmatch(r"operator_(\d+)_", name)
    return "operator" + symbols[int(number.group(1))] if number else name


def walk(include, compiler):
    """The functions of headers that the step enters, as {(header, name)}, and the calls between headers, as {(from, to)}."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "walk.cpp").write_text(PROGRAM, encoding="utf-8")
        subprocess.run([compiler, "-std=c++20", "-O0", "-g", "-no-pie", "-finstrument-functions", f"-I{include}",
                        "-finstrument-functions-exclude-file-list=/usr/", "walk.cpp", "-o", "walk", "-pthread"], cwd=root, check=True)
        pairs = [line.split() for line in subprocess.run(["./walk"], cwd=root, check=True, capture_output=True,
                                                         text=True).stdout.splitlines()]
        addresses = sorted({a for pair in pairs for a in pair if a != "(nil)"})
        lines = subprocess.run(["addr2line", "-C", "-f", "-e", "walk"] + addresses, cwd=root, check=True, capture_output=True,
                               text=True).stdout.splitlines()
    header_of, entered = {}, set()
    for address, signature, place in zip(addresses, lines[::2], lines[1::2]):
        path = place.split(" ")[0].rpartition(":")[0]
        if f"{include}/slamb/" in path:
            # impl/X.ipp has the bodies of X.hpp's functions
            header_of[address] = re.sub(r"^impl/(.*)\.ipp$", r"\1.hpp", path.split("/slamb/")[-1])
            entered.add((header_of[address], name_of(signature)))
    calls = {(header_of.get(source, ""), header_of[target]) for source, target in pairs if target in header_of}
    return entered, calls


def tables_of(page):
    """The rows of the page's two tables: [(level, header, function)], [header]."""
    rows = [[cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
            for line in page.splitlines() if re.match(r"\| ?(\w \| )?`", line)]
    return [tuple(row[:3]) for row in rows if len(row) == 4], [row[0] for row in rows if len(row) == 2]


def level_of(header):
    """A: the algorithm; B: a backend; C: a communicator; M: the model's memory, and numbers."""
    for level, folders in (("A", ALGORITHM), ("B", ("backend/",)), ("C", ("communicator/",))):
        if header.startswith(folders):
            return level
    return "M"


def mistakes_of(doors, beside, entered, calls):
    run = {header for header, _ in entered}
    listed = {header for _, header, _ in doors}
    found = []
    for number, (level, header, function) in enumerate(doors):
        before = {h for _, h, _ in doors[:number]}
        if (header, function) not in entered:
            found.append(f"row {number + 1}: the step does not enter {function} of {header}")
        elif number > 0 and not any((source, header) in calls for source in before - {header}):
            found.append(f"row {number + 1}: nothing listed before calls {header}")
        if level != level_of(header):
            found.append(f"row {number + 1}: {header} has the wrong level")
    found += [f"{header} is in no table" for header in sorted(run - listed - set(beside))]
    found += [f"{header} is listed beside the way, but the step does not run it" for header in sorted(set(beside) - run)]
    found += [f"{header} is in both tables" for header in sorted(listed & set(beside))]
    return found


def compare_walk(page, include, compiler):
    doors, beside = tables_of(page.read_text(encoding="utf-8"))
    entered, calls = walk(include.resolve(), compiler)
    found = mistakes_of(doors, beside, entered, calls)
    print("\n".join(found + [f"{len({h for _, h, _ in doors})} headers on the way, {len({h for l, h, _ in doors if l == 'A'})} of them "
                             f"of the algorithm; {len(doors)} doors; {len(beside)} headers beside the way; "
                             f"{len({h for h, _ in entered})} headers in all, {len(entered)} functions; {len(found)} mistakes"]))
    return not found and len(doors) > 0


def self_test():
    text = "  void begin() override { a(); }\n\n  void finish() override {\n    if (x) {\n      b();\n    }\n\n    c();\n  }\n"
    lines = [body_lines(text, PARTS[0]), body_lines(text, PARTS[2])]
    names = [name_of(s) for s in ("int a::b<c(d)>::e<f>(g<h>) const", "void x::operator()(int)", "a::y operator*<b>(a, b)", "main",
                                  "std::span<a> b::c()", "decltype(auto) a::d(e)", "a::b::(anonymous class)::operator()(c) const",
                                  "void a::f<int, b::c(int)::{lambda(int)#1}>(d::operator()(int)::e const&)", "bool operator< <a>(a)")]
    page = "| A | `optimizer/a` | `f` | x |\n| B | `backend/b` | `g` | y |\n\n| `core/c` | z |\n"
    doors, beside = tables_of(page)
    entered = {("optimizer/a", "f"), ("backend/b", "g"), ("core/c", "h")}
    calls = {("", "optimizer/a"), ("optimizer/a", "backend/b"), ("backend/b", "core/c")}
    planted = [
        mistakes_of(doors, beside, entered - {("backend/b", "g")}, calls),  # not entered
        mistakes_of(doors, beside, entered, calls - {("optimizer/a", "backend/b")}),  # no call
        mistakes_of(doors, [], entered, calls),  # a header that is run and not listed
        mistakes_of(doors, beside + ["core/d"], entered, calls),  # a header that is listed and not run
        mistakes_of(doors, beside + ["backend/b"], entered, calls),  # in both
        mistakes_of([("B",) + doors[0][1:], doors[1]], beside, entered, calls),  # a wrong level
    ]
    right = mistakes_of(doors, beside, entered, calls)
    print(f"self-test: {lines}, {names}, {[len(found) for found in planted]} and {len(right)} mistakes")
    return (lines == [1, 4] and names == ["e", "operator()", "operator*", "main", "c", "d", "operator()", "f", "operator<"] and all(planted)
            and not right)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    if len(sys.argv) == 3 and sys.argv[1] == "lines":
        return 0 if count_lines(pathlib.Path(sys.argv[2])) else 1
    if len(sys.argv) == 5 and sys.argv[1] == "walk":
        return 0 if compare_walk(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]) else 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
