"""Projects, limits and a reservation of a chaos run, and what jobs wrote beside what was billed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gsched.client import HeadClient
from gsched.model.reservation import Reservation
from gsched.model.resources import Allocation
from gsched.model.states import OutcomeKind
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.state import facts as f
from tests.support.billed import walls_of
from tests.support.judge import Line

PROJECTS: Final = ("physics", "chemistry")
RESERVATION: Final = "course"
NODE_GPUS: Final = 4
#: Running jobs and GPUs of a user, and running jobs of a project.
MOST_OF_USER, MOST_GPUS_OF_USER, MOST_OF_PROJECT = 4, 2, 6
_BEGINS_S: Final = 20.0
_LASTS_S: Final = 86_400.0
_SECOND_S: Final = 1.0


def config(users: Sequence[str]) -> str:
    """Return limits, and projects of users, as TOML text."""
    names = ", ".join(f'"{user}"' for user in users)
    limits = (
        "[limits]\n"
        f"each_user = {{ max_running = {MOST_OF_USER}, max_gpus = {MOST_GPUS_OF_USER} }}\n"
        f"each_project = {{ max_running = {MOST_OF_PROJECT}, max_gpu_hours_per_month = 1000 }}\n"
    )
    projects = (
        f'[[project]]\nname = "{name}"\nshares = {shares}\nusers = [{names}]\n'
        for name, shares in zip(PROJECTS, (3, 1), strict=True)
    )
    return limits + '[[queue]]\nname = "batch"\n' + "".join(projects)


def reserve(head: HeadClient, now_s: float) -> None:
    """Reserve some GPUs for the jobs of a project, soon and for the rest of the run."""
    terms = ReservationTerms(
        from_s=now_s + _BEGINS_S,
        to_s=now_s + _LASTS_S,
        gpus=NODE_GPUS,
        projects=PROJECTS[:1],
        reason="a course",
    )
    head.change_reservation(ReservationChange(name=RESERVATION, verb="create", terms=terms))


class Usage(NamedTuple):
    """The run times of attempts that have written both lines, beside those billed; seconds.

    Attributes:
        attempts: how many.
        journal_s, billed_s: of all.
        worst_s: the largest difference of one of them.
        off: how many differ by more than a second.
    """

    attempts: int = 0
    journal_s: float = 0.0
    billed_s: float = 0.0
    worst_s: float = 0.0
    off: int = 0


def usage_of(lines: Iterable[Line], facts: Iterable[f.AnyFact]) -> Usage:
    """Compare what attempts that ended by themselves wrote with what they are billed for."""
    facts = list(facts)
    exited = {
        (fact.job, fact.attempt)
        for fact in facts
        if isinstance(fact, f.AttemptEnded) and fact.outcome.kind is OutcomeKind.EXITED
    }
    billed = walls_of(facts)
    found = [
        (span.end_s - span.begin_s, billed[key])
        for key, span in _spans(lines).items()
        if key in exited and key in billed
    ]
    differences = [abs(own - other) for own, other in found]
    return Usage(
        attempts=len(found),
        journal_s=sum(own for own, _ in found),
        billed_s=sum(other for _, other in found),
        worst_s=max(differences, default=0.0),
        off=sum(each > _SECOND_S for each in differences),
    )


class _Span(NamedTuple):
    """When an attempt began and ended, by the kernel's clock."""

    begin_s: float
    end_s: float


def _spans(lines: Iterable[Line]) -> dict[tuple[int, int], _Span]:
    """Return the attempts of which both lines are there."""
    begins: dict[tuple[int, int], float] = {}
    spans: dict[tuple[int, int], _Span] = {}
    for line in lines:
        key = (line.job, line.attempt)
        if line.what == "start":
            begins[key] = line.at_s
        elif key in begins:
            spans[key] = _Span(begins[key], line.at_s)
    return spans


#: By what is counted, as `peaks_of` names it.
_MOST: Final = {
    "jobs of user": MOST_OF_USER,
    "GPUs of user": MOST_GPUS_OF_USER,
    "jobs of project": MOST_OF_PROJECT,
}


def peaks_of(
    lines: Iterable[Line], facts: Iterable[f.AnyFact]
) -> Mapping[tuple[str, str], tuple[int, int]]:
    """Return the most of each limited count at one time, by the jobs' journal, and its limit."""
    specs = {
        fact.job: fact.spec for fact in facts if isinstance(fact, f.JobSubmitted | f.JobAltered)
    }
    events: list[tuple[float, int, int]] = []
    for (job, _), span in _spans(lines).items():
        events += [(span.begin_s, 1, job), (span.end_s, -1, job)]
    held: Counter[tuple[str, str]] = Counter()
    peaks: dict[tuple[str, str], tuple[int, int]] = {}
    for _, change, job in sorted(events):
        spec = specs[job]
        held["jobs of user", spec.owner.user] += change
        held["GPUs of user", spec.owner.user] += change * round(spec.request.gpus)
        held["jobs of project", spec.account] += change
        for what, count in held.items():
            peaks[what] = (max(count, peaks.get(what, (0, 0))[0]), _MOST[what[0]])
    return peaks


def over_limits(peaks: Mapping[tuple[str, str], tuple[int, int]]) -> list[str]:
    """Return which limits were exceeded at some moment."""
    return [
        f"{count} {what} {whose} at one time: the limit is {most}"
        for (what, whose), (count, most) in peaks.items()
        if count > most
    ]


def outside_reservation(facts: Iterable[f.AnyFact]) -> list[str]:
    """Return the jobs of others that were started on what is reserved, after its beginning."""
    reserved: Reservation | None = None
    problems: list[str] = []
    for fact in facts:
        match fact:
            case f.ReservationCreated() | f.ReservationChanged():
                reserved = fact.reservation
            case f.AttemptAssigned() if reserved is not None and fact.at_s >= reserved.from_s:
                kept, used = _gpus(reserved.shares), _gpus(fact.allocation)
                if kept & used and fact.reservation != reserved.name:
                    problems.append(f"job {fact.job} has GPUs of the reservation: {kept & used}")
            case _:
                pass
    return problems


def _gpus(allocation: Allocation) -> set[tuple[str, int]]:
    return {(share.node, held.index) for share in allocation for held in share.gpus_held}


def words_of(usage: Usage, peaks: Mapping[tuple[str, str], tuple[int, int]]) -> str:
    """Return the comparison, and how near limits were, in words."""
    near = ", ".join(f"{count} of {most} {what} {whose}" for (what, whose), (count, most) in
                     sorted(peaks.items()))  # fmt: skip
    return (
        f"{usage.attempts} attempts ran {usage.journal_s:.1f} s by their own journal and were "
        f"billed {usage.billed_s:.1f} s; the largest difference is {usage.worst_s:.2f} s, "
        f"{usage.off} differ by more than a second\nchaos: most at one time: {near}"
    )
