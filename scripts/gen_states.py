"""Writes docs/states.md from the tables in gschedd/core/state/transitions.py.

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
from gschedd.core.state import facts as f  # noqa: E402 # after the path
from gschedd.core.state import transitions as t  # noqa: E402 # after the path

PAGE = ROOT / "docs" / "states.md"

Moves = Mapping[tuple[StrEnum, type[f.Fact]], frozenset[StrEnum]]

HEAD = """\
# States

<!-- Written by scripts/gen_states.py from gschedd/core/state/transitions.py: change that. -->

The head refuses a fact that has no arrow from the present state, and drops and counts a report of
a node that would lead to such a fact. Each arrow names the facts that cause it; where a fact leads
to several states, the fact contains the state.
"""

NOTE_ON_JOBS = """\
A job begins queued, waiting (for its time) or held. What runs or exits has an attempt. A job waits
for its next try, too: after an attempt that failed through no fault of its own, or for a directory
that does not exist yet."""

#: One sentence for each state: its meaning, and the place of its record.
MEANINGS: dict[type[StrEnum], dict[str, str]] = {
    JobState: {
        JobState.QUEUED: (
            "The job may start now and waits for its resources, its queue's or its user's "
            "limits, or its directory; `gstat --why` prints the reason."
        ),
        JobState.HELD: (
            "The job has at least one hold (of its user, an operator, gsched or a dependency) "
            "and starts after the last one is released; column `holds` of table `jobs`."
        ),
        JobState.WAITING: (
            "The job may not start before a time: that of `gsub -a`, or the next try after an "
            "attempt that failed through no fault of its own; column `not_before_s` of table "
            "`jobs`."
        ),
        JobState.RUNNING: (
            "The job has an attempt, which owns its resources; table `attempts` of the head, "
            "and a directory below `attempts/` in the state directory of each of its nodes."
        ),
        JobState.MIGRATING: (
            "The attempt takes a last checkpoint and ends, and the job then starts on the "
            "allocation that the head reserves for it meanwhile, or goes back to its queue."
        ),
        JobState.EXITING: (
            "The attempt is being stopped, or has ended on some of its nodes; the job is done "
            "or requeued when it has ended on all of them."
        ),
        JobState.DONE: (
            "The job has its outcome, which never changes; `ghist` prints it until the "
            "retention time removes the job's rows."
        ),
    },
    AttemptState: {
        AttemptState.ASSIGNED: (
            "The head has allocated resources and committed that; the nodes receive the order "
            "after the commit, and again at each registration until they report."
        ),
        AttemptState.STARTING: (
            "At least one node has started its process, and others have not yet."
        ),
        AttemptState.RUNNING: "The processes run on all nodes that have one.",
        AttemptState.EXITING: (
            "The attempt is being stopped, or a process has ended; the head waits for the other "
            "nodes."
        ),
        AttemptState.ENDED: (
            "All nodes have reported the end, or were given up; the resources are free."
        ),
    },
    PartState: {
        PartState.PENDING: "The node has not reported yet whether the process runs.",
        PartState.RUNNING: (
            "The node has reported the start; its supervisor owns the process and writes the "
            "journal in the attempt's directory."
        ),
        PartState.ENDED: (
            "The node has reported the exit record, or the head has given the node up."
        ),
        PartState.PASSIVE: (
            "The node only lends resources: the job's script runs on the first node, and starts "
            "processes here with `gsched-launch-agent` or `srun`."
        ),
    },
    NodeState: {
        NodeState.UP: "The node's daemon is registered and its heartbeats arrive.",
        NodeState.UNREACHABLE: (
            "The channel is closed or silent; jobs on the node keep running, and no new ones "
            "are started there."
        ),
    },
}

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
        "An attempt on one of its nodes.",
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
    states = [f"| `{state}` | {MEANINGS[type(state)][state]} |" for state in type(begins[0])]
    lines = [f"## {title}", "", text, "", "| State | Meaning |", "|---|---|", *states, ""]
    lines += ["```mermaid", "stateDiagram-v2"]
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
