#!/usr/bin/env python3
"""Counts the public names of the headers, and compares them with the reference.

    public_names.py INCLUDE_FOLDER REFERENCE_FOLDER    fails if they differ
    public_names.py --self-test

A public name is declared at namespace scope in slamb, or in one of its NAMESPACES. The pages of the reference name each in a
directive, ```{doxygenstruct} slamb::name, or in the first column of a table, | `slamb::name` |. Operators, specialisations and deduction guides have no name of their own.

slamb.hpp repeats the names at slamb:: of all headers that it includes in DIRECTIVE, for using-directives, but not those in UNREPEATED.
"""
import pathlib
import re
import sys
import tempfile

NAMESPACES = {"slamb", "slamb::capability", "slamb::kit", "slamb::learning_rate", "slamb::plan", "slamb::precision", "slamb::sync"}
DIRECTIVE = "slamb::names"
UNREPEATED = {"slamb", "int4", "half"}  # the first would make slamb:: ambiguous; the others are global types in CUDA
INLINE = {"SLAMB_SIMD_NAMESPACE"}  # an inline namespace: its names are those of the one around it
NAMED = re.compile(r"^(?:```\{doxygen[a-z]+\} |\| `)(slamb(?:::\w+)+)", re.MULTILINE)


def without_comments(text):
    text = re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', lambda match: '""' if match[1] else "", text, flags=re.S)
    text = re.sub(r"'(?:\\.|[^'\\\n])'", "' '", text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)


def without_templates(declaration):
    """The declaration behind its template<…> and requires clauses."""
    while re.match(r"template\s*<", declaration):
        depth = 0
        for at, character in enumerate(declaration):
            depth += (character == "<") - (character == ">")
            if character == ">" and depth == 0:
                break
        declaration = declaration[at + 1:].strip()
    return re.sub(r"^requires .*?(?=\b(?:struct|class|inline|constexpr|void|auto|SLAMB_\w+)\b)", "", declaration)


def name_of(declaration):
    """The name that a declaration at namespace scope introduces; None: none of its own."""
    text = re.sub(r"\[\[.*?\]\]", "", without_templates(" ".join(declaration.split()))).strip()
    if not text or re.match(r"(using namespace|static_assert|extern template|template (?:class|struct)|friend)\b", text):
        return None
    for pattern in (r"using (\w+)\s*=", r"using [\w:]+::(\w+)$", r"concept (\w+)",
                    r"(?:struct|class|enum class|enum|union)\s+(?:SLAMB_\w+\s+)*(\w+)(?!\s*<|\w|::)"):
        if match := re.match(pattern, text):
            return match[1]
    if re.match(r"(?:struct|class)\s", text) or "->" in re.sub(r"\(.*\)", "", text) and re.match(r"\w+\(", text):
        return None  # a specialisation, or a deduction guide
    if re.search(r"\boperator(?:\W|$)", re.sub(r"\(.*", "(", text)) or re.match(r"(?:explicit )?operator\b", text):
        return None
    if match := re.match(r"[^=(]*?(\w+)\s*\(", re.sub(r"^(?:SLAMB_\w+\([^)]*\)\s*|__\w+__\(\(.*?\)\)\s*)", "", text)):
        return match[1]
    match = re.search(r"(\w+)$", text.split("=")[0].strip())
    return match[1] if match and "<" not in text.split("=")[0].split()[-1] else None


def parts_of(statement):
    """The declarations of `using ::a::b, ::a::c`."""
    text = " ".join(statement.split())
    return [f"using {name}" for name in text[6:].split(", ")] if re.match(r"using [\w:, ]+$", text) else [statement]


def names_in(text):
    """{(namespace, name)} of what a header declares at namespace scope."""
    found, stack, statement, is_tail = set(), [], "", False

    def note():
        if all(kind == "namespace" for kind, _ in stack) and not is_tail:
            space = "::".join(part for _, part in stack if part and part not in INLINE)
            found.update((space, name) for part in parts_of(statement) if (name := name_of(part)))

    for character in without_comments(text):
        if character in "{;}" and statement.count("(") > statement.count(")"):
            continue  # of a default argument, or a lambda
        elif character == "{":
            if match := re.search(r"\bnamespace\s+([\w:]*)\s*$", statement):
                stack.append(("namespace", match[1]))
            else:
                note()
                is_last = bool(re.match(r"(?:concept|struct|class|enum|union)\b|.*=\s*(?:\[|requires|$)",
                                        without_templates(" ".join(statement.split())))) or is_tail
                stack.append(("tail" if is_last else "body", ""))
            statement = ""
        elif character == ";":
            note()
            statement, is_tail = "", is_tail and any(kind != "namespace" for kind, _ in stack)
        elif character == "}":
            kind = stack.pop()[0]
            if all(kind == "namespace" for kind, _ in stack):
                is_tail = kind == "tail"
            statement = ""
        else:
            statement += character
    return found


def public_names(include):
    """The public names, and the namespaces that are neither listed nor below a `detail`."""
    found = set()
    for header in sorted(include.rglob("*")):
        if header.suffix in (".hpp", ".cuh"):
            found |= names_in(header.read_text(encoding="utf-8"))
    others = {space for space, _ in found
              if space not in NAMESPACES and space != DIRECTIVE and "detail" not in space.split("::")}
    return {f"{space}::{name}" for space, name in found if space in NAMESPACES}, others


