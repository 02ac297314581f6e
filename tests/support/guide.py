"""The commands of a guide: what stands in its shell blocks, in their order."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shell_blocks(guide: str, heading: str) -> list[str]:
    """Return the shell blocks below a heading, up to the next one of any level."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{guide} has no heading {heading!r}"
    body = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return _BLOCK.findall(body)
