"""Between the core's records and the database's rows."""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct, structs

from gsched.model.arrays import indices
from gsched.model.ids import element_number
from gsched.model.job import JobSpec, Outcome
from gsched.model.reservation import Reservation
from gsched.model.states import HoldKind, JobState
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job, Node, SparseFields
from gschedd.core.state.step import Run
from gschedd.shares.ledger import LedgerRow
from gschedd.store.seals import Damaged, DamagedRowError, SqlValue, is_sealed, read_row

Row = tuple[SqlValue, ...]
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_decode_spec = msgspec.json.Decoder(JobSpec).decode
_decode_attempt = msgspec.json.Decoder(Attempt).decode
_decode_outcome = msgspec.json.Decoder(Outcome).decode
_decode_usage = msgspec.json.Decoder(LedgerRow).decode
_decode_node = msgspec.json.Decoder(Node).decode
_decode_reservation = msgspec.json.Decoder(Reservation).decode
_fact_decoder: msgspec.json.Decoder[f.AnyFact] = msgspec.json.Decoder(f.AnyFact)

#: In the order of `job_row`.
JOB_COLUMNS: Final = (
    *("id", "uid", "user", "queue", "name", "state", "submitted_s", "eligible_s", "started_s"),
    *("ended_s", "holds", "hold_reason", "not_before_s", "attempts", "faults", "requeues"),
    *("requeue_reason", "cpu_s", "wall_s", "gpu_s", "outcome", "outcome_data", "failed"),
    *("client_key", "sparse"),
)
_INTEGERS: Final = tuple(
    JOB_COLUMNS.index(name) for name in ("id", "uid", "attempts", "faults", "requeues", "failed")
)


SELECT_JOBS: Final = (
    "SELECT "  # noqa: S608 # the names are constants
    + ", ".join("jobs." + name for name in JOB_COLUMNS)
    + ", jobs.seal, specs.seal, specs.spec FROM jobs LEFT JOIN specs ON specs.job = jobs.id "
)
SELECT_ATTEMPTS: Final = "SELECT job, attempt, state, data, seal FROM attempts "
SELECT_LIVE_ATTEMPTS: Final = SELECT_ATTEMPTS + "WHERE state <> 'ended'"
SELECT_EVENTS: Final = "SELECT seq, at_s, kind, job, node, data, seal FROM events "
SELECT_NODES: Final = "SELECT name, data, seal FROM nodes "
SELECT_RESERVATIONS: Final = "SELECT name, data, seal FROM reservations "
SELECT_USAGE: Final = "SELECT project, user, data, seal FROM usage "


class Batch(Struct, kw_only=True):
    """Everything one transaction makes durable.

    ``jobs`` and ``attempts`` are the records as they are after ``facts``; each is written once,
    however many facts touched it. ``runs`` are new rows of the history. ``removed_nodes`` lose
    their rows. ``usage`` are changed rows of the usage ledger, ``reservations`` changed ones, by
    name; None: it is no more.
    """

    facts: list[f.AnyFact]
    jobs: list[Job]
    attempts: list[tuple[int, Attempt]]
    nodes: list[Node]
    blobs: dict[str, tuple[int, bytes]]
    next_job: int
    runs: list[Run] = []
    removed_nodes: frozenset[str] = frozenset()
    usage: list[LedgerRow] = []
    reservations: dict[str, Reservation | None] = {}


def job_row(job: Job) -> Row:
    """Return a job's row, without its spec."""
    spec = job.spec
    outcome = job.outcome
    return (
        job.id,
        spec.owner.uid,
        spec.owner.user,
        spec.queue,
        spec.name,
        job.state.value,
        job.submitted_s,
        job.eligible_s,
        job.started_s,
        job.ended_s,
        ",".join(job.holds),
        job.hold_reason,
        job.not_before_s,
        job.attempts,
        job.faults,
        job.requeues,
        job.requeue_reason,
        job.cpu_s,
        job.wall_s,
        job.gpu_s,
        None if outcome is None else outcome.kind.value,
        None if outcome is None else _encode(outcome),
        None if outcome is None or spec.array is not None else int(not outcome.succeeded),
        spec.client_key or None,
        None if job.sparse is None else _encode(job.sparse),
    )


