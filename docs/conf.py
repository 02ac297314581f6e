"""Sphinx's settings for the documentation site: scripts/site builds it."""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gsched.version import VERSION  # noqa: E402 # the checkout need not be installed

project = "gsched"
version = release = VERSION
copyright = "2026, the authors of gsched"  # noqa: A001 # Sphinx's name
root_doc = "docs/index"
extensions = ["myst_parser"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
# The sources stay where they are; links between them work on the site as in the checkout.
include_patterns = [
    "docs/**",
    "man/*.rst",
    "packages/gsched-elastic/README.md",
    "scripts/*/README.md",
    "changelog.d/README.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = ["docs/conf.py", ".*"]  # such as .venv, with its 17,000 directories
myst_heading_anchors = 6
myst_enable_extensions = ["deflist", "substitution"]
suppress_warnings = ["myst.xref_ambiguous"]
highlight_language = "none"
nitpicky = True
html_theme = "furo"
html_title = f"gsched {VERSION}"
html_last_updated_fmt = None
html_copy_source = False
html_show_sphinx = False

_SECTION = re.compile(r"^\s?\(([1-8])\)")


def setup(app: Any) -> None:
    """Let manual pages link to each other."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("doctree-resolved", _link_manual_pages)
    app.connect("doctree-read", _leave_out_directories)


def _leave_out_directories(app: Any, doctree: nodes.document) -> None:
    """Make text of links to directories of the checkout, which the site does not have."""
    directory = (ROOT / app.env.docname).parent
    for link in list(doctree.findall(pending_xref)):
        if link["reftype"] == "myst" and (directory / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def _link_manual_pages(app: Any, doctree: nodes.document, docname: str) -> None:
    """Make links of names of manual pages, such as gsub(1) with a bold name."""
    for name in list(doctree.findall(nodes.strong)):
        following = name.next_node(descend=False, siblings=True)
        found = _SECTION.match(following.astext()) if isinstance(following, nodes.Text) else None
        target = f"man/{name.astext()}.{found[1]}" if found else ""
        if target in app.env.found_docs and target != docname:
            uri = app.builder.get_relative_uri(docname, target)
            reference = nodes.reference("", "", internal=True, refuri=uri)
            name.replace_self(reference)
            reference += name
