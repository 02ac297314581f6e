"""What each job counts under the limits of users and queues, kept in step with the jobs.

A job counts what it has from its assignment to the end of its attempt, and what is kept for it
while it migrates, or until others have vacated it; of both the more. So at no moment do running
jobs have more than a limit allows.
"""

from collections.abc import Iterator, Mapping

from gsched.model.arrays import count
from gsched.model.states import JobState
from gschedd.core.state.records import Job
from gschedd.core.state.state import State, party_of
from gschedd.core.state.walltime import walltime_left_s
from gschedd.plan.amounts import amounts_of, most_of
from gschedd.plan.limits import CountedUse, LimitBook, Party


def recount(state: State, job: Job) -> None:
    """Let a job count what it has, or is to have, by now."""
    book = state.limits
    if book.rules.is_on:
        book.count(job.id, held_by(state, job))


def held_by(state: State, job: Job) -> CountedUse | None:
    """Return what a job counts now; None: nothing."""
    attempt = job.attempt if job.id in state.running else None
    allocations = [attempt.allocation] if attempt is not None else []
    if job.move is not None and job.move.allocation:
        allocations.append(job.move.allocation)
    if job.claim is not None:
        allocations.append(job.claim.allocation)
    party = state.limits.rules.party(party_of(job.spec))
    if not allocations or party is None:
        return None
    amounts = amounts_of(allocations[0], state.spaces)
    for allocation in allocations[1:]:
        amounts = most_of(amounts, amounts_of(allocation, state.spaces))
    left_s = walltime_left_s(job)
    left_ms = None if left_s is None else round(left_s * 1000)
    end_ms = since_ms = 0
    if attempt is not None and attempt.started_s is not None:
        since_ms = round(attempt.started_s * 1000)
        end_ms = 0 if left_ms is None else since_ms + left_ms
    return CountedUse(
        party=party, amounts=amounts, walltime_ms=left_ms, end_ms=end_ms, since_ms=since_ms
    )


def load_budgets(state: State, book: LimitBook) -> None:
    """Let what attempts have used that ended earlier count for budgets."""
    for party, days in spent_days(state):
        book.spend(party, days)


def spent_days(state: State) -> Iterator[tuple[Party, Mapping[int, int]]]:
    """Yield the GPU time by day that attempts have used which ended."""
    for row in state.usage.rows.values():
        by_place: dict[str, dict[int, int]] = {}
        for day, places in row.gpu_ms.items():
            for place, amount in places.items():
                by_place.setdefault(place, {})[day] = amount
        for place, days in by_place.items():
            queue, _, qos = place.partition("/")
            yield Party(queue, row.user, row.project, qos), days


def count_submitted(state: State, job: Job) -> None:
    """Let an unfinished job count as one, and an array as its elements that are no jobs yet."""
    if state.limits.rules.is_on:
        jobs = submitted_by(job)
        state.limits.count_queued(job.id, party_of(job.spec), jobs)


def submitted_by(job: Job) -> int:
    """Return as how many unfinished jobs a job counts."""
    if job.state is JobState.DONE:
        return 0
    elements = job.elements
    return 1 if elements is None else count(elements.left) + count(elements.held)