_decode_sparse = msgspec.json.Decoder(SparseFields).decode
_JOB_STATES: Final = {state.value: state for state in JobState}


def job_from_row(row: Row, spec: JobSpec) -> Job:
    """Return a job from its row, without attempt."""
    # Checked by the seal of the row: what `job_row` has written.
    (number, _, _, _, _, state, submitted_s, eligible_s, started_s, ended_s, holds, hold_reason,
     not_before_s, attempts, faults, requeues, requeue_reason, cpu_s, wall_s, gpu_s, _,
     outcome_data, _, _, sparse_data, *_) = cast("tuple[Any, ...]", row)  # fmt: skip
    return Job(  # SQLite makes an object of each zero; 0.0 is one for all jobs
        id=number,
        spec=spec,
        state=_JOB_STATES[state],
        submitted_s=submitted_s,
        eligible_s=submitted_s if eligible_s == submitted_s else eligible_s,  # one object
        started_s=started_s,
        ended_s=ended_s,
        holds=tuple(map(HoldKind, holds.split(","))) if holds else (),
        hold_reason=hold_reason,
        not_before_s=not_before_s or 0.0,
        attempts=attempts,
        faults=faults,
        requeues=requeues,
        requeue_reason=requeue_reason,
        cpu_s=cpu_s or 0.0,
        wall_s=wall_s or 0.0,
        gpu_s=gpu_s or 0.0,
        outcome=None if outcome_data is None else _decode_outcome(outcome_data),
        sparse=None if sparse_data is None else _decode_sparse(sparse_data),
    )


def spec_blob(spec: JobSpec) -> bytes:
    """Return a spec as it is stored."""
    return _encode(spec)


def specs_made(batch: Batch) -> Iterator[tuple[int, bytes]]:
    """Yield the specs of elements of arrays that became jobs, as they are now, by number."""
    made = {
        element_number(fact.job, index)
        for fact in batch.facts
        if isinstance(fact, f.ElementsMade)
        for index in indices(fact.elements)
    }
    blobs: dict[int, bytes] = {}  # elements share their spec
    for job in batch.jobs if made else ():
        if job.id in made:
            key = id(job.spec)
            blob = blobs.get(key) or spec_blob(job.spec)
            blobs[key] = blob
            yield job.id, blob


#: Values that specs share, remembered by a reader that lives long.
MAX_SHARED: Final = 100_000
#: Specs that others may be copies of, remembered by it.
MAX_ALIKE: Final = 10_000


#: Fields whose values many specs have in common.
_SHARED_FIELDS: Final = (
    *("owner", "request", "workdir", "name", "queue", "environment_digest", "script_digest"),
    *("shell", "python", "walltime_s", "start_after_s", "deadline_s", "lease_s"),
)
_shared_fields = attrgetter(*_SHARED_FIELDS)


#: Between these marks and the next quote stands what nearly each spec has of its own.
_NAME: Final = b'"name":"'
_CLIENT_KEY: Final = b'"client_key":"'


