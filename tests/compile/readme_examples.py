"""Compiles and runs the complete programs of a Markdown file.

    readme_examples.py [--fence WORDS] --list FILE.md
    readme_examples.py [--fence WORDS] [--required] --are LINES FILE.md
    readme_examples.py [--fence WORDS] [--required] [--only LINE] [--launcher COMMAND] --output FOLDER FILE.md -- COMPILER FLAGS…

A fenced ```cpp block, or one that begins with the WORDS, that holds `int main` is a complete program; the others are fragments, counted but not compiled.
--list prints the line of each program's first line of code, and the heading above it. --are exits 1 unless these lines, with
commas between them, are those of the programs.
Exits 1 if a program does not compile or does not return 0, if none begins at the LINE, or, with --required, if there is none.
"""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(?P<words>.*?) *$", re.MULTILINE)


def blocks_of(text, fences):
    """Yields (line, source) for each block of these fences; the line is that of the block's first line of code."""
    for match in FENCE.finditer(text):
        if match["language"].strip() in fences:
            indent = match["indent"]
            lines = [line.removeprefix(indent) for line in match["body"].splitlines()]
            yield text.count("\n", 0, match.start("body")) + 1, "\n".join(lines) + "\n"


def heading_above(text, line):
    """The words of the last heading above a line, of which only such are left as the name of a test may have."""
    # Keeps the lines of blocks, so that line numbers are those of the document.
    prose = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    headings = HEADING.findall("".join(prose.splitlines(keepends=True)[: line - 1]))
    return re.sub(r"[^\w ,.:+/()'-]", "", headings[-1]) if headings else "no heading"


def run_program(document, line, source, folder, compiler, launcher):
    """Compiles and runs one program; returns what went wrong, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"line_{line}.cpp"
    # Error messages then have the document's line numbers.
    file.write_text(f'#line {line} "{document}"\n{source}', encoding="utf-8")
    program = file.with_suffix("").resolve()  # it runs in another folder
    build = subprocess.run([compiler[0], str(file), *compiler[1:], "-o", str(program)], capture_output=True, text=True)
    if build.returncode != 0:
        return f"does not compile:\n{build.stdout}{build.stderr}"
    try:
        result = subprocess.run([*launcher, str(program)], cwd=folder, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "does not end within 120 s"
    if result.returncode != 0:
        return f"returns {result.returncode}:\n{result.stdout}{result.stderr}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--required", action="store_true", help="a file without a program is an error")
    parser.add_argument("--fence", action="append", help="words behind the three backticks, instead of cpp and c++")
    parser.add_argument("--launcher", default="", help="what the programs are started by")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--list", action="store_true", help="print the programs, and compile none")
    task.add_argument("--are", metavar="LINES", help="compare the programs' lines with these, and compile none")
    task.add_argument("--output", type=pathlib.Path, help="where sources and programs are put")
    parser.add_argument("--only", type=int, metavar="LINE", help="the program that begins at this line")
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("compiler", nargs="*", help="compiler and flags, after --")
    arguments = parser.parse_args()
    if arguments.output and not arguments.compiler:
        parser.error("--output: the compiler is missing, after --")

    text = arguments.document.read_text(encoding="utf-8")
    blocks = list(blocks_of(text, arguments.fence or ("cpp", "c++")))
    programs = [(line, source) for line, source in blocks if re.search(r"\bint main\b", source)]
    fragments = len(blocks) - len(programs)
    if arguments.required and not programs:
        print(f"{arguments.document} shows no complete program", file=sys.stderr)
        return 1
    if arguments.list:
        for line, _ in programs:
            print(line, heading_above(text, line))
        return 0
    if arguments.are is not None:
        lines = ",".join(str(line) for line, _ in programs)
        if lines != arguments.are:
            print(f"{arguments.document}: programs begin at the lines '{lines}', but the tests are of '{arguments.are}': "
                  "configure again")
            return 1
        print(f"{len(programs)} programs, {fragments} fragments not compiled")
        return 0
    if arguments.only is not None:
        programs = [(line, source) for line, source in programs if line == arguments.only]
        if not programs:
            print(f"{arguments.document}: no program begins at line {arguments.only}", file=sys.stderr)
            return 1

    failures = 0
    for line, source in programs:
        problem = run_program(arguments.document, line, source, arguments.output, arguments.compiler,
                              shlex.split(arguments.launcher))
        print(f"{arguments.document.name}:{line}: {problem or 'compiles and runs'}")
        failures += problem is not None
    print(f"{len(programs)} programs, {failures} failed, {fragments} fragments not compiled")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
