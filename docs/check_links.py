"""Checks the links of README.md and docs/, and the pages that comments of the code name.

    check_links.py [ROOT]
    check_links.py --self-test

- A relative link leads to a file or a folder of the repository, and its anchor to a heading there, as GitHub makes anchors.
- A page that the code names, as docs/X.md, exists, and so does an equation or a heading of it: docs/algorithms/X.md (3), (4) … (7), or
  docs/algorithms/X.md, "In floats".
- Each equation of docs/algorithms/X.md has a number of its own, and none is left out.

Links to other sites are not followed. Exits 1, with a line for each mistake, if there is one, or if nothing was found to check.
--self-test runs the checks on small repositories with one mistake each, which they have to find, and on one without.
"""

import pathlib
import re
import sys
import tempfile
import unicodedata

CODE_FOLDERS = ("include", "tests", "bench", "examples", "cmake", ".ci")
CODE_FILES = ("CMakeLists.txt", "CMakePresets.json")
CODE_NAMES = re.compile(r"\.(hpp|cpp|cuh|cu|h|cmake|txt|sh|py|in|def)$|^run$")

FENCE = re.compile(r"^(?P<indent> {0,3})(?P<mark>`{3,}|~{3,})[^\n]*\n.*?^(?P=indent)(?P=mark)[ ]*$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?(?P<target>[^)\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(?P<target>\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^ {0,3}(?P<level>#{1,6})[ \t]+(?P<words>.*?)[ \t]*#*[ \t]*$", re.MULTILINE)
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)

PAGE = re.compile(r"\bdocs/[\w./-]+?\.md\b")
NUMBERS = r"\(\d+\)(?:(?:\s*,\s*|\s*(?:…|\.\.\.)\s*|\s+(?:and|to|or)\s+)\(\d+\))*"
EQUATIONS = re.compile(r"\b(?P<page>[a-z0-9_]+)\.md\s+(?P<numbers>" + NUMBERS + ")")
LINKED_EQUATIONS = re.compile(r"\]\((?P<target>[^)\s#]*?(?P<page>[a-z0-9_]+)\.md)(?:#[^)\s]*)?\)\s+(?P<numbers>" + NUMBERS + ")")
SECTIONS = re.compile(r"\b(?P<page>docs/[\w./-]+?\.md),\s+(?P<names>\"[^\"\n]+\"(?:\s+and\s+\"[^\"\n]+\")*)")
DISPLAYED = re.compile(r"(?:^| {2,})\((\d+)\)(?= |$)")


def blank(match):
    """As many lines, and nothing in them."""
    return re.sub(r"[^\n]", " ", match[0])


def without_code(text):
    """The prose of a page, line by line where it was: no fenced blocks, no indented blocks of equations, no code spans."""
    text = FENCE.sub(blank, text)
    lines, before_is_blank, in_block = [], True, False
    for line in text.split("\n"):
        indented = line.startswith("    ") and line.strip()
        in_block = bool(indented and (before_is_blank or in_block))
        lines.append("" if in_block else line)
        before_is_blank = not line.strip()
    return CODE_SPAN.sub(blank, "\n".join(lines))


def anchor_of(words):
    """What GitHub makes of a heading: lower case, blanks as hyphens, and of the rest letters, digits, hyphens and underscores."""
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", words)
    words = re.sub(r"[`*]", "", words).lower()
    kept = (c for c in words if c in " -_" or unicodedata.category(c)[0] in "LN" or unicodedata.category(c) in ("Mn", "Mc"))
    return "".join(kept).replace(" ", "-")


class Page:
    """A Markdown file: its headings, its anchors, and the equations that its indented blocks number."""

    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8")
        fenceless = FENCE.sub(blank, self.text)
        self.headings = [match["words"] for match in HEADING.finditer(fenceless)]
        self.anchors = set()
        seen = {}
        for words in self.headings:
            anchor = anchor_of(words)
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            self.anchors.add(anchor if count == 0 else f"{anchor}-{count}")
        self.equations = []
        for line in fenceless.split("\n"):
            if line.startswith("    "):
                self.equations += [int(number) for number in DISPLAYED.findall(line)]


