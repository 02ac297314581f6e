"""What a scheduling cycle must look at: what has changed since the last one, and little else."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping

from gsched.model.states import AttemptState, JobState, PartState
from gschedd.core.attempts.walltime import walltime_left_s
from gschedd.core.settings import Settings
from gschedd.core.state import Job, State
from gschedd.core.transient import Ends, WaitingGroup
from gschedd.plan.fit import may_help
from gschedd.plan.snapshot import ByEnd, JobClass, RunningJob, Wait, end_order
from gschedd.plan.times import planned_end_s, predicted_s


def due_groups(
    state: State, waits: Mapping[JobClass, Wait], unsure: Collection[JobClass]
) -> list[WaitingGroup] | None:
    """Return the groups that a cycle must look at, and take away the marks of what has changed.

    What lacked room goes on lacking it until something is given back that could help, and what was
    decided about the first job of a class holds for those behind it. The job that holds the
    reservation is looked at with the others, so that they heed it; if it might start now, everybody
    is looked at, since another one will hold the reservation then.

    Args:
        waits: what was decided about each class; one of which nothing is known is due.
        unsure: classes of which it is not known that they lack room: looked at whenever anything is
            given back.

    Returns:
        None if all groups are due, an empty list if none is.
    """
    every, job_classes, nodes = state.dirty.take()
    if every:
        return None
    due = {job_class for job_class in job_classes if _is_undecided(state, job_class, waits)}
    if nodes:
        due.update(unsure, _helped(state, nodes))
    if not due:
        return []
    holder = next((wait.job_class for wait in waits.values() if wait.reserved), None)
    if holder in due:
        return None
    if holder is not None:
        due.add(holder)
    # in an order, as a set of strings has another one in every process
    found = [state.groups[job_class] for job_class in due if job_class in state.groups]
    return sorted(found, key=lambda group: group.order[0])


def _is_undecided(state: State, job_class: JobClass, waits: Mapping[JobClass, Wait]) -> bool:
    """Return whether nothing is decided yet about the first job of a class."""
    group, wait = state.groups.get(job_class), waits.get(job_class)
    return group is not None and (wait is None or group.order[0][1] != wait.first)


def _helped(state: State, freed: set[str]) -> set[JobClass]:
    """Return the classes that may start since these nodes have more room."""
    spaces = [state.spaces[name] for name in freed if name in state.spaces]
    found: set[JobClass] = set()
    for request, job_classes in state.classes_of.items():
        for space in spaces:
            if may_help(request, space):
                found.update(job_classes)
                break
    return found


def noted(
    state: State,
    waits: Mapping[JobClass, Wait],
    unsure: Collection[JobClass],
    new: Mapping[JobClass, Wait],
    due: Iterable[WaitingGroup] | None,
) -> tuple[dict[JobClass, Wait], set[JobClass]]:
    """Return why each class waits, and of which it is not known that they lack room.

    Args:
        waits, unsure: as they were.
        new: what a cycle has decided.
        due: what it has looked at; None: everything. Of all others both stay.
    """
    if due is None:
        unknown = {s for s in state.groups if s not in new or not new[s].lacking}
        return dict(new), unknown
    kept, doubtful = dict(waits), set(unsure)
    for group in due:
        job_class = group.job_class
        wait = new.get(job_class)
        if wait is None:
            kept.pop(job_class, None)
            doubtful.add(job_class)
        elif wait.lacking:
            doubtful.discard(job_class)
        else:
            doubtful.add(job_class)
    kept.update(new)
    return kept, doubtful


class Running(ByEnd):
    """What runs, brought up to date when a policy first looks: most cycles have no need of it.

    What a job was predicted when it was assigned decides when it is planned to end; only those that
    have outlived that are planned anew.
    """

    def __init__(self, state: State, settings: Settings, now_s: float) -> None:
        self._state = state
        self._settings = settings
        self._now_s = now_s

    def _ends(self) -> Ends:
        ends, running = self._state.dirty.ends, self._state.running
        for never, end_s, number in ends.order:
            if never or end_s > self._now_s:
                break
            ends.moved.add(number)
        for number in ends.moved:
            before = ends.known.pop(number, None)
            if before is not None:
                key = end_order(before)
                del ends.order[bisect_left(ends.order, key)]
            job = running.get(number)
            if job is not None:
                seen = ends.known[number] = _running(job, self._settings, self._now_s)
                insort(ends.order, end_order(seen))
        ends.moved.clear()
        return ends

    def __contains__(self, job: object) -> bool:
        return job in self._ends().known.values()

    def __iter__(self) -> Iterator[RunningJob]:
        ends = self._ends()
        return (ends.known[number] for _, _, number in ends.order)

    def __len__(self) -> int:
        return len(self._state.running)

    def on(self, node: str) -> list[RunningJob]:
        """Return the jobs that own something on a node, by id."""
        ends = self._ends()
        return [ends.known[number] for number in sorted(self._state.by_node.get(node, ()))]


def _running(job: Job, settings: Settings, now_s: float) -> RunningJob:
    attempt = job.attempt
    assert attempt is not None, "a running job has an attempt"
    started_s = attempt.started_s or attempt.assigned_s
    expected_s = None
    if settings.predicted_times:
        parts = attempt.parts.values()
        expected_s = predicted_s(p.prediction for p in parts if p.state is not PartState.PASSIVE)
    if expected_s is None and job.spec.walltime_s is None:
        expected_s = settings.default_walltime_s or None
    return RunningJob(
        job=job.id,
        allocation=attempt.allocation,
        started_s=started_s,
        leaving=job.state is not JobState.RUNNING,
        starting=attempt.state in (AttemptState.ASSIGNED, AttemptState.STARTING),
        uses={
            name: part.prediction.use
            for name, part in attempt.parts.items()
            if part.prediction is not None
        },
        end_s=planned_end_s(
            started_s=started_s,
            expected_s=expected_s,
            walltime_s=walltime_left_s(job),
            now_s=now_s,
        ),
    )
