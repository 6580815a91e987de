"""Checks the reference pages against what Doxygen has read of the headers.

    check_reference.py DOXYGEN_FOLDER [PAGES_FOLDER]
    check_reference.py --self-test

A reference page names a public name on a line of its own, ```{doxygenstruct} slamb::name. Each must be in the headers, be of that kind,
have a comment, and stand on one page. Doxygen must not warn of it. Members of public names that have no comment are
listed in DOXYGEN_FOLDER/undocumented.txt; they are no error, since the name and the default of many say it all.
Exits 1 if something is wrong, or if no page names anything.
"""

import pathlib
import re
import sys
import tempfile
import xml.etree.ElementTree as xml

DIRECTIVE = re.compile(r"^```\{doxygen(?P<kind>[a-z]+)\} (?P<name>slamb::[\w:]+)", re.MULTILINE)
COMPOUNDS = ("struct", "class", "concept", "union")
WARNING = re.compile(r"^(?=\S+:\d+: (?:warning|error):)", re.MULTILINE)
WITHOUT_COMMENT = set()


def has_comment(element):
    return any("".join(element.find(part).itertext()).strip()
               for part in ("briefdescription", "detaileddescription") if element.find(part) is not None)


def is_plain(member, compound):
    """A special member function, which says what it is."""
    name = member.findtext("name", "")
    return name in (compound.split("::")[-1], "~" + compound.split("::")[-1], "operator=")


def problems_of(doxygen, pages):
    """Returns what is wrong, the members without a comment, and how many names there are."""
    index = xml.parse(doxygen / "xml" / "index.xml").getroot()
    compounds = {entry.findtext("name"): entry for entry in index if entry.get("kind") in COMPOUNDS}
    members = {}
    for entry in index:
        space = entry.findtext("name", "")
        if entry.get("kind") == "namespace" and re.match(r"slamb(?!::detail)", space):
            for member in xml.parse(doxygen / "xml" / (entry.get("refid") + ".xml")).getroot().iter("memberdef"):
                members.setdefault((member.get("kind"), f"{space}::{member.findtext('name')}"), []).append(member)
    problems, undocumented, seen = [], [], {}
    for page in sorted(pages.glob("*.md")):
        for match in DIRECTIVE.finditer(page.read_text(encoding="utf-8")):
            kind, name = match["kind"], match["name"]
            if name in seen and kind != "function":
                problems.append(f"{page.name}: {name} is on {seen[name]} too")
            seen[name] = page.name
            if kind in COMPOUNDS:
                entry = compounds.get(name)
                if entry is None or entry.get("kind") != kind:
                    problems.append(f"{page.name}: the headers have no {kind} {name}" +
                                    (f", but a {entry.get('kind')}" if entry is not None else ""))
                    continue
                definition = xml.parse(doxygen / "xml" / (entry.get("refid") + ".xml")).getroot().find("compounddef")
                if name in WITHOUT_COMMENT and has_comment(definition):
                    problems.append(f"{page.name}: {name} has a comment now; leave it out of WITHOUT_COMMENT")
                elif name not in WITHOUT_COMMENT and not has_comment(definition):
                    problems.append(f"{page.name}: {name} has no comment")
                for member in definition.iter("memberdef"):
                    if member.get("prot") == "public" and member.get("kind") != "friend" and not has_comment(member) \
                            and not is_plain(member, name):
                        undocumented.append(f"{name}::{member.findtext('name')}")
            else:
                found = members.get((kind, name), [])
                if not found:
                    problems.append(f"{page.name}: the headers have no {kind} {name}")
                elif not any(has_comment(member) for member in found):
                    undocumented.append(name)
                for value in (value for member in found for value in member.findall("enumvalue")):
                    if not has_comment(value):
                        undocumented.append(f"{name}::{value.findtext('name')}")
    if not seen:
        problems.append("no reference page names anything")
    warnings = doxygen / "warnings.txt"
    if not warnings.exists():
        problems.append(f"there is no {warnings}")
    else:
        for warning in WARNING.split(warnings.read_text(encoding="utf-8")):
            symbols = set(re.findall(r"slamb(?:::\w+)+", warning))
            # One of what is not public concerns no page.
            if warning.strip() and (not symbols or any(is_of(symbol, seen) for symbol in symbols)):
                problems.append("Doxygen: " + warning.strip())
    return problems, sorted(set(undocumented)), len(seen)