class Checker:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.problems = []
        self.pages = {}
        self.links = self.named = self.numbers = 0

    def page(self, path):
        if path not in self.pages:
            self.pages[path] = Page(path)
        return self.pages[path]

    def complain(self, path, text, position, problem):
        self.problems.append(f"{path.relative_to(self.root)}:{text.count(chr(10), 0, position) + 1}: {problem}")

    def exists(self, path):
        """A file or folder within the repository, spelt as on a file system that knows upper case from lower."""
        if path != self.root and self.root not in path.parents:
            return False
        current = self.root
        for part in path.relative_to(self.root).parts:
            if not current.is_dir() or part not in {entry.name for entry in current.iterdir()}:
                return False
            current /= part
        return current.exists()

    def check_link(self, path, text, position, target):
        if ELSEWHERE.match(target):
            return
        self.links += 1
        if not target:
            self.complain(path, text, position, "a link without a target")
            return
        name, _, anchor = target.partition("#")
        if name.startswith("/"):
            self.complain(path, text, position, f"'{target}' begins with /; say where it is from this page")
            return
        there = pathlib.Path(*path.parent.parts)
        for part in pathlib.PurePosixPath(name).parts:
            there = there.parent if part == ".." else there / part
        there = there if name else path
        if not self.exists(there):
            self.complain(path, text, position, f"'{target}': there is no {name}")
        elif anchor and there.suffix != ".md":
            self.complain(path, text, position, f"'{target}': {name} is no page with headings")
        elif anchor and anchor not in self.page(there).anchors:
            self.complain(path, text, position, f"'{target}': {there.relative_to(self.root)} has no heading for #{anchor}")

    def check_equations(self, path, text, position, page, numbers):
        there = self.root / "docs/algorithms" / f"{page}.md"
        if not there.exists():
            self.complain(path, text, position, f"equations {numbers} of {page}.md, but there is no docs/algorithms/{page}.md")
            return
        self.numbers += 1
        found = set(self.page(there).equations)
        for number in re.findall(r"\d+", numbers):
            if int(number) not in found:
                self.complain(path, text, position, f"docs/algorithms/{page}.md has no equation ({number})")

    def check_document(self, path):
        text = self.page(path).text
        prose = without_code(text)
        for pattern in (LINK, DEFINITION):
            for match in pattern.finditer(prose):
                self.check_link(path, text, match.start(), match["target"])
        for match in LINKED_EQUATIONS.finditer(prose):
            if "algorithms" in path.parts or "algorithms/" in match["target"]:
                self.check_equations(path, text, match.start(), match["page"], match["numbers"])
        if path.parent.name == "algorithms":
            equations = self.page(path).equations
            expected = list(range(1, len(equations) + 1))
            if equations != expected:
                self.complain(path, text, 0, f"equations are numbered {equations}, expected 1 … {len(equations)} in order")

    def check_code(self, path):
        text = path.read_text(encoding="utf-8", errors="replace")
        # A comment that goes on in the next line is one text; positions stay.
        joined = re.sub(r"\n[ \t]*(?://[/!<]*|#)", lambda match: " " * len(match[0]), text)
        for match in PAGE.finditer(joined):
            self.named += 1
            if not self.exists(self.root / match[0]):
                self.complain(path, text, match.start(), f"there is no {match[0]}")
        if "docs/algorithms/" in joined:
            for match in EQUATIONS.finditer(joined):
                self.check_equations(path, text, match.start(), match["page"], match["numbers"])
        for match in SECTIONS.finditer(joined):
            there = self.root / match["page"]
            for name in re.findall(r"\"([^\"]+)\"", match["names"]):
                if there.exists() and re.sub(r"\s+", " ", name) not in self.page(there).headings:
                    self.complain(path, text, match.start(), f"{match['page']} has no heading \"{name}\"")

    def run(self):
        documents = [self.root / "README.md", *sorted((self.root / "docs").rglob("*.md"))]
        for path in documents:
            if path.exists():
                self.check_document(path)
            else:
                self.problems.append(f"there is no {path.relative_to(self.root)}")
        code = [self.root / name for name in CODE_FILES if (self.root / name).exists()]
        for folder in CODE_FOLDERS:
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file() and CODE_NAMES.search(path.name) and path.stat().st_size < 1 << 20:
                    code.append(path)
        for path in code:
            self.check_code(path)
        if self.links == 0 or self.named == 0 or self.numbers == 0:
            self.problems.append(f"nothing to check: {self.links} links, {self.named} pages and {self.numbers} lists of equations "
                                 "named in the code")
        print("\n".join(self.problems + [f"{len(documents)} pages, {self.links} links, {self.named} pages and {self.numbers} lists of "
                                         f"equations named, {len(self.problems)} mistakes"]))
        return not self.problems