def included_by(header, root, seen):
    """`header` and all headers below `root` that it includes, also under conditions."""
    if header not in seen:
        seen.add(header)
        for name in re.findall(r'^#\s*include "slamb/([^"]+)"', header.read_text(encoding="utf-8"), flags=re.M):
            included_by(root / name, root, seen)
    return seen


def wrongly_repeated(include):
    """What is wrong with the names in DIRECTIVE."""
    found = set().union(*(names_in(h.read_text(encoding="utf-8")) for h in included_by(include / "slamb.hpp", include, set())))
    repeated = {name for space, name in found if space == DIRECTIVE}
    spaces = {space.removeprefix("slamb::") for space in NAMESPACES - {"slamb", "slamb::kit"}}
    wanted = {name for space, name in found if space == "slamb"} - UNREPEATED | spaces
    return ([f"{DIRECTIVE} has no {name}" for name in sorted(wanted - repeated)] +
            [f"{DIRECTIVE} must not have {name}" for name in sorted(repeated - wanted)])


def referred_names(reference):
    found = set()
    for page in reference.glob("*.md"):
        found |= set(NAMED.findall(page.read_text(encoding="utf-8")))
    return {name for name in found if name.rpartition("::")[0] in NAMESPACES}


def problems_of(include, reference):
    (declared, others), referred = public_names(include), referred_names(reference)
    at_slamb = sorted(name for name in declared if name.count("::") == 1)
    problems = [f"{name} is in the headers, but not in the reference" for name in sorted(declared - referred)]
    problems += [f"{name} is in the reference, but not in the headers" for name in sorted(referred - declared)]
    problems += [f"{space or 'the global namespace'} has names, but is in no list of this script" for space in sorted(others)]
    if not at_slamb:
        problems.append("there are no names at slamb::")
    return problems, len(at_slamb), len(declared)


HEADER = """
namespace slamb {
/// A thing { of; several } words.
struct a { int x = 0; struct inner {}; };
template <class T>
concept b = requires(T t) { { t.f() } -> c; } && (T::y == 1 || requires { t.z; });
template <class T> requires b<T>
struct d {};
template <>
struct d<int> {};
enum class e { one, two };
inline int f(int x = 3, a y = {}) { return x; }
int operator+(a, a);
template <class T> d(T) -> d<T>;
inline constexpr int g = 3;
inline constexpr const char* k = "// no comment";
int operator_count();
static_assert(b<a>);
namespace detail { struct hidden {}; }
inline namespace SLAMB_SIMD_NAMESPACE { struct h {}; }
namespace plan { struct i {}; }
template <class T> using j = T;
}  // namespace slamb
namespace slamb::detail { void hidden_too(); }
"""
NAMES = ["a", "b", "d", "e", "f", "g", "h", "plan::i", "j", "k", "operator_count"]


UMBRELLA = """#include "slamb/x.hpp"
namespace slamb { struct int4 {}; struct a {}; }
namespace slamb::names {
namespace capability = ::slamb::capability;
namespace learning_rate = ::slamb::learning_rate;
namespace plan = ::slamb::plan;
namespace precision = ::slamb::precision;
namespace sync = ::slamb::sync;
using ::slamb::a,
    ::slamb::b;
}
"""


def self_test():
    def page(names):
        return "".join(f"```{{doxygenstruct}} slamb::{name}\n```\n" for name in names)

    failures = []
    for header, text, expected in [
            (HEADER, page(NAMES), []),
            (HEADER, page(NAMES[1:]), ["slamb::a is in the headers, but not in the reference"]),
            (HEADER, page(NAMES + ["l"]), ["slamb::l is in the reference, but not in the headers"]),
            (HEADER + "namespace slamb::extra { struct m {}; }", page(NAMES),
             ["slamb::extra has names, but is in no list of this script"]),
            ("", "", ["there are no names at slamb::"])]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "x.hpp").write_text(header, encoding="utf-8")
            (root / "page.md").write_text(text, encoding="utf-8")
            found = problems_of(root, root)[0]
            if found != expected:
                failures.append(f"expected {expected}, found {found}")
    for umbrella, text, expected in [
            (UMBRELLA, "namespace slamb { struct b {}; }", []),
            (UMBRELLA, "namespace slamb { struct b {}; void c(); }", ["slamb::names has no c"]),
            (UMBRELLA, "", ["slamb::names must not have b"]),
            (UMBRELLA.replace("::slamb::a", "::slamb::int4"), "namespace slamb { struct b {}; }",
             ["slamb::names has no a", "slamb::names must not have int4"])]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "slamb.hpp").write_text(umbrella, encoding="utf-8")
            (root / "x.hpp").write_text(text, encoding="utf-8")
            found = wrongly_repeated(root)
            if found != expected:
                failures.append(f"expected {expected}, found {found}")
    print("\n".join(failures + [f"self-test: 10 headers, {len(failures)} failed"]))
    return not failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    problems, at_slamb, names = problems_of(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    problems += wrongly_repeated(pathlib.Path(sys.argv[1]))
    print("\n".join(problems + [f"{at_slamb} names at slamb::, {names} public names in all, {len(problems)} mistakes"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
