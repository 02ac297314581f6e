"""What is taken back from nodes after a loss: jobs and attempts that an old database does not know.

In safe mode every node that comes is asked what it knows. An operator sees the cases, and accepts;
then what is adopted becomes facts, as if the lost database had them.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, structs

from gsched.model.job import JobSpec
from gsched.model.origin import Origin
from gsched.model.resources import crowded_gpu
from gsched.model.states import HoldKind, JobState, PartState, StopReason
from gsched.protocol import node as n
from gschedd.core.attempts.reports import is_same, usage_of
from gschedd.core.attempts.settle import attempt_ended
from gschedd.core.state import facts as f
from gschedd.core.state.lost import lost_part
from gschedd.core.state.records import Job
from gschedd.core.state.state import State

#: So many attempts are kept of what all nodes tell, at most.
MAX_KNOWN: Final = 200_000
#: Numbers from here on are no job's and no attempt's, and fit into no JSON number exactly.
MAX_NUMBER: Final = 2**53
MAX_PORT: Final = 65_536


class CaseKind(StrEnum):
    """What a node knows of a job that the database does not."""

    FINISHED = "finished"  # has ended since; the database has it queued, running or not at all
    STARTED = "started"  # was started since; the database has it queued, or an older attempt
    ADOPTED = "adopted"  # is not in the database at all, and runs
    LOST = "lost"  # runs by the database, but its node knows nothing of it any more
    CONFLICT = "conflict"  # its number belongs to another job here: it is stopped
    HELD = "held"  # may have run since, where nobody can tell: an operator must release it


class Case(Struct, frozen=True, kw_only=True):
    """One job that is not as the database has it.

    Attributes:
        parts: what each node knows of its newest attempt.
        origin: where that comes from; None: no node can read it any more.
        why: in words, for a conflict.
        known: the database knows this very attempt.
        earlier: the job's attempts before this one whose end the database does not know, in order;
            they are taken back for its history.
    """

    kind: CaseKind
    job: int
    attempt: int = 0
    parts: Mapping[str, n.KnownAttempt] = {}
    origin: Origin | None = None
    why: str = ""
    known: bool = False
    earlier: tuple["Case", ...] = ()


class Survey:
    """What the nodes have told since safe mode began.

    Attributes:
        first_unknown: jobs from this number on may be missing in the database.
        finished: jobs from that number on that are done in the database; the shell looks them up.
        known: attempts by node.
        done: nodes that have told all.
        dropped: attempts beyond `MAX_KNOWN`, which are not kept.
    """

    def __init__(self, first_unknown: int) -> None:
        self.first_unknown = first_unknown
        self.finished: set[int] = set()
        self.known: dict[str, list[n.KnownAttempt]] = {}
        self.done: set[str] = set()
        self.dropped = 0
        self._count = 0

    def begin(self, node: str) -> None:
        """Forget what a node has told: it tells it anew."""
        self._count -= len(self.known.pop(node, ()))
        self.done.discard(node)

    def take(self, node: str, message: n.KnownAttempts) -> None:
        """Take in a piece of what a node knows."""
        room = max(0, MAX_KNOWN - self._count)
        kept = message.attempts[:room]
        self.dropped += len(message.attempts) - len(kept)
        self._count += len(kept)
        self.known.setdefault(node, []).extend(kept)
        if message.done:
            self.done.add(node)

    def doubtful(self, state: State) -> list[int]:
        """Return the jobs that may be done in the database, and may be missing in it."""
        reported = {each.job for attempts in self.known.values() for each in attempts}
        return sorted(
            job for job in reported if job >= self.first_unknown and job not in state.jobs
        )

    def question(self, state: State) -> n.SurveyAttempts:
        """Return what nodes are asked."""
        unfinished = tuple(job for job in state.jobs if job < self.first_unknown)
        return n.SurveyAttempts(first_unknown=self.first_unknown, unfinished=unfinished)


def cases_of(state: State, survey: Survey) -> list[Case]:
    """Return every job of which the nodes know something that the database does not."""
    reported: dict[int, dict[int, dict[str, n.KnownAttempt]]] = {}
    for node, attempts in survey.known.items():
        for known in attempts:
            if _is_sound(known):
                reported.setdefault(known.job, {}).setdefault(known.attempt, {})[node] = known
    cases = [
        case
        for job, by_number in sorted(reported.items())
        if (case := _newest_case(state, survey, job, by_number)) is not None
    ]
    settled = {case.job for case in cases}
    cases.extend(case for case in _lost(state, survey) if case.job not in settled)
    return cases


def _is_sound(known: n.KnownAttempt) -> bool:
    """Return whether what a node tells can be true by itself."""
    end = known.exit
    if end is not None and (end.job, end.attempt) != (known.job, known.attempt):
        return False
    return 0 < known.job < MAX_NUMBER and 0 < known.attempt < MAX_NUMBER


def _is_possible(origin: Origin) -> bool:
    """Return whether a head can have given this allocation: each node and each GPU once."""
    shares = origin.allocation
    nodes = {share.node for share in shares}
    counts = [count for each in shares for count in (each.cpus, each.slots, each.memory_bytes)]
    counts.extend(count for each in shares for _, count in each.generic)
    held = [[gpu.index for gpu in each.gpus_held] for each in shares]
    gpus = [index for indices in held for index in indices]
    gpus.extend(gpu.memory_bytes for each in shares for gpu in each.gpu_shares)
    return (
        len(nodes) == len(shares)
        and bool(origin.active)
        and nodes.issuperset(origin.active)
        and all(len(set(indices)) == len(indices) for indices in held)
        and all(0 <= number < MAX_NUMBER for number in (*counts, *gpus))
        and 0 <= origin.master_port < MAX_PORT
    )


def _newest_case(
    state: State,
    survey: Survey,
    number: int,
    by_number: Mapping[int, Mapping[str, n.KnownAttempt]],
) -> Case | None:
    """Return the case of a job by its newest attempt, which decides what becomes of the job."""
    newest = max(by_number)
    case = _case_of(state, survey, number, by_number[newest])
    if case is None or not is_adoptable(case):
        return case
    return structs.replace(case, earlier=tuple(_earlier(state, number, newest, by_number)))


def _earlier(
    state: State,
    number: int,
    newest: int,
    by_number: Mapping[int, Mapping[str, n.KnownAttempt]],
) -> Iterator[Case]:
    """Yield a job's attempts before the newest one that are to be taken back.

    That is the one that runs by the database, if any, and those that the database does not know
    and that have ended on all of their nodes.
    """
    job = state.jobs.get(number)
    if job is not None and job.move is not None:
        return
    here = job.attempt.number if job is not None and job.attempt is not None else 0
    for attempt in sorted(by_number.keys() | ({here} if here else set())):
        parts = by_number.get(attempt, {})
        if attempt >= newest:
            return
        if attempt == here:
            yield Case(kind=CaseKind.FINISHED, job=number, attempt=attempt, parts=parts, known=True)
            continue
        origin = next((known.origin for known in parts.values() if known.origin is not None), None)
        ended = {node for node, known in parts.items() if known.exit is not None}
        if job is not None and attempt <= job.attempts:
            continue
        if origin is None or not ended.issuperset(origin.active):
            continue
        if not _contradiction(job, attempt, parts, origin):
            yield Case(
                kind=CaseKind.FINISHED, job=number, attempt=attempt, parts=parts, origin=origin
            )


def _case_of(
    state: State, survey: Survey, number: int, parts: Mapping[str, n.KnownAttempt]
) -> Case | None:
    job = state.jobs.get(number)
    if job is None and (number < survey.first_unknown or number in survey.finished):
        return None  # it is done in the database, too
    attempt = next(iter(parts.values())).attempt
    origin = next((known.origin for known in parts.values() if known.origin is not None), None)
    over = all(known.exit is not None for known in parts.values())
    known = job is not None and job.attempt is not None and job.attempt.number == attempt
    kind: CaseKind | None = CaseKind.FINISHED
    why = _contradiction(job, attempt, parts, origin)
    if why:
        kind = CaseKind.CONFLICT
    elif job is None:
        kind = CaseKind.FINISHED if over else CaseKind.ADOPTED
    elif known:
        kind = CaseKind.FINISHED if _has_news(job, parts) else None
    elif attempt <= job.attempts:
        kind = None  # of an attempt that the database knows to be over
    elif not over:
        kind = CaseKind.STARTED
    if kind is None:
        return None
    return Case(
        kind=kind,
        job=number,
        attempt=attempt,
        parts=parts,
        origin=origin,
        why=why,
        known=known,
    )


def _contradiction(
    job: Job | None, attempt: int, parts: Mapping[str, n.KnownAttempt], origin: Origin | None
) -> str:
    """Return why what nodes tell of a job cannot be taken back, in words; empty: it can."""
    here = job.attempt if job is not None else None
    known_here = here is not None and here.number == attempt
    if origin is None:
        return "" if known_here else "nobody knows whose job it was: its task cannot be read"
    if len({known.token for known in parts.values() if known.origin is not None}) > 1:
        return "its nodes know attempts of different histories"
    if not all(_is_possible(known.origin) for known in parts.values() if known.origin is not None):
        return "its allocation, as its node tells it, cannot be true"
    if not parts.keys() <= {share.node for share in origin.allocation}:
        return "a node tells of an attempt that was never given to it"
    if job is None:
        return ""
    if (job.submitted_s, job.spec.owner.uid) != (origin.submitted_s, origin.spec.owner.uid):
        return "its number was given to another job"
    if known_here and here is not None and not is_same(here, origin.token):
        return "its attempt was started by another head, too"
    return ""


def _has_news(job: Job, parts: Mapping[str, n.KnownAttempt]) -> bool:
    """Return whether a part has ended that runs by the database."""
    here = job.attempt.parts if job.attempt is not None else {}
    return any(
        known.exit is not None and node in here and here[node].state in _LIVE
        for node, known in parts.items()
    )


_LIVE: Final = frozenset({PartState.PENDING, PartState.RUNNING})


def _lost(state: State, survey: Survey) -> Iterator[Case]:
    """Yield jobs that run by the database on a node that knows nothing of them."""
    for node in sorted(survey.done):
        known = {(each.job, each.attempt) for each in survey.known.get(node, ())}
        for job in state.by_node.get(node, {}).values():
            attempt = job.current_attempt
            if attempt.parts[node].state in _LIVE and (job.id, attempt.number) not in known:
                why = f"{node} knows nothing of it any more"
                yield Case(kind=CaseKind.LOST, job=job.id, attempt=attempt.number, why=why)


class Hold(StrEnum):
    """Which of the waiting jobs of an old database may have run, where nobody can tell."""

    NOTHING = "nothing"  # nothing is missing in the database
    ONCE_ONLY = "once-only"  # those that must never run twice: a node may have forgotten an end
    ALL = "all"  # nodes are missing: any of them may run there


def held_jobs(state: State, cases: list[Case], hold: Hold) -> list[Case]:
    """Return the waiting jobs that an operator has to release, as they may have run."""
    if hold is Hold.NOTHING:
        return []
    known = {case.job for case in cases}
    why = "it may have run since the backup was made; release it if it has not"
    return [
        Case(kind=CaseKind.HELD, job=job.id, why=why)
        for job in state.jobs.values()
        if job.attempt is None
        and job.id not in known
        and (hold is Hold.ALL or not job.spec.rerunnable)
        and HoldKind.OPERATOR not in job.holds
    ]


def ends_of(state: State, cases: list[Case], now_s: float) -> list[f.AnyFact]:
    """Return the ends of attempts that the database knows; they make room for what is adopted."""
    facts: list[f.AnyFact] = []
    for case in cases:
        job = state.jobs.get(case.job)
        if job is None or job.attempt is None or job.attempt.number != case.attempt:
            continue
        if case.kind is CaseKind.FINISHED:
            facts.extend(_part_ends(job, case, now_s))
        elif case.kind is CaseKind.LOST:
            facts.extend(
                lost_part(job, node, now_s=now_s, message=case.why)
                for node, part in job.attempt.parts.items()
                if part.state in _LIVE and case.why.startswith(f"{node} ")
            )
    return facts


def _part_ends(job: Job, case: Case, now_s: float) -> Iterator[f.PartEnded]:
    for node, known in case.parts.items():
        part = job.current_attempt.parts.get(node)
        if known.exit is None or part is None or part.state not in _LIVE:
            continue
        yield f.PartEnded(
            at_s=now_s,
            job=job.id,
            attempt=case.attempt,
            node=node,
            record=known.exit,
            usage=known.usage or usage_of(known.exit),
        )


def is_adoptable(case: Case) -> bool:
    """Return whether a case is to be adopted as an attempt that the database does not know."""
    return case.origin is not None and not case.known and case.kind in _TAKEN_BACK


def adoption_of(state: State, case: Case, now_s: float) -> list[f.AnyFact]:
    """Return the facts by which a job has the attempt that its nodes know; none if it cannot."""
    origin = case.origin
    if origin is None or not is_adoptable(case):
        return []
    job = state.jobs.get(case.job)
    if _is_taken(state, case, origin):
        return []
    facts: list[f.AnyFact] = []
    if job is None:
        facts.append(
            f.JobSubmitted(
                at_s=origin.submitted_s,
                job=case.job,
                spec=_as_recovered(state, origin.spec),
                state=JobState.QUEUED,
                recovered=True,
            )
        )
    ends = {node: known.exit for node, known in case.parts.items() if known.exit is not None}
    stops = [end.stop_reason for end in ends.values() if end.stop_reason in _REQUESTED_STOPS]
    facts.append(
        f.AttemptRecovered(
            at_s=now_s,
            job=case.job,
            attempt=case.attempt,
            allocation=origin.allocation,
            active=origin.active,
            assigned_s=origin.assigned_s,
            token=origin.token,
            started_s={
                node: known.started_s for node, known in case.parts.items() if known.started_s
            },
            boot_ids={
                node: state.nodes[node].boot_id for node in origin.active if node in state.nodes
            },
            master_port=origin.master_port,
            stop=stops[0] if stops else None,
        )
    )
    facts.extend(
        f.PartEnded(
            at_s=now_s,
            job=case.job,
            attempt=case.attempt,
            node=node,
            record=end,
            usage=case.parts[node].usage or usage_of(end),
        )
        for node, end in ends.items()
        if node in origin.active
    )
    return facts


def earlier_parts(state: State, case: Case, now_s: float) -> list[f.AnyFact]:
    """Return the facts by which all parts of an earlier attempt have ended; none if it cannot.

    Nobody knows the end of a part that runs by the database and that its node does not tell of:
    it is lost, since the node has run a newer attempt.
    """
    if not case.known:
        return adoption_of(state, case, now_s)
    job = state.jobs[case.job]
    known_ends = {fact.node: fact for fact in _part_ends(job, case, now_s)}
    return [
        known_ends.get(node)
        or lost_part(job, node, now_s=now_s, message=f"{node} has forgotten its end")
        for node, part in job.current_attempt.parts.items()
        if part.state in _LIVE
    ]


def earlier_end(state: State, case: Case, by: int, now_s: float) -> list[f.AnyFact]:
    """Return that an earlier attempt has ended, and that its job went on to another one.

    Args:
        by: the number of the newest attempt.
    """
    job = state.jobs[case.job]
    if job.attempt is None or job.attempt.number != case.attempt:
        return []
    return [
        attempt_ended(job, now_s),
        f.JobRequeued(
            at_s=now_s, job=case.job, reason=f"its nodes have run attempt {by} since", faults=0
        ),
    ]


def blocked_jobs(state: State, cases: list[Case]) -> list[Case]:
    """Return the jobs to hold because nodes know an attempt that cannot be adopted.

    Without the hold such a job would stay queued and run a second time.
    """
    return [
        Case(
            kind=CaseKind.HELD,
            job=case.job,
            why=f"a node knows its attempt {case.attempt}, but another job has its GPUs here; "
            "release it if it is to run again",
        )
        for case in cases
        if case.job in state.jobs
    ]


_TAKEN_BACK: Final = frozenset({CaseKind.FINISHED, CaseKind.STARTED, CaseKind.ADOPTED})
#: Somebody wanted the attempt to end so: the outcome depends on it.
_REQUESTED_STOPS: Final = frozenset({StopReason.DELETE, StopReason.RERUN, StopReason.MOVE})


def _is_taken(state: State, case: Case, origin: Origin) -> bool:
    """Return whether other jobs own too much of a GPU of it now; they may end later."""
    for share in origin.allocation:
        held = [
            gpu
            for job in state.by_node.get(share.node, {}).values()
            if job.id != case.job and job.attempt is not None
            for gpu in job.attempt.parts[share.node].share.gpus_held
        ]
        if crowded_gpu([*held, *share.gpus_held], state.gpus_of(share.node)) is not None:
            return True
    return False


def _as_recovered(state: State, spec: JobSpec) -> JobSpec:
    """Return what a recovered job states: it runs to its end where it is, and never again.

    A node says it, so nothing of it may start a process on another node; and its script and
    environment are lost anyway.
    """
    key = spec.client_key
    taken = bool(key) and state.keys.find(spec.owner.uid, key) is not None
    return structs.replace(
        spec,
        request=structs.replace(spec.request, places_max=0),
        rerunnable=False,
        movable=False,
        profile=False,
        restarts_max=0,
        lease_s=0.0,
        holds=(),
        deadline_s=0.0,
        urgency=None,
        training=None,
        checkpoint_signal=0,
        script_digest="",
        environment_digest="",
        client_key="" if taken else key,
    )
