"""What lies in the spool of an attempt."""

import json
from pathlib import Path
from typing import Any

from gnode.supervisor import journal, spool


def started(directory: Path) -> dict[str, Any] | None:
    """Return who runs an attempt, None while nobody has said so."""
    found = spool.read_started(str(directory))
    return None if found is None else dict(found)


def ended(directory: Path) -> dict[str, Any] | None:
    """Return an attempt's exit record, None while there is none."""
    content = journal.read_story(str(directory)).ended
    return None if content is None else dict(json.loads(content))


def running(attempts: Path) -> list[Path]:
    """Return the directories of the attempts that have started and not ended."""
    if not attempts.exists():
        return []
    return [each for each in sorted(attempts.iterdir()) if started(each) and not ended(each)]


def add_order(directory: Path, text: str) -> None:
    """Append lines to the orders of an attempt, where its supervisor looks for them."""
    with (directory / journal.NAME).open("a") as file:
        file.write(text)
