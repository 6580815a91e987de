"""How Sphinx makes the site of these pages: MyST reads the Markdown, Breathe what Doxygen has read of the headers."""

import os
import pathlib
import re

from breathe.renderer.sphinxrenderer import SphinxRenderer
from docutils import nodes
from sphinx import addnodes

root = pathlib.Path(__file__).resolve().parent.parent
config = (root / "include/slamb/core/config.hpp").read_text(encoding="utf-8")

project = "slamb"
author = "the slamb authors"
version = release = ".".join(re.findall(r"^#define SLAMB_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", config, re.MULTILINE))

extensions = ["myst_parser", "breathe"]
source_suffix = {".md": "markdown"}

# Anchors of headings as GitHub makes them.
myst_heading_anchors = 4

breathe_projects = {"slamb": str(root / "build/docs/doxygen/xml")}
breathe_default_project = "slamb"
breathe_default_members = ("members", "undoc-members")
breathe_show_include = False
SphinxRenderer.sections.sort(key=lambda section: section[0] != "public-attrib")  # options and other members come first

# Breathe refers to all that Doxygen has, of which the pages show the public names.
suppress_warnings = ["ref.ref"]
nitpick_ignore_regex = [
    ("cpp:identifier", r"(?:(?:::)?slamb|(?:slamb::)?(?:capability|plan|precision|learning_rate|sync))"),  # namespaces
    ("cpp:identifier", r"(?:detail|cuda|host)(?:::.*)?"),  # not for users
    ("cpp:identifier", r"(?:cuda|nccl|MPI_)[A-Za-z_]+"),  # of CUDA, NCCL and MPI
    ("cpp:identifier", r"statistics::choice_type|trial_of<.*|options_type::compressor|timeout|with_parameters"),  # of template arguments, and designated initialisers
]

html_theme = "furo"
html_title = f"slamb {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["slamb.css"]
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"


def resolve_outside(app, doctree):
    """Links that lead out of docs/: README.md is the page `overview`; of other files, which a reader has in the repository, the
    name is shown. docs/check_links.py has seen that they are there."""
    document = app.env.docname
    for node in list(doctree.findall(lambda n: isinstance(n, addnodes.pending_xref) and n.get("reftype") == "myst")):
        name, _, anchor = node["reftarget"].partition("#")
        for folder in (pathlib.Path(app.env.doc2path(document)).parent, root):
            target = pathlib.Path(os.path.normpath(folder / name))
            if name and target.exists() and root / "docs" not in target.parents:
                if target == root / "README.md":
                    address = app.builder.get_relative_uri(document, "overview") + (f"#{anchor}" if anchor else "")
                    shown = nodes.reference("", "", refuri=address, internal=True)
                else:
                    shown = nodes.inline(classes=["outside"])
                shown += node.children
                node.replace_self(shown)
                break


def setup(app):
    app.connect("doctree-read", resolve_outside)
