"""Reservations begin and end by time, make room for their jobs, and change nodes that have failed.

A job of others that runs on what a reservation holds gives way at its beginning: it saves its state
and waits again, or is requeued. One that can do neither runs on, and the reservation waits for what
it has; with ``ignore_jobs`` all do.
"""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import structs

from gsched.errors import GschedError
from gsched.model.reservation import AtEnd, Reservation
from gsched.model.states import JobState, NodeState, StopReason
from gsched.model.units import format_duration
from gschedd.core.attempts.give_way import GiveWay, give_way, ways_of
from gschedd.core.nodes.reserving import chosen, in_the_way, is_available
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State

#: For so long a node may be away until a reservation has another one, seconds: a gnode restarts.
PATIENCE_S: Final = 60.0


def next_reservation_s(state: State) -> float | None:
    """Return when `due_reservations` has something to do next, seconds since the epoch."""
    if state.volatile.reservations_changed:
        return 0.0
    times_s = [
        each.to_s if each.begun else min(each.from_s, each.to_s)
        for each in state.reservations.values()
    ]
    times_s += [
        at_s for each in state.reservations.values() if (at_s := _unused_s(state, each)) is not None
    ]
    if state.volatile.reservations_look_s:
        times_s.append(state.volatile.reservations_look_s)
    return min(times_s, default=None)


def due_reservations(state: State, settings: Settings, now_s: float) -> Iterator[f.AnyFact]:
    """Yield what becomes of reservations by now."""
    volatile = state.volatile
    looks = volatile.reservations_changed or 0.0 < volatile.reservations_look_s <= now_s
    volatile.reservations_changed = False
    if looks:
        volatile.reservations_look_s = 0.0
    for name in sorted(state.reservations):
        reservation = state.reservations[name]
        unused_s = _unused_s(state, reservation)
        if reservation.to_s <= now_s:
            yield from _ended(state, settings, reservation, now_s)
        elif unused_s is not None and unused_s <= now_s:
            for_s = format_duration(reservation.release_unused_s)
            yield _next_or_none(state, reservation, now_s, why=f"no job used it for {for_s}")
        else:
            if not reservation.begun and reservation.from_s <= now_s:
                yield f.ReservationBegun(at_s=now_s, name=name)
                looks = True
            if looks:
                yield from _repaired(state, reservation, now_s)
            if looks and reservation.from_s <= now_s:
                yield from _cleared(state, settings, reservation, now_s)


def _unused_s(state: State, reservation: Reservation) -> float | None:
    """Return when a reservation that nobody uses is released; None: it is not."""
    if not (reservation.begun and reservation.release_unused_s):
        return None
    if jobs_in(state, reservation.name):
        return None
    return max(reservation.from_s, reservation.used_s) + reservation.release_unused_s


def jobs_in(state: State, name: str) -> list[Job]:
    """Return the jobs that run in a reservation, by number."""
    return [state.running[number] for number in sorted(state.reserved_jobs.get(name, ()))]


def ends_by_reservations(state: State) -> dict[int, float]:
    """Return when reservations end running jobs at the latest, seconds since the epoch, by job.

    Those in one end with its window, and those in the way of one give way when it begins.
    """
    found: dict[int, float] = {}
    for reservation in state.reservations.values():
        for job in jobs_in(state, reservation.name):
            found[job.id] = reservation.to_s
        if not reservation.ignore_jobs:
            for job in in_the_way(state, reservation).values():
                if may_give_way(job):
                    found[job.id] = min(reservation.from_s, found.get(job.id, math.inf))
    return found


def _ended(
    state: State, settings: Settings, reservation: Reservation, now_s: float
) -> Iterator[f.AnyFact]:
    """Yield the end of a window, and of the jobs that still run in it."""
    why = f"reservation {reservation.name} has ended"
    for job in jobs_in(state, reservation.name):
        facts = []
        if reservation.at_end is AtEnd.REQUEUE:
            facts = list(given_way(state, settings, job, why, now_s))
        if not facts and not _is_leaving(job):
            facts = [
                f.StopRequested(
                    at_s=now_s,
                    job=job.id,
                    attempt=job.attempts,
                    reason=StopReason.DELETE,
                    grace_s=job.spec.grace_s,
                    by="gsched",
                    message=why,
                )
            ]
        yield from facts
    yield _next_or_none(state, reservation, now_s, why="its time is over")


