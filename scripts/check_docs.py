"""Checks of the documentation: links lead somewhere, manual pages convert, decisions are complete.

``python scripts/check_docs.py`` prints one line for each fault and ends with 1 if there is one.
"""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import docutils.core
import docutils.utils

MAX_ADR_LINES = 75  # one page
ADR_SECTIONS = ("Context", "Decision", "Alternatives", "Consequences", "Test plan")
MAN_SECTIONS = {"SYNOPSIS", "DESCRIPTION"}  # NAME is made of title and subtitle

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def check(root: Path) -> list[str]:
    """Return every fault of the documentation below ``root`` as ``PATH: what``."""
    faults: list[str] = []
    for path in markdown_files(root):
        faults += [f"{path.relative_to(root)}: {what}" for what in link_faults(path)]
    for path in sorted((root / "docs" / "adr").glob("*.md")):
        faults += [f"{path.relative_to(root)}: {what}" for what in adr_faults(path)]
    for path in sorted((root / "man").glob("*.rst")):
        faults += [f"{path.relative_to(root)}: {what}" for what in manual_faults(path)]
    return faults


def markdown_files(root: Path) -> list[Path]:
    """Return the project's Markdown files."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")]
    found += root.glob("packages/*/*.md")
    return sorted(found)


def link_faults(path: Path) -> Iterator[str]:
    """Find links to files or headings that are not there; links to the web are not followed."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        target, _, anchor = match["target"].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists():
            yield f"link to {match['target']}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"link to {match['target']}: no such heading"


def anchors(path: Path) -> set[str]:
    """Return what headings of a Markdown file are linked as."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", match["text"].lower()).replace(" ", "-")
        for match in _HEADING.finditer(text)
    }


def adr_faults(path: Path) -> Iterator[str]:
    """Find decisions that say too little or too much."""
    text = path.read_text(encoding="utf-8")
    if not re.fullmatch(r"[0-9]{4}-[a-z0-9-]+\.md", path.name):
        yield "name it NNNN-title.md"
    if not re.search(r"^Status: (?:proposed|accepted|superseded by \[)", text, re.MULTILINE):
        yield "a line 'Status: …' is missing"
    headings = [match["text"] for match in _HEADING.finditer(text)]
    for section in ADR_SECTIONS:
        if section not in headings:
            yield f"section '{section}' is missing"
    if len(text.splitlines()) > MAX_ADR_LINES:
        yield f"longer than a page ({MAX_ADR_LINES} lines)"


def manual_faults(path: Path) -> Iterator[str]:
    """Find what docutils complains about, and missing sections."""
    complaints = io.StringIO()
    try:
        docutils.core.publish_string(
            path.read_text(encoding="utf-8"),
            source_path=str(path),
            writer="manpage",
            settings_overrides={
                "report_level": docutils.utils.Reporter.WARNING_LEVEL,
                "halt_level": docutils.utils.Reporter.SEVERE_LEVEL,
                "warning_stream": complaints,
                "file_insertion_enabled": True,
            },
        )
    except docutils.utils.SystemMessage as error:
        yield str(error)
    yield from complaints.getvalue().splitlines()
    headings = set(re.findall(r"^([A-Z][A-Z ]+)\n[=\-~]+$", path.read_text("utf-8"), re.MULTILINE))
    yield from (f"section {name} is missing" for name in sorted(MAN_SECTIONS - headings))


def main() -> int:
    """Print every fault and return the exit code."""
    faults = check(Path(__file__).resolve().parents[1])
    for fault in faults:
        print(fault)
    print(f"docs: {len(faults)} fault(s)" if faults else "docs: nothing to say")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
