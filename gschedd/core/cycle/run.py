"""One scheduling cycle: a snapshot, a policy's plan, and what of it is accepted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Request
from gsched.model.states import JobState
from gschedd.core.attempts.assign import Assigner
from gschedd.core.attempts.migration import movable, moved
from gschedd.core.attempts.running import Running
from gschedd.core.nodes.reserving import free_in, reserved_windows
from gschedd.core.state import facts as f
from gschedd.core.state.learning import Kinds, Loads
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.transient import WaitingGroup
from gschedd.core.training.goodput import tuned
from gschedd.core.training.profile import TrainingProfiles
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.fit import NoFit, place
from gschedd.plan.forecast import Forecast
from gschedd.plan.limits import LimitRoom
from gschedd.plan.load import Predictor
from gschedd.plan.rests import resting
from gschedd.plan.snapshot import Group, JobClass, Move, Plan, Policy, Snapshot, Start, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.validate import RefusedStart, has_room, start_within, validate
from gschedd.plan.windows import barred, barring, window_reason, without

#: Maximum number of node comparisons for the starts of a cycle, as all requests wait meanwhile:
#: ``balance`` takes 3 us per node on a quiet core and 5 us on a busy one, at most 40 ms in all.
MAX_LOOKS: Final = 8_000
#: Maximum number of starts in a cycle: each costs about 50 us besides.
MAX_STARTS: Final = 256
#: The limit of starts is never below this, however many nodes there are: each cycle has a commit.
MIN_STARTS: Final = 16


class Cycle(Struct, frozen=True, kw_only=True):
    """The results of a cycle.

    Attributes:
        facts: the accepted starts.
        waits: why each class that is left waits.
        refused: starts that were proposed and could not be accepted: a policy's fault.
        objection: why the moves that were proposed could not be accepted.
        verdicts: what is expected of training jobs.
        again_s: when the policy wants to be asked again, seconds since the epoch; None: no matter.
        more: the plan reached its limit of starts; another cycle follows at once.
    """

    facts: tuple[f.AnyFact, ...]
    waits: Mapping[JobClass, Wait]
    refused: tuple[RefusedStart, ...]
    objection: str = ""
    verdicts: tuple[Forecast, ...] = ()
    again_s: float | None = None
    more: bool = False


def snapshot(
    state: State,
    settings: Settings,
    now_s: float,
    predictor: Predictor | None = None,
    *,
    due: Iterable[WaitingGroup] | None = None,
    starts_max: int | None = None,
) -> Snapshot:
    """Return what a policy may see now; jobs of stopped queues are not in it.

    Args:
        due: the groups to show; None for all.
        starts_max: of the plan; None: as many as there can be.
    """
    groups = [
        Group(job_class=group.job_class, order=state.ordered(group))
        for group in (state.groups.values() if due is None else due)
        if is_started(settings, group.job_class.queue)
    ]
    return Snapshot(
        now_s=now_s,
        nodes=state.spaces,
        groups=groups,
        running=Running(state, settings, now_s),
        loads=Loads(state),
        kinds=Kinds(state),
        predictor=predictor,
        default_walltime_s=settings.config.head.default_walltime_s or None,
        predicted_times=settings.config.balance.predicted_times,
        profiles=(
            TrainingProfiles(state, settings, now_s, predictor)
            if state.plans_training and state.training_jobs
            else {}
        ),
        fabric=settings.fabric,
        moves_max=max(0, settings.config.moves.at_once - len(state.targets)),
        moves_left=state.volatile.moves_left and len(state.targets) < settings.config.moves.at_once,
        starts_max=starts_max,
        windows=state.windows(now_s, settings.config.power.resume_timeout_s),
        reserved=reserved_windows(state),
        limits=limit_room(state, now_s),
        kept=state.volatile.kept,
    )


def limit_room(state: State, now_s: float) -> LimitRoom | None:
    """Return what limits leave now; None: there are none."""
    return LimitRoom(state.limits, now_s) if state.limits.rules.is_on else None


def is_started(settings: Settings, queue: str) -> bool:
    """Return whether jobs of a queue may start."""
    config = settings.queues.get(queue)
    return settings.scheduling and config is not None and config.started


def run_cycle(  # noqa: PLR0913 - what a cycle goes by
    state: State,
    settings: Settings,
    policy: Policy,
    now_s: float,
    predictor: Predictor | None = None,
    *,
    due: Iterable[WaitingGroup] | None = None,
    starts_max: int = MAX_STARTS,
) -> Cycle:
    """Ask the policy, check its plan against the state, and return what is to become true.

    Args:
        due: the groups to decide about; None for all.
        starts_max: of the cycle; on many nodes it has fewer (`most_starts`).
    """
    most = min(starts_max, most_starts(len(state.spaces)))
    with resting():
        seen = snapshot(state, settings, now_s, predictor, due=due, starts_max=most)
        plan = policy(seen) if seen.groups or state.training_jobs else Plan()
        note_planned(state, seen)
        return carried_out(state, settings, plan, now_s, predictor)


def note_planned(state: State, seen: Snapshot) -> None:
    """Note that the moves that were left are planned again: what was seen tells of them."""
    if seen.moves_left:
        state.volatile.moves_left = False


def carried_out(
    state: State,
    settings: Settings,
    plan: Plan,
    now_s: float,
    predictor: Predictor | None = None,
) -> Cycle:
    """Check a plan against the state, and return what is to become true."""
    moves = paced(state, settings, plan.moves, now_s)
    if plan.moves:
        state.volatile.moves_left = len(moves) < len(plan.moves)
    objection = _Objections(state, now_s)
    checked = validate(
        structs.replace(plan, moves=moves),
        Spaces(state.spaces),
        lambda job: class_if_waiting(state, job),
        lambda job: movable(state, job),
        objection.of,
        limit_room(state, now_s),
    )
    assigner = Assigner(state, settings, now_s, predictor)
    # moves keep more room than the starts take: then a start stays where it was planned
    starts = checked.accepted if checked.moves else elsewhere(state, checked.accepted, now_s)
    facts = [
        assigner.assign(
            *(state.jobs[start.job], start.allocation, start.why, start.batching),
            reservation=start.reservation,
        )
        for start in starts
    ]
    taken = [share for start in starts for share in start.allocation]
    waits = {wait.job_class: wait for wait in plan.waits}
    for refusal in checked.refused:
        job_class, job = class_if_waiting(state, refusal.start.job), refusal.start.job
        if job_class is not None:
            waits.setdefault(job_class, Wait(job_class=job_class, first=job, reason=refusal.reason))
    return Cycle(
        facts=(
            *judged(state, plan.verdicts, now_s),
            *moved(state, settings, checked.moves, now_s, taken),
            *tuned(state, plan.tunes, now_s),
            *facts,
        ),
        waits=waits,
        refused=checked.refused,
        objection=checked.objection,
        verdicts=plan.verdicts,
        again_s=plan.again_s,
        more=plan.more,
    )


def judged(state: State, verdicts: Iterable[Forecast], now_s: float) -> Iterator[f.DeadlineJudged]:
    """Yield what was never said of a job's deadline before, or was said otherwise.

    Of those of whom nothing can be said yet nothing is noted.
    """
    for verdict in verdicts:
        job = state.jobs.get(verdict.job)
        if job is None or not job.spec.deadline_s:
            continue
        if verdict.meets is None or verdict.unsure_until_s is not None:
            continue
        if job.meets is not verdict.meets or (verdict.firm and job.guaranteed is None):
            yield f.DeadlineJudged(
                at_s=now_s,
                job=job.id,
                meets=verdict.meets,
                end_s=verdict.end_s,
                gpus=verdict.gpus,
                why=verdict.why,
                firm=verdict.firm,
            )


class _Objections:
    """Why windows and reservations do not let starts of one plan be made; lives for its check."""

    def __init__(self, state: State, now_s: float) -> None:
        self._state = state
        self._now_s = now_s
        self._windows = state.windows(now_s)
        self._given: dict[str, list[Allocation]] = {}

    def of(self, start: Start, free: Spaces) -> str:
        """Return why a start cannot be made, or the empty string.

        Args:
            free: what the starts before it leave.
        """
        if start.reservation:
            return self._outside(start, free)
        if start.job_class.reservation:
            return f"it is to start in reservation {start.job_class.reservation}"
        windows, now_s = self._windows, self._now_s
        if not windows:
            return ""
        walltime_s, nodes = start.job_class.walltime_s, [share.node for share in start.allocation]
        if all(barring(windows, node, now_s, walltime_s) is None for node in nodes):
            return ""
        left = without(free, barred(windows, now_s, walltime_s))
        if all(
            left[share.node].open and has_room(share, left[share.node])
            for share in start.allocation
        ):
            return ""
        return window_reason(windows, nodes, now_s, walltime_s)

    def _outside(self, start: Start, free: Spaces) -> str:
        name, now_s = start.reservation, self._now_s
        reservation = self._state.reservations.get(name)
        if reservation is None or name not in start.job_class.may_use:
            return f"reservation {name} is not for it"
        walltime_s = start.job_class.walltime_s or 0.0
        if not reservation.from_s <= now_s < reservation.to_s:
            return f"reservation {name} is not now"
        if now_s + walltime_s > reservation.to_s:
            return f"reservation {name} ends before its walltime"
        given = self._given.setdefault(name, [])
        left = free_in(self._state, reservation, free, given)
        for share in start.allocation:
            if share.node not in left or not has_room(share, left[share.node]):
                return f"reservation {name} has no room for it on {share.node}"
        given.append(start.allocation)
        return ""


def elsewhere(state: State, starts: Sequence[Start], now_s: float) -> tuple[Start, ...]:
    """Return accepted starts, those on nodes that their jobs avoid elsewhere if there is room.

    Nodes on which a job failed to start are its last choice, not forbidden: where nothing else is
    free for it, it is tried there again. Policies need not know of it, since such starts are rare;
    a reservation that a policy has made may be later by one such start.

    Args:
        state: as it is before the starts.
        starts: all of them, accepted together.
    """
    avoiding = {start.job for start in starts if _is_avoided(state, start)}
    if not avoiding:
        return tuple(starts)
    free = Spaces(state.spaces)
    for start in starts:
        free.take(start.allocation)
    found = tuple(
        _elsewhere(state, start, free, now_s) if start.job in avoiding else start
        for start in starts
    )
    room = limit_room(state, now_s)
    if room is None or not any(
        start_within(room, start.job_class, start.allocation, Spaces(state.spaces))
        for start in found
    ):
        return found
    return tuple(starts)  # GPUs of other types would break a limit


def _is_avoided(state: State, start: Start) -> bool:
    avoid = state.jobs[start.job].avoid
    return bool(avoid) and any(share.node in avoid for share in start.allocation)


def _elsewhere(state: State, start: Start, free: Spaces, now_s: float) -> Start:
    """Return a start elsewhere, and take it from ``free``; or the same one."""
    if start.reservation:
        return start
    avoid = [name for name in state.jobs[start.job].avoid if name in free]
    free.give(start.allocation)
    closed = barred(state.windows(now_s), now_s, start.job_class.walltime_s)
    others = without(free, closed.union(avoid))
    found = place(_request_of(start), others)
    if isinstance(found, NoFit):
        free.take(start.allocation)
        return start
    free.take(found)
    why = f"{start.why}; not on {', '.join(avoid)}, where it failed to start"
    return structs.replace(start, allocation=found, why=why)


def _request_of(start: Start) -> Request:
    request = start.job_class.request
    places = sum(share.slots for share in start.allocation)
    return at_count(request, places) if is_elastic(request) else request


def most_starts(nodes: int) -> int:
    """Return how many jobs a cycle starts at most, on a cluster of so many nodes."""
    return min(MAX_STARTS, max(MIN_STARTS, MAX_LOOKS // max(1, nodes)))


def class_if_waiting(state: State, job_id: int) -> JobClass | None:
    """Return the class of a job that may start now, else None."""
    job = state.jobs.get(job_id)
    if job is None or job.state is not JobState.QUEUED:
        return None
    return state.class_of(job)


Objection = Callable[[Sequence[Move]], str]


def paced(
    state: State, settings: Settings, moves: Sequence[Move], now_s: float
) -> tuple[Move, ...]:
    """Return those of a policy's moves that are to be made now.

    Training jobs that save their state all at the same moment would take each other's disk and
    network, so no more move at once than is set, whoever wants it. Of several users the one of
    whose jobs the fewest have moved so far is next, as with drains. What is left the policy may
    propose again when one of these is at its place.

    A move into a place that another one has to leave first is made together with that one. Where so
    many jobs want each other's places that there would never be room for all of them, they move
    when nothing else does.
    """
    room = settings.config.moves.at_once - len(state.targets)
    if len(moves) <= room:
        return tuple(moves)

    room_of_limits = limit_room(state, now_s)

    def objection(some: Sequence[Move]) -> str:
        plan, spaces = Plan(moves=tuple(some)), Spaces(state.spaces)
        return validate(
            plan,
            spaces,
            lambda _: None,
            lambda job: movable(state, job),
            limits=room_of_limits,
        ).objection

    if room > 0 and objection(moves):
        return tuple(moves)  # it is for the check of the whole plan to say so
    return _chosen(state, moves, room, objection)


def _chosen(
    state: State, moves: Sequence[Move], room: int, objection: Objection
) -> tuple[Move, ...]:
    chosen: list[Move] = []
    rest = list(moves)
    turns = Counter(state.volatile.turns)
    while len(chosen) < room:
        rest.sort(key=lambda move: turns[_owner(state, move)])  # stable: else as they were planned
        group = _next(state, chosen, rest, room - len(chosen), objection)
        if not group:
            break
        chosen.extend(group)
        turns.update(_owner(state, move) for move in group)
        rest = [move for move in rest if move not in group]
    if not chosen and room > 0 and not state.targets and rest:
        chosen = _with_those_before(state, [], rest, rest[0], len(rest), objection)
    return tuple(chosen)


def _owner(state: State, move: Move) -> int:
    return state.jobs[move.job].spec.owner.uid


def _next(
    state: State, chosen: list[Move], rest: list[Move], room: int, objection: Objection
) -> list[Move]:
    """Return the next move, with those that have to be made with it; empty if none has room."""
    for move in rest:
        group = _with_those_before(state, chosen, rest, move, room, objection)
        if group:
            return group
    return []


def _with_those_before(
    state: State,
    chosen: list[Move],
    rest: list[Move],
    move: Move,
    most: int,
    objection: Objection,
) -> list[Move]:
    """Return a move and those that leave the place that it needs; empty if they are too many."""
    group = [move]
    while objection([*chosen, *group]):
        leaver = next((other for other in _leavers(state, rest, group) if other not in group), None)
        if leaver is None or len(group) >= most:
            return []
        group.append(leaver)
    return group


def _leavers(state: State, rest: list[Move], group: list[Move]) -> list[Move]:
    """Return moves away from where a group goes, those first that have what it is to have."""
    wanted: dict[str, set[int]] = {}
    for move in group:
        for share in move.allocation:
            wanted.setdefault(share.node, set()).update(share.gpu_indices)
    found: list[tuple[bool, Move]] = []
    for move in rest:
        attempt = state.jobs[move.job].attempt
        here = attempt.allocation if attempt is not None else ()
        shares = [share for share in here if share.node in wanted]
        if shares:
            apart = all(wanted[share.node].isdisjoint(share.gpu_indices) for share in shares)
            found.append((apart, move))
    return [move for _, move in sorted(found, key=lambda each: each[0])]
