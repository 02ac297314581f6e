"""What a scheduling cycle must look at: what has changed since the last one, and little else."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.state.transient import WaitingGroup
from gschedd.plan.fit import may_help
from gschedd.plan.snapshot import JobClass, Wait


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
    return sorted(found, key=lambda group: state.ordered(group)[0])


def _is_undecided(state: State, job_class: JobClass, waits: Mapping[JobClass, Wait]) -> bool:
    """Return whether nothing is decided yet about the first job of a class, or of a lane in it."""
    group, wait = state.groups.get(job_class), waits.get(job_class)
    if group is None or wait is None or state.ordered(group)[0][1] != wait.first:
        return group is not None
    return len(group.lanes) > 1 and not wait.lacking


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


def due_jobs(state: State, now_s: float) -> list[f.AnyFact]:
    """Return that the time of delayed jobs has come."""
    facts: list[f.AnyFact] = []
    for at_s, number in state.delayed:
        if at_s > now_s:
            break
        retry = state.jobs[number].spec.start_after_s < at_s
        facts.append(f.JobDue(at_s=now_s, job=number, retry=retry))
    return facts


#: Until a policy that failed is asked again, at first; twice as long after each further failure.
FIRST_RETRY_S: Final = 1.0
#: The longest of these times: a fault that passes costs no more than this, one that stays no more
#: than a dozen cycles and lines of the log an hour.
LAST_RETRY_S: Final = 300.0


class Retry:
    """Failures of a policy in a row, and when it gets its next chance.

    A change asks it at once, as always; this is for the quiet hours, in which the jobs that wait
    would else wait until somebody submits another one.

    Attributes:
        failures: in a row; 0 after a cycle that went well.
        due_s: when to ask again, seconds since the epoch; None while nothing has failed.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.due_s: float | None = None

    def failed(self, now_s: float) -> None:
        """Note a failure."""
        # the exponent is bounded, or years of failures would overflow
        delay_s = min(FIRST_RETRY_S * 2 ** min(self.failures, 30), LAST_RETRY_S)
        self.failures += 1
        self.due_s = now_s + delay_s

    def went_well(self) -> None:
        """Note a cycle without a fault."""
        self.failures = 0
        self.due_s = None

    def take(self, now_s: float) -> bool:
        """Return whether the policy is to be asked again now; True once for each failure."""
        if self.due_s is None or now_s < self.due_s:
            return False
        self.due_s = None
        return True
