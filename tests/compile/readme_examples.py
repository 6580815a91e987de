"""Compiles and runs the complete programs of a Markdown file.

    readme_examples.py [--required] [--fence WORDS] [--launcher COMMAND] --output FOLDER FILE.md -- COMPILER FLAGS…

A fenced ```cpp block, or one that begins with the WORDS, that holds `int main` is a complete program; the others are fragments, counted but not compiled.
Exits 1 if a program does not compile or does not return 0, or, with --required, if there is none.
"""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)


def blocks_of(text, fences):
    """Yields (line, source) for each block of these fences; the line is that of the block's first line of code."""
    for match in FENCE.finditer(text):
        if match["language"].strip() in fences:
            indent = match["indent"]
            lines = [line.removeprefix(indent) for line in match["body"].splitlines()]
            yield text.count("\n", 0, match.start("body")) + 1, "\n".join(lines) + "\n"


def run_program(document, line, source, folder, compiler, launcher):
    """Compiles and runs one program; returns what went wrong, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"line_{line}.cpp"
    # Errors name the line of the document.
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
    parser.add_argument("--output", type=pathlib.Path, required=True, help="where sources and programs are put")
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("compiler", nargs="+", help="compiler and flags, after --")
    arguments = parser.parse_args()

    blocks = list(blocks_of(arguments.document.read_text(encoding="utf-8"), arguments.fence or ("cpp", "c++")))
    programs = [(line, source) for line, source in blocks if re.search(r"\bint main\b", source)]
    failures = 0
    for line, source in programs:
        problem = run_program(arguments.document, line, source, arguments.output, arguments.compiler,
                              shlex.split(arguments.launcher))
        print(f"{arguments.document.name}:{line}: {problem or 'compiles and runs'}")
        failures += problem is not None
    print(f"{len(programs)} programs, {failures} failed, {len(blocks) - len(programs)} fragments not compiled")
    if arguments.required and not programs:
        print(f"{arguments.document} shows no complete program", file=sys.stderr)
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