RIGHT = {
    "README.md": "# A library\n\n[start](docs/start.md#an-example) ![plot](docs/plot.svg) [x](https://example.org/none#at-all)\n",
    "docs/start.md": "# Start\n\n## An example\n\n`[no](link.md)`\n\n```\n[no](link.md)\n# no heading\n```\n\n## An example\n\n"
                     "[twice](#an-example-1) [code](../include/a.hpp) [folder](../include)\n[page](algorithms/adam.md#in-floats) (1), (2)\n"
                     "[more][there]\n\n[there]: algorithms/adam.md#compressed-t--t_w\n",
    "docs/plot.svg": "<svg/>",
    "docs/algorithms/adam.md": "# Adam\n\n    m ← g    (1)\n    v ← f(3)   (2)   option\n\n## In floats\n\n## Compressed, t > T_w\n",
    "include/a.hpp": "// docs/algorithms/adam.md (1) … (2), and docs/start.md\n// docs/algorithms/adam.md\n// (2)\n"
                     "// docs/algorithms/adam.md, \"In floats\"\n",
}
WRONG = [
    ("README.md", "[a](docs/none.md)\n", "README.md:1: 'docs/none.md': there is no docs/none.md"),
    ("README.md", "[a](docs/start.md#none)\n", "docs/start.md has no heading for #none"),
    ("README.md", "[a](docs/Start.md)\n", "'docs/Start.md': there is no docs/Start.md"),
    ("README.md", "[a](../README.md)\n", "there is no ../README.md"),
    ("README.md", "[a](/docs/start.md)\n", "begins with /"),
    ("README.md", "[a]()\n", "a link without a target"),
    ("README.md", "[a](docs/plot.svg#top)\n", "is no page with headings"),
    ("README.md", "[a\nb](docs/none.md \"title\")\n", "there is no docs/none.md"),
    ("README.md", "[a][b]\n\n[b]: docs/none.md\n", "README.md:3: 'docs/none.md'"),
    ("README.md", "- a list\n    [a](docs/none.md)\n", "README.md:2: 'docs/none.md'"),
    ("README.md", "```\n[a](docs/none.md)\n```\n", "nothing to check: 0 links", "docs/start.md"),
    ("docs/start.md", "# Start\n\n[a](#no-heading)\n\n```\n# No heading\n```\n", "has no heading for #no-heading"),
    ("docs/start.md", "# Start\n\n## An example\n\n[a](algorithms/adam.md) (2), (3)\n", "docs/start.md:5: docs/algorithms/adam.md has no equation (3)"),
    ("docs/algorithms/adam.md", "# Adam\n\n    m ← g    (1)\n    v ← g    (1)\n\n## In floats\n\n## Compressed, t > T_w\n", "are numbered [1, 1]"),
    ("docs/algorithms/adam.md", "# Adam\n\n    m ← g    (1)\n    v ← g    (3)\n\n## In floats\n\n## Compressed, t > T_w\n", "are numbered [1, 3]"),
    ("include/a.hpp", "int a;  // docs/none.md\n// docs/algorithms/adam.md (1)\n", "include/a.hpp:1: there is no docs/none.md"),
    ("include/a.hpp", "// docs/algorithms/adam.md (1), (4)\n", "docs/algorithms/adam.md has no equation (4)"),
    ("include/a.hpp", "// docs/algorithms/adam.md (1),\n// lamb.md (2)\n", "there is no docs/algorithms/lamb.md"),
    ("include/a.hpp", "// docs/algorithms/adam.md\n// (9)\n", "has no equation (9)"),
    ("include/a.hpp", "// docs/algorithms/adam.md (1), and\n// docs/algorithms/adam.md, \"In words\"\n", "has no heading \"In words\""),
    ("include/a.hpp", "// nothing\n", "nothing to check"),
]


def self_test():
    failures = 0
    for name, content, expected, *left_out in [(None, "", "0 mistakes"), *WRONG]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = dict(RIGHT)
            for other in left_out:  # has links of its own
                files[other] = "# Start\n\n## An example\n"
            if name is not None:
                files[name] = content
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding="utf-8")
            checker = Checker(root)
            is_right = checker.run()
            found = "0 mistakes" if is_right else "\n".join(checker.problems)
            if expected not in found:
                failures += 1
                print(f"self-test: {name} with {content!r}:\nexpected: {expected}\nfound: {found}", file=sys.stderr)
    print(f"self-test: {len(WRONG) + 1} repositories, {failures} failed")
    return failures == 0


def main():
    if len(sys.argv) > 2 or sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 2
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    root = sys.argv[1] if len(sys.argv) == 2 else pathlib.Path(__file__).resolve().parent.parent
    return 0 if Checker(root).run() else 1


if __name__ == "__main__":
    sys.exit(main())