def _next_or_none(
    state: State, reservation: Reservation, now_s: float, why: str
) -> f.ReservationChanged | f.ReservationEnded:
    """Return the next window of a reservation, or that it is no more."""
    if not reservation.recur:
        return f.ReservationEnded(at_s=now_s, name=reservation.name, why=why)
    following = islice(reservation.windows(), 1, None)
    window = next(each for each in following if each.to_s > now_s)
    wanted = structs.replace(
        reservation, from_s=window.from_s, to_s=window.to_s, begun=False, used_s=0.0
    )
    return f.ReservationChanged(
        at_s=now_s, reservation=_with_nodes(state, wanted), why=f"{why}; its next window"
    )


def _with_nodes(state: State, wanted: Reservation) -> Reservation:
    """Return a reservation with the best nodes for its window, or with those that it had."""
    try:
        return structs.replace(wanted, shares=chosen(state, wanted))
    except GschedError:
        return wanted


def _repaired(
    state: State, reservation: Reservation, now_s: float
) -> Iterator[f.ReservationChanged]:
    """Yield other nodes for a reservation some of whose have failed, if it did not name them."""
    failed: list[str] = []
    for share in reservation.shares:
        node = state.nodes.get(share.node)
        if node is None or node.drained or node.problem:
            failed.append(share.node)
        elif node.state is not NodeState.UP:
            if node.since_s + PATIENCE_S <= now_s:
                failed.append(share.node)
            else:
                _look_again(state, node.since_s + PATIENCE_S)
    if not failed or reservation.node_names or reservation.maintenance:
        return
    kept = tuple(share for share in reservation.shares if share.node not in failed)
    try:
        shares = chosen(state, structs.replace(reservation, shares=kept), failed)
    except GschedError:
        return  # it has the best nodes that there are
    if not all(is_available(state.nodes[share.node]) for share in shares):
        return
    begun = reservation.begun or reservation.from_s <= now_s
    yield f.ReservationChanged(
        at_s=now_s,
        reservation=structs.replace(reservation, shares=shares, begun=begun),
        why=f"{', '.join(failed)} accepts no jobs",
    )


def _cleared(
    state: State, settings: Settings, reservation: Reservation, now_s: float
) -> Iterator[f.AnyFact]:
    """Yield that the jobs of others give way which still run on what a reservation holds."""
    if reservation.ignore_jobs:
        return
    why = f"reservation {reservation.name} has begun"
    for job in in_the_way(state, reservation).values():
        yield from given_way(state, settings, job, why, now_s)
        if job.id in state.volatile.stuck:
            _look_again(state, state.volatile.stuck[job.id])


def _look_again(state: State, at_s: float) -> None:
    """Let `due_reservations` look at that time, if not before."""
    look_s = state.volatile.reservations_look_s
    state.volatile.reservations_look_s = min(at_s, look_s or at_s)


def may_give_way(job: Job) -> bool:
    """Return whether a job loses no more than its user allows: it saves its state, or reruns."""
    return job.spec.movable or job.spec.rerunnable


def _is_leaving(job: Job) -> bool:
    return job.current_attempt.stop is not None or job.state is not JobState.RUNNING


def given_way(
    state: State, settings: Settings, job: Job, why: str, now_s: float
) -> Iterator[f.JobPreempted | f.MigrationRequested | f.StopRequested]:
    """Yield what lets a running job give way; nothing if it may not, or does so already.

    One that did not save its state when it was asked is requeued, if it is rerunnable, else it is
    asked again.
    """
    ways = ways_of(job, "requeue")
    if "checkpoint" in ways and not (state.volatile.refusals[job.id] and "requeue" in ways):
        if job.id not in state.volatile.stuck:
            yield from give_way(state, settings, job, GiveWay(way="checkpoint", why=why), now_s)
    elif "requeue" in ways:
        yield from give_way(state, settings, job, GiveWay(way="requeue", why=why), now_s)