class SpecReader:
    """Decodes specs so that equal parts of many share memory: 100,000 jobs have few requests.

    A spec that differs from an earlier one in name and client key only is a copy of that one.
    """

    def __init__(self) -> None:
        self._shared: dict[object, object] = {}
        self._alike: dict[tuple[bytes, bytes, bytes], JobSpec] = {}

    def read(self, data: bytes) -> JobSpec:
        """Return the spec of a row."""
        before, _, rest = data.partition(_NAME)
        name, _, rest = rest.partition(b'"')
        between, _, rest = rest.partition(_CLIENT_KEY)
        key, _, after = rest.partition(b'"')
        outline = (before, between, after)
        alike = self._alike.get(outline)
        if alike is None or b"\\" in name or b"\\" in key:
            return self._read_whole(data, outline)
        return structs.replace(alike, name=self._name(name), client_key=key.decode())

    def _name(self, data: bytes) -> str:
        found = self._shared.get(data)
        if found is None:
            self._bound()
            found = self._shared[data] = data.decode()
        return cast("str", found)

    def _bound(self) -> None:
        if len(self._shared) > MAX_SHARED:
            self._shared.clear()

    def _read_whole(self, data: bytes, outline: tuple[bytes, bytes, bytes]) -> JobSpec:
        spec = _decode_spec(data)
        self._bound()
        share = self._shared.setdefault
        for name, value in zip(_SHARED_FIELDS, _shared_fields(spec), strict=True):
            shared = share(value, value)
            if shared is not value:
                structs.force_setattr(spec, name, shared)
        before, between, after = outline
        if not after:
            return spec  # it has no client key
        other = spec_blob(structs.replace(spec, name="x", client_key="x"))
        if other == b"".join((before, _NAME, b'x"', between, _CLIENT_KEY, b'x"', after)):
            if len(self._alike) > MAX_ALIKE:
                self._alike.clear()
            self._alike[outline] = spec
        return spec


def read_job(row: Row, specs: SpecReader) -> Job:
    """Return the job of a row of `SELECT_JOBS`, without its attempt.

    Raises:
        DamagedRowError: the row, or that of its spec, is not what was written.
    """
    values, (job_seal, spec_seal, data) = row[: len(JOB_COLUMNS)], row[-3:]
    number = cast("int", row[0])
    spec = read_row(
        lambda: specs.read(cast("bytes", data)),
        intact=is_sealed((number, data), spec_seal, (0,)),
        kind="job",
        key=number,
        job=number,
    )
    return read_row(
        lambda: job_from_row(values, spec),
        intact=is_sealed(values, job_seal, _INTEGERS),
        kind="job",
        key=number,
        job=number,
    )


def read_attempt(row: Row) -> Attempt:
    """Return the attempt of a row of `SELECT_ATTEMPTS`.

    Raises:
        DamagedRowError: the row is not what was written.
    """
    *values, checksum = row
    job, number, _, data = values
    return read_row(
        lambda: _decode_attempt(cast("bytes", data)),
        intact=is_sealed(values, checksum),
        kind="attempt",
        key=f"{job!r}.{number!r}",
        job=cast("int", job),
    )


def read_node(row: Row) -> Node:
    """Return the node of a row of `SELECT_NODES`.

    Raises:
        DamagedRowError: the row is not what was written.
    """
    name, data, checksum = row
    return read_row(
        lambda: _decode_node(cast("bytes", data)),
        intact=is_sealed((name, data), checksum),
        kind="node",
        key=name,
    )


def read_usage(row: Row) -> LedgerRow:
    """Return the usage of a row of `SELECT_USAGE`.

    Raises:
        DamagedRowError: the row is not what was written.
    """
    *values, checksum = row
    project, user, data = values
    return read_row(
        lambda: _decode_usage(cast("bytes", data)),
        intact=is_sealed(values, checksum),
        kind="usage",
        key=f"{user!r} in project {project!r}",
    )


def read_reservation(row: Row) -> Reservation:
    """Return the reservation of a row of `SELECT_RESERVATIONS`.

    Raises:
        DamagedRowError: the row is not what was written.
    """
    name, data, checksum = row
    return read_row(
        lambda: _decode_reservation(cast("bytes", data)),
        intact=is_sealed((name, data), checksum),
        kind="reservation",
        key=name,
    )


def whole(
    read: Callable[[Row], T], found: Iterable[Row], damaged: list[Damaged] | None = None
) -> Iterator[T]:
    """Yield the contents of whole rows; ``damaged`` takes the others."""
    for row in found:
        try:
            yield read(row)
        except DamagedRowError as error:
            if damaged is not None:
                damaged.append(error.damaged)


