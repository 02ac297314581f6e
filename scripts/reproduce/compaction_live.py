"""The case of `compaction_case` on a real cluster: torchrun, gsched.elastic, real moves."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import click

from gsched.client import HeadClient
from gsched.protocol.job_rows import JobStory
from scripts.reproduce.compaction_case import (
    BATCH,
    PARAMETERS,
    PARTS,
    STEP_TIME_S,
    Part,
    Step,
    Told,
)

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "elastic_paced.py"
POLL_S: Final = 0.25
WAIT_S: Final = 300.0
#: A training that has said so many steps runs, and has not just begun.
STEPS: Final = 1
#: What an event says of a training's start.
MEASURED: Final = re.compile(r"attempt 1 took ([0-9.]+) s until")


class Stage(Protocol):
    """A cluster of two nodes, and where its user sits."""

    @property
    def head(self) -> HeadClient:
        """Return a client of the head."""

    def run(self, *command: str) -> tuple[str, str]:
        """Run one of gsched's commands; return what it printed on stdout and stderr."""


class Live:
    """The case on a real cluster, from the first submission to the end.

    Attributes:
        jobs: numbers by name.
        said: what gsub said of each training, by name.
    """

    def __init__(self, stage: Stage, policy: str, parts: Sequence[Part] = PARTS) -> None:
        self.jobs: dict[str, int] = {}
        self.said: dict[str, str] = {}
        self._stage = stage
        self._policy = policy
        self._parts = parts

    def fragment(self) -> None:
        """Submit what comes first; return when each node has one training and one free GPU."""
        begin_s = time.time()
        for part in self._parts:
            if part.submit_s is not None:
                time.sleep(max(0.0, begin_s + part.submit_s - time.time()))
                self._submit(part)
        self._wait(self._is_fragmented, "the nodes to be fragmented")

    def add_last(self) -> None:
        """Submit what needs a whole node."""
        for part in self._parts:
            if part.submit_s is None:
                self._submit(part)

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until jobs are done."""
        wanted = tuple(names)
        self._wait(
            lambda: all(self.story(name).row.state == "done" for name in wanted),
            f"the end of {', '.join(wanted)}",
        )

    def story(self, name: str) -> JobStory:
        """Return what the head knows of a job."""
        return self._stage.head.job(str(self.jobs[name]))

    def told(self) -> Told:
        """Return what it came to so far."""
        stories = {name: self.story(name) for name in self.jobs}
        begin_s = stories["opener"].row.submitted_s
        moved = {name: each.move for name, each in stories.items() if each.move is not None}
        return Told(
            policy=self._policy,
            steps=_steps(stories),
            submitted_s={name: each.row.submitted_s - begin_s for name, each in stories.items()},
            started_s={
                name: each.attempts[0].started_s - begin_s
                for name, each in stories.items()
                if each.attempts and each.attempts[0].started_s is not None
            },
            ended_s={
                name: each.row.ended_s - begin_s
                for name, each in stories.items()
                if each.row.ended_s is not None
            },
            deadline_s={
                name: each.row.deadline_s - begin_s
                for name, each in stories.items()
                if each.row.deadline_s is not None
            },
            move_s={
                name: move.resumed_s - move.requested_s
                for name, move in moved.items()
                if move.resumed_s is not None
            },
            lost_s={name: move.cost_s for name, move in moved.items() if move.cost_s is not None},
            step_s={
                name: each.progress.step_s
                for name, each in stories.items()
                if each.progress is not None and each.progress.step_s > 0
            },
            startup_s={
                name: startup_s
                for name, each in stories.items()
                if (startup_s := _startup_s(each)) is not None
            },
        )

    def _submit(self, part: Part) -> None:
        command = ["gsub", "-N", part.name, "-j", "oe", "-l", part.resources]
        if part.deadline_s is None:
            command += ["--", "sleep", f"{part.work_s:g}"]
        else:
            size = ["--samples", str(part.samples), "--batch", str(BATCH), "--epochs", "1"]
            command += ["--elastic", "--deadline", f"{part.deadline_s:g}s", *size]
            command += ["--params", str(PARAMETERS), "--step-time", f"{STEP_TIME_S * 1e3:g}ms"]
            command += ["--python", sys.executable, "--torchrun", str(EXAMPLE), *size]
            command += ["--step-time-ms", f"{STEP_TIME_S * 1e3:g}"]
        out, said = self._stage.run(*command)
        self.jobs[part.name] = int(out.split(".")[0])
        self.said[part.name] = " ".join(said.split())

    def _is_fragmented(self) -> bool:
        """Return whether both training jobs have done a step on nodes that nobody else uses."""
        if self.story("filler").row.state != "done":
            return False
        return all(
            (said := self.story(name).progress) is not None and said.step >= STEPS
            for name in ("left", "right")
        )

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        until_s = time.time() + WAIT_S
        while not is_so():
            if time.time() > until_s:
                states = {name: self.story(name).row.state for name in self.jobs}
                raise click.ClickException(f"waited {WAIT_S:g} s for {what}: {states}")
            time.sleep(POLL_S)


def _startup_s(story: JobStory) -> float | None:
    """Return from its first start to its first step, seconds, as the head has measured it."""
    for event in story.events:
        found = MEASURED.search(event.text) if event.kind == "StartupMeasured" else None
        if found:
            return float(found[1])
    return None


def _steps(stories: dict[str, JobStory]) -> tuple[Step, ...]:
    """Return who was started and moved where, in the order in which that was decided."""
    found = [each for name, story in stories.items() for each in _of_job(name, story)]
    return tuple(step for _, step in sorted(found, key=lambda each: each[0]))


def _of_job(name: str, story: JobStory) -> Iterator[tuple[int, Step]]:
    """Yield a job's start and its moves, each with its place among all that has happened."""
    places = [tuple(sorted(part.node for part in each.parts)) for each in story.attempts]
    decided = [event.seq for event in story.events if event.kind == "MigrationRequested"]
    begun = [event.seq for event in story.events if event.kind == "AttemptAssigned"]
    if places:
        yield begun[0], Step(job=name, nodes=places[0])
    for seq, before, after in zip(decided, places, places[1:], strict=False):
        yield seq, Step(job=name, nodes=after, moved_from=before)
