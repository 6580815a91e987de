"""Mends Doxygen's XML where Breathe and Sphinx do not read it, and leaves out what is no news to a reader.

    mend_xml.py XML_FOLDER

- Classes of `detail`, as a base or as what derives from a class, are left out.
- Members that a `using` declaration brings are listed with those that replace them: the later ones of one signature are left out.
- Designated initialisers lose their dots, and a requires-expression as a value is left out.
- A concept's definition, which Breathe does not show, is put behind its comment.
- The inline namespace of the SIMD level is no part of a name.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as xml


def mend(root):
    for compound in root.iter("compounddef"):
        if compound.get("kind") == "concept":
            definition = "".join(compound.find("initializer").itertext()).rstrip() + ";"
            shown = xml.SubElement(xml.SubElement(compound.find("detaileddescription"), "para"), "verbatim")
            shown.text = re.sub(r"\A.*?concept slamb::(\w+ =) +", r"concept \1 ", definition, flags=re.DOTALL)
        for part in list(compound):
            if part.tag == "derivedcompoundref" or part.tag == "basecompoundref" and "detail::" in "".join(part.itertext()):
                compound.remove(part)
        seen = set()
        for section in compound.iter("sectiondef"):
            for member in list(section):
                requires = member.find("requiresclause")
                signature = (member.get("kind"), member.findtext("name"),
                             re.sub(r" requires.*|=delete$", "", member.findtext("argsstring", "")).strip(),
                             "" if requires is None else "".join(requires.itertext()))
                if member.tag == "memberdef" and member.get("kind") == "function" and signature in seen:
                    section.remove(member)
                seen.add(signature)
    for member in root.iter("memberdef"):
        value = member.find("initializer")
        if value is not None and re.match(r"\s*=\s*requires\b", "".join(value.itertext())):
            member.remove(value)
    for value in [*root.iter("initializer"), *root.iter("defval"), *root.iter("argsstring")]:
        for element in value.iter():
            element.text = without_dots(element.text)
            element.tail = without_dots(element.tail)
    for element in root.iter():
        for part in ("text", "tail"):
            text = getattr(element, part)
            if text and "SLAMB_SIMD_NAMESPACE::" in text:
                setattr(element, part, text.replace("SLAMB_SIMD_NAMESPACE::", ""))


def without_dots(text):
    return re.sub(r"([{,] ?)\.(?=[a-z_0-9]+ ?=)", r"\1", text) if text else text


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
        tree = xml.parse(path)
        mend(tree.getroot())
        tree.write(path, encoding="utf-8", xml_declaration=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
