#!/usr/bin/env python3
"""Checks that the fragments of code in a document are lines of the source that they show.

    document_fragments.py DOCUMENT.md SOURCE [UNTIL]
    document_fragments.py --self-test

Each block between ```cpp and ``` must be consecutive lines of the source, with the same indentation. A line "// …" in a block stands
for lines that are left out: what follows it must come later in the source. Exits 1, with the line number of each wrong block, if
there is one or if the document has no block. With UNTIL, the document must also show each line of the source before the first one that
contains UNTIL, except comments and the standard library's headers.
"""
import pathlib
import re
import sys

BLOCK = re.compile(r"^```cpp\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"^ *// …\n", re.MULTILINE)


def is_shown(body, source):
    """Whether the parts of `body` between lines "// …" occur in `source`, one after another."""
    begin = 0
    for part in LEFT_OUT.split(body):
        found = ("\n" + source).find("\n" + part, begin) if part.strip() else -1
        if found < 0:
            return False
        begin = found + len(part)
    return True


def problems_of(document, source):
    """The mistakes, and the number of blocks."""
    blocks = list(BLOCK.finditer(document))
    problems = [f"line {document.count(chr(10), 0, match.start('body')) + 1}: not in the source"
                for match in blocks if not is_shown(match["body"], source)]
    return problems or ([] if blocks else ["no block of code"]), len(blocks)


def lines_not_shown(document, source, until):
    shown = {line for match in BLOCK.finditer(document) for line in match["body"].splitlines()}
    lines = source[:source.index(until)].splitlines() if until in source else [f"{until}: not in the source"]
    return [f"{line!r} of the source is not shown" for line in lines
            if line.strip() and line not in shown and not re.match(r"//|#include <\w+>", line)]


def self_test():
    source = "int a;\n  int b;\nint c;\n"
    right = ["int a;\n", "int a;\n  int b;\n", "  int b;\nint c;\n", "int a;\n// …\nint c;\n"]
    wrong = ["int d;\n", "int a;\nint c;\n", "int b;\n", "int\n", "", "int c;\n// …\nint a;\n", "int a;\n// …\nint a;\n", "// …\n"]
    cases = ([(f"```cpp\n{body}```\n", []) for body in right] + [("", ["no block of code"])] +
             [(f"```cpp\n{body}```\n", ["line 3: not in the source"]) for body in wrong])
    failures = 0
    for text, expected in cases:
        found = problems_of("# A page\n" + text, source)[0]
        if found != expected:
            failures += 1
            print(f"self-test: {text!r}: expected {expected}, found {found}", file=sys.stderr)
    for text, expected in [("int a;\n  int b;\n", []), ("int a;\n", ["'  int b;' of the source is not shown"])]:
        failures += lines_not_shown(f"```cpp\n{text}```\n", "// what it is\n#include <vector>\n" + source, "int c") != expected
    print(f"self-test: {len(cases) + 2} documents, {failures} failed")
    return failures == 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    document, source = (pathlib.Path(name).read_text(encoding="utf-8") for name in sys.argv[1:3])
    problems, blocks = problems_of(document, source)
    problems += [problem for until in sys.argv[3:] for problem in lines_not_shown(document, source, until)]
    print("\n".join([f"{sys.argv[1]}: {problem}" for problem in problems] + [f"{blocks} blocks of code, {len(problems)} mistakes"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
