"""Writes docs/states.md from the tables in gschedd/core/transitions.py.

``python scripts/gen_states.py`` writes the page; with ``--check`` it writes nothing and ends with 1
if the page is not what the tables say.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout this script is in, wherever it is called from

from gsched.model.states import AttemptState, JobState, NodeState, PartState  # noqa: E402 # path
from gschedd.core import facts as f  # noqa: E402 # after the path
from gschedd.core import transitions as t  # noqa: E402 # after the path

PAGE = ROOT / "docs" / "states.md"

Moves = Mapping[tuple[StrEnum, type[f.Fact]], frozenset[StrEnum]]

HEAD = """\
# States

<!-- Written by scripts/gen_states.py from gschedd/core/transitions.py: change the tables there. -->

What is not drawn here cannot happen: a fact that does not fit the present state is refused inside
the head, and a report from outside that does not fit is dropped and counted.
Each arrow names the facts that cause it; where a fact leads to several states,
it says itself which one it is.
"""

NOTE_ON_JOBS = """\
A job begins queued, waiting (for its time) or held. What runs or exits has an attempt. A job waits
for its next try, too: after an attempt that failed through no fault of its own, or for a directory
that does not exist yet."""

ABOUT: tuple[tuple[str, str, Moves, tuple[StrEnum, ...]], ...] = (
    (
        "Jobs",
        NOTE_ON_JOBS,
        t.JOB_MOVES,
        (JobState.QUEUED, JobState.WAITING, JobState.HELD),
    ),
    (
        "Attempts",
        "An attempt owns its resources from its assignment until it has ended on all its nodes.",
        t.ATTEMPT_MOVES,
        (AttemptState.ASSIGNED,),
    ),
    (
        "Parts",
        "An attempt on one of its nodes. It is passive while nothing is started there.",
        t.PART_MOVES,
        (PartState.PENDING, PartState.PASSIVE),
    ),
    (
        "Nodes",
        "Whether the head can talk to a node. Draining is a flag beside it.",
        t.NODE_MOVES,
        (NodeState.UP,),
    ),
)


def page() -> str:
    """Return the whole page."""
    sections = [section(*about) for about in ABOUT]
    return "\n".join([HEAD, letters(), *sections])


def letters() -> str:
    """Return the table of Torque's letters."""
    rows = [f"| `{state}` | {state.letter} |" for state in JobState]
    return "\n".join(["| State of a job | Letter in gstat |", "|---|---|", *rows, ""])


def section(title: str, text: str, moves: Moves, begins: tuple[StrEnum, ...]) -> str:
    """Return one diagram, and below it what changes nothing but is allowed."""
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = defaultdict(list)
    stays: dict[StrEnum, list[str]] = defaultdict(list)
    for (before, fact), following in moves.items():
        for after in sorted(following, key=list(type(before)).index):
            if after is before:
                stays[before].append(fact.__name__)
            else:
                arrows[before, after].append(fact.__name__)
    final = sorted(set(type(begins[0])) - {before for before, _ in moves})
    lines = [f"## {title}", "", text, "", "```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in begins]
    lines += [f"    {a} --> {b}: {', '.join(facts)}" for (a, b), facts in arrows.items()]
    lines += [f"    {state} --> [*]" for state in final]
    lines += ["```", ""]
    if stays:
        lines += ["Allowed without leaving the state:", ""]
        lines += [f"* `{state}`: {', '.join(facts)}" for state, facts in stays.items()]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Write or check the page and return the exit code."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print("docs/states.md is not what the tables say: run scripts/gen_states.py")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