def read_event(row: Row) -> f.AnyFact:
    """Return the fact of a row of `SELECT_EVENTS`.

    Raises:
        DamagedRowError: the row is not what was written.
    """
    *values, checksum = row
    return read_row(
        lambda: _fact_decoder.decode(cast("bytes", values[5])),
        intact=is_sealed(values, checksum),
        kind="event",
        key=values[0],
        job=cast("int", values[3] or 0),
    )


def attempt_row(job: int, attempt: Attempt) -> Row:
    """Return an attempt's row."""
    return (job, attempt.number, attempt.state.value, _encode(attempt))


def node_row(node: Node) -> Row:
    """Return a node's row."""
    return (node.name, _encode(node))


def reservation_row(reservation: Reservation) -> Row:
    """Return a reservation's row."""
    return (reservation.name, _encode(reservation))


def usage_row(usage: LedgerRow) -> Row:
    """Return the row of what a user has used in a project."""
    return (usage.project, usage.user, _encode(usage))


def event_row(seq: int, fact: f.AnyFact) -> Row:
    """Return the event row of a fact."""
    job = fact.job if isinstance(fact, f.JobFact) else None
    node = getattr(fact, "node", None)
    return (seq, fact.at_s, type(fact).__name__, job, node, _encode(fact))


#: What is removed of a job whose record is damaged; its events stay.
DISCARD: Final = (
    "DELETE FROM gpu_owners WHERE job = ?",
    "DELETE FROM attempts WHERE job = ?",
    "DELETE FROM specs WHERE job = ?",
    "DELETE FROM jobs WHERE id = ?",
)
OWN_GPU: Final = (
    "INSERT INTO gpu_owners (node, gpu, job, attempt, percent, memory_bytes) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
FREE_GPUS: Final = "DELETE FROM gpu_owners WHERE job = ? AND attempt = ?"
FREE_OLDER_GPUS: Final = "DELETE FROM gpu_owners WHERE job = ?"
KNOW_GPU: Final = "INSERT INTO gpus (node, gpu, memory_bytes) VALUES (?, ?, ?)"
FORGET_GPUS: Final = "DELETE FROM gpus WHERE node = ?"


def gpu_changes(
    facts: Iterable[f.AnyFact], attempts: Iterable[tuple[int, Attempt]] = ()
) -> list[tuple[str, Row]]:
    """Return the statements that keep the tables of GPUs, in the order of the facts.

    Args:
        facts: of one commit.
        attempts: that these have touched: of those without GPUs there is nothing to remove.
    """
    changes: list[tuple[str, Row]] = []
    without = {
        (job, attempt.number)
        for job, attempt in attempts
        if not any(p.share.gpu_indices or p.share.gpu_shares for p in attempt.parts.values())
    }
    for fact in facts:
        match fact:
            case f.AttemptEnded():
                if (fact.job, fact.attempt) not in without:
                    changes.append((FREE_GPUS, (fact.job, fact.attempt)))
            case f.AttemptAssigned():
                changes.extend((OWN_GPU, row) for row in _owner_rows(fact))
            case f.AttemptRecovered():
                changes.append((FREE_OLDER_GPUS, (fact.job,)))
                changes.extend((OWN_GPU, row) for row in _owner_rows(fact))
            case f.NodeRegistered():
                changes.append((FORGET_GPUS, (fact.node,)))
                changes.extend(
                    (KNOW_GPU, (fact.node, gpu.index, gpu.memory_bytes))
                    for gpu in fact.inventory.gpus
                    if gpu.memory_bytes
                )
            case f.NodeRemoved():
                changes.append((FORGET_GPUS, (fact.node,)))
            case _:
                pass
    return changes


def _owner_rows(fact: f.AttemptAssigned | f.AttemptRecovered) -> list[Row]:
    return [
        (share.node, held.index, fact.job, fact.attempt, held.percent, held.memory_bytes)
        for share in fact.allocation
        for held in share.gpus_held
    ]