def is_of(symbol, names):
    """Whether a symbol is one of the names or lies in one."""
    return any(symbol == name or symbol.startswith(name + "::") for name in names)


def check(doxygen, pages):
    problems, undocumented, names = problems_of(doxygen, pages)
    (doxygen / "undocumented.txt").write_text("".join(name + "\n" for name in undocumented), encoding="utf-8")
    print("\n".join(problems + [f"{names} public names, {len(problems)} mistakes; {len(undocumented)} without a comment, in "
                                f"{doxygen / 'undocumented.txt'}"]))
    return not problems


INDEX = """<doxygenindex><compound refid="a" kind="struct"><name>slamb::a</name></compound>
<compound refid="b" kind="struct"><name>slamb::b</name></compound>
<compound refid="n" kind="namespace"><name>slamb</name></compound></doxygenindex>"""
STRUCT = """<doxygen><compounddef><briefdescription>{}</briefdescription><memberdef kind="variable" prot="public"><name>x</name>
</memberdef></compounddef></doxygen>"""
NAMESPACE = """<doxygen><compounddef><memberdef kind="function"><name>f</name><briefdescription>Does.</briefdescription></memberdef>
</compounddef></doxygen>"""
RIGHT = "```{doxygenstruct} slamb::a\n```\n\n```{doxygenfunction} slamb::f\n```\n"
WRONG = [
    ("```{doxygenstruct} slamb::c\n```\n", "", "page.md: the headers have no struct slamb::c"),
    ("```{doxygenclass} slamb::a\n```\n", "", "page.md: the headers have no class slamb::a, but a struct"),
    ("```{doxygenfunction} slamb::g\n```\n", "", "page.md: the headers have no function slamb::g"),
    ("```{doxygenstruct} slamb::b\n```\n", "", "page.md: slamb::b has no comment"),
    (RIGHT + RIGHT, "", "page.md: slamb::a is on page.md too"),
    ("# Nothing\n", "", "no reference page names anything"),
    (RIGHT, "x.hpp:1: warning: what slamb::a::x is\n", "Doxygen: x.hpp:1: warning: what slamb::a::x is"),
    (RIGHT, "x.hpp:1: warning: a tag\n", "Doxygen: x.hpp:1: warning: a tag"),
    (RIGHT, None, "there is no "),
]


def self_test():
    failures = 0
    for text, warnings, expected in [(RIGHT, "x.hpp:1: warning: what slamb::detail::y is\n", None), *WRONG]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "xml").mkdir()
            for name, content in {"xml/index.xml": INDEX, "xml/a.xml": STRUCT.format("An a."), "xml/b.xml": STRUCT.format(""),
                                  "xml/n.xml": NAMESPACE, "page.md": text, "warnings.txt": warnings}.items():
                if content is not None:
                    (root / name).write_text(content, encoding="utf-8")
            problems, undocumented, _ = problems_of(root, root)
            right = not problems and undocumented == ["slamb::a::x"] if expected is None else \
                len(problems) >= 1 and problems[0].startswith(expected)
            if not right:
                failures += 1
                print(f"self-test: {text!r}: expected {expected}, found {problems}, {undocumented}", file=sys.stderr)
    print(f"self-test: {len(WRONG) + 1} pages, {failures} failed")
    return failures == 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    pages = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).resolve().parent / "reference"
    return 0 if check(pathlib.Path(sys.argv[1]), pages) else 1


if __name__ == "__main__":
    sys.exit(main())
