"""Draw docs/states.md from the transition tables: ``states.py`` writes it, ``--check`` compares."""

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from gschedd.core.facts import Fact
from gschedd.core.transitions import ATTEMPT_MOVES, JOB_MOVES, NODE_MOVES, PART_MOVES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "states.md"
INTRODUCTION = """\
# States

What may follow what: drawn from the tables of `gschedd/core/transitions.py` by `scripts/states.py`.
What is not here is refused, with both states named.
A fact that leaves the state as it is stands in the table only.
"""
State = TypeVar("State", bound=StrEnum)


def page() -> str:
    """Return the whole page."""
    return "\n".join(
        [
            INTRODUCTION,
            section("Job", "A job as its user sees it.", JOB_MOVES),
            section("Attempt", "One placement of a job.", ATTEMPT_MOVES),
            section("Part", "An attempt on one node; `passive` only holds resources.", PART_MOVES),
            section("Node", "Draining is beside it: it may be drained in both.", NODE_MOVES),
        ]
    )


def section(
    title: str, text: str, moves: Mapping[tuple[State, type[Fact]], frozenset[State]]
) -> str:
    """Return one table as a diagram and as text."""
    arrows: dict[tuple[str, str], list[str]] = {}
    rows: list[str] = []
    for (state, fact), following in moves.items():
        rows.append(f"| {state} | {fact.__name__} | {', '.join(sorted(following))} |")
        for after in sorted(following - {state}):
            arrows.setdefault((state, after), []).append(fact.__name__)
    diagram = [f"    {a} --> {b}: {', '.join(facts)}" for (a, b), facts in arrows.items()]
    return "\n".join(
        [
            f"## {title}\n\n{text}\n",
            "```mermaid",
            "stateDiagram-v2",
            *diagram,
            "```\n",
            "| state | fact | may be followed by |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    """Write or check the page and return the exit code."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE} does not agree with the tables: run python scripts/states.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
