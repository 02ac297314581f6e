"""Between records and rows: every kind of fact, and jobs with everything in them."""

from typing import get_args

import pytest
from msgspec import structs

from gsched.model.arrays import Span
from gsched.model.job import ExitRecord, Outcome
from gsched.model.machine import Machine
from gsched.model.reservation import Reservation
from gsched.model.resources import GpuShare, Load, Share, Usage
from gsched.model.states import (
    AttemptState,
    HoldKind,
    JobState,
    OutcomeKind,
    PartState,
    PowerState,
    ShareClass,
    StopReason,
)
from gsched.model.training import Batching
from gsched.model.window import NodeWindow
from gschedd.core.state import facts as f
from gschedd.core.state.records import (
    Attempt,
    Job,
    MigrationProgress,
    MigrationTarget,
    Part,
    Saved,
    SparseFields,
)
from gschedd.core.views.reasons import describe
from gschedd.models.steptimes import Steps
from gschedd.plan.moments import moment
from gschedd.store import rows
from gschedd.store.seals import DamagedRowError, sealed
from tests.support.books import spec_of
from tests.support.world import inventory

RECORD = ExitRecord(job=1, attempt=2, kind=OutcomeKind.EXITED, exit_code=3, rank=1)
OUTCOME = Outcome(kind=OutcomeKind.EXITED, exit_code=3, node="n1", rank=1)
SHARE = Share(node="n1", cpus=2, gpu_indices=(0, 1))
ATTEMPT = {"at_s": 5.0, "job": 1, "attempt": 2}

#: One of each kind, with what a history says about it.
TIMES = "from 1970-01-01 00:00:10 UTC to 1970-01-01 00:00:20 UTC"
RESERVED = Reservation(
    name="r",
    from_s=10.0,
    to_s=20.0,
    shares=(Share(node="n1", cpus=2, exclusive=True),),
    nodes=1,
    users=("carol",),
    by="bob",
)
EXAMPLES: dict[type[f.Fact], tuple[f.AnyFact, str]] = {
    type(fact): (fact, text)
    for fact, text in (
        (
            f.JobSubmitted(at_s=5.0, job=1, spec=spec_of(), state=JobState.QUEUED),
            "submitted by alice to queue batch",
        ),
        (
            f.JobDiscarded(at_s=5.0, job=1, by="root"),
            "given up by root: its record in the database was damaged",
        ),
        (
            f.ElementsMade(at_s=5.0, job=1, elements=(Span(0, 99, 3), Span(500, 500))),
            "elements 0-99:3,500 became jobs",
        ),
        (
            f.ElementsDropped(at_s=5.0, job=1, elements=(Span(0, 9),), by="alice"),
            "elements 0-9 cancelled by alice",
        ),
        (
            f.ElementsHeld(at_s=5.0, job=1, elements=(Span(5, 5),), by="alice"),
            "elements 5 held by alice",
        ),
        (
            f.ElementsReleased(at_s=5.0, job=1, elements=(Span(5, 5),), by="alice"),
            "elements 5 released by alice",
        ),
        (
            f.JobHeld(at_s=5.0, job=1, holds=(HoldKind.USER,), by="bob", reason="why"),
            "held (user) by bob: why",
        ),
        (
            f.JobReleased(at_s=5.0, job=1, holds=(HoldKind.USER, HoldKind.OPERATOR), by="bob"),
            "released (user, operator) by bob",
        ),
        (f.JobDue(at_s=5.0, job=1), "start time reached"),
        (f.JobDue(at_s=5.0, job=1, retry=True), "retry"),
        (
            f.JobAltered(at_s=5.0, job=1, spec=spec_of(), by="bob", changed=("name", "queue")),
            "altered by bob: name, queue",
        ),
        (f.JobSignalled(**ATTEMPT, signal=10, by="bob"), "signal 10 (USR1) sent by bob"),  # type: ignore[arg-type] # common fields
        (
            f.AttemptAssigned(
                **ATTEMPT,  # type: ignore[arg-type] # common fields
                allocation=(SHARE, Share(node="n2", cpus=1)),
                active=("n1",),
                master_port=0,
                why="next",
            ),
            "attempt 2 assigned to n1 (2 CPUs, GPUs 0,1), n2 (1 CPU): next",
        ),
        (
            f.AttemptRecovered(
                **ATTEMPT,  # type: ignore[arg-type] # common fields
                allocation=(SHARE,),
                active=("n1",),
                assigned_s=4.0,
                token="ab",
                started_s={"n1": 4.5},
            ),
            "attempt 2 on n1 (2 CPUs, GPUs 0,1) recovered: its nodes knew it",
        ),
        (
            f.MigrationRequested(**ATTEMPT, allocation=(SHARE,), why="makes room", by="gsched"),  # type: ignore[arg-type] # common fields
            "migration to n1 (2 CPUs, GPUs 0,1) requested by gsched: makes room",
        ),
        (
            f.CheckpointTaken(
                at_s=5.0,
                job=1,
                attempt=2,
                request=1,
                step=30,
                work_done=9.0,
                size_bytes=2048,
                wall_s=0.25,
            ),
            "checkpoint of step 30 (2kb) saved in 0.2 s",
        ),
        (
            f.BatchingChosen(**ATTEMPT, batching=Batching(per_gpu=64, accumulation=1)),  # type: ignore[arg-type] # common fields
            "attempt 2: 64 samples per GPU, accumulated over 2 passes",
        ),
        (f.MigrationAbandoned(**ATTEMPT, reason="no room"), "migration abandoned: no room"),  # type: ignore[arg-type] # common fields
        (
            f.MigrationPrepared(at_s=5.0, job=1, ready=True),
            "the next attempt is prepared",
        ),
        (f.TargetLost(at_s=5.0, job=1, reason="n1 is gone"), "returned to its queue: n1 is gone"),
        (f.TrainingResumed(**ATTEMPT, step=30), "attempt 2 resumed at step 30"),  # type: ignore[arg-type] # common fields
        (
            f.StartupMeasured(
                **ATTEMPT,  # type: ignore[arg-type] # common fields
                startup_s=4.26,
                by_step=True,
                kind="k",
                program="p",
                owner_uid=1,
            ),
            "attempt 2 took 4.3 s until its first step",
        ),
        (
            f.StepsMeasured(
                **ATTEMPT,  # type: ignore[arg-type] # common fields
                kind="k",
                steps=Steps(counts=(2, 1), gpu_type="a100", samples=64.0, step_s=0.0312),
            ),
            "attempt 2: a step takes 0.0312 s on 2+1 a100 GPUs",
        ),
        (
            f.MigrationMeasured(
                **ATTEMPT,  # type: ignore[arg-type] # common fields
                cost_s=6.08,
                kind="k",
                program="p",
                owner_uid=1,
            ),
            "the migration to attempt 2 took 6.1 s without progress",
        ),
        (
            f.DeadlineJudged(at_s=5.0, job=1, meets=False, end_s=60.0, gpus=2, why="full"),
            "expected to miss its deadline on 2 GPUs, done by 1970-01-01 00:01:00 UTC: full",
        ),
        (
            f.GpusIdleWarned(
                **ATTEMPT,  # type: ignore[arg-type] # common fields
                gpus={"n1": (0, 2), "n2": (1,)},
                of=4,
                since_s=60.0,
                action="hold",
                acts_s=7260.0,
            ),
            (
                "3 of 4 GPUs idle since 1970-01-01 00:01:00 UTC: n1 (GPU 0,2); n2 (GPU 1); "
                "the job is held at 1970-01-01 02:01:00 UTC if they stay idle"
            ),
        ),
        (f.IdleWarningEnded(**ATTEMPT), "attempt 2: the warning of idle GPUs has ended"),  # type: ignore[arg-type] # common fields
        (
            f.IdleGpusReclaimed(**ATTEMPT, action="requeue", gpus=2.0, planned_end_s=9.0),  # type: ignore[arg-type] # common fields
            "idle GPUs reclaimed: the job is requeued",
        ),
        (
            f.GpusIdled(**ATTEMPT, idle_s=7200.0, action="hold", returned_s=3600.0),  # type: ignore[arg-type] # common fields
            "attempt 2: GPUs idle for 2.0 GPU-hours, 1.0 GPU-hours returned",
        ),
        (
            f.JobPreempted(**ATTEMPT, way="requeue", why="for job 7 of bob", by="gsched"),  # type: ignore[arg-type] # common fields
            "preempted by gsched (requeue): for job 7 of bob",
        ),
        (
            f.RoomClaimed(at_s=5.0, job=1, allocation=(), jobs=(3, 4), until_s=9.0),
            "starts when jobs 3, 4 have given way",
        ),
        (f.ClaimEnded(at_s=5.0, job=1, reason="n1 takes no work"), "waits again: n1 takes no work"),
        (
            f.NodeWindowAdded(
                at_s=5.0,
                node="n1",
                window=NodeWindow(number=3, from_s=0.0, to_s=3600.0, reason="fans", by="ops"),
            ),
            f"maintenance 3 from {moment(0.0)} to {moment(3600.0)} ordered by ops: fans",
        ),
        (
            f.NodePowerChanged(
                at_s=5.0, node="n1", power=PowerState.POWERING_DOWN, reason="idle", due_s=9.0
            ),
            "powering down: idle",
        ),
        (f.NodeWindowBegun(at_s=5.0, node="n1", number=3), "maintenance 3 has begun"),
        (f.NodeWindowEnded(at_s=5.0, node="n1", number=3), "maintenance 3 is over"),
        (
            f.PartOpened(**ATTEMPT, node="n2", boot_id="b"),  # type: ignore[arg-type] # common fields
            "attempt 2: its programs start tasks on n2",
        ),
        (
            f.PartStarted(**ATTEMPT, node="n1", pid=7, started_s=4.0),  # type: ignore[arg-type] # common fields
            "attempt 2 started on n1, pid 7",
        ),
        (
            f.StopRequested(
                **ATTEMPT,  # type: ignore[arg-type] # common fields
                reason=StopReason.PEER_FAILED,
                grace_s=1.0,
                by="gsched",
                message="m",
            ),
            "stop requested by gsched (peer failed): m",
        ),
        (
            f.PartEnded(**ATTEMPT, node="n1", record=RECORD, usage=Usage(wall_s=1.0)),  # type: ignore[arg-type] # common fields
            "attempt 2 ended on n1: rank 1 failed with exit code 3",
        ),
        (
            f.AttemptEnded(**ATTEMPT, outcome=OUTCOME, usage=Usage(wall_s=61.0), ended_s=4.0),  # type: ignore[arg-type] # common fields
            "attempt 2 ended after 00:01:01: rank 1 on n1 failed with exit code 3",
        ),
        (f.JobRequeued(at_s=5.0, job=1, reason="lost", faults=1), "requeued: lost"),
        (
            f.JobEnded(at_s=5.0, job=1, outcome=OUTCOME, ended_s=4.0),
            "done: rank 1 on n1 failed with exit code 3",
        ),
        (
            f.NodeRegistered(
                at_s=5.0,
                node="n1",
                inventory=inventory(cpus=3, gpus=1),
                boot_id="b",
                incarnation="i",
                address="a",
                version="v",
                load=Load(),
            ),
            "registered with 3 CPUs, 1 GPUs",
        ),
        (
            f.NodeProblemChanged(at_s=5.0, node="n1", problem="full"),
            "takes no new jobs: full",
        ),
        (f.NodeProblemChanged(at_s=5.0, node="n1"), "takes new jobs again"),
        (f.NodeDisconnected(at_s=5.0, node="n1", reason="gone"), "disconnected: gone"),
        (f.NodeDrained(at_s=5.0, node="n1", reason="kernel", by="bob"), "drained by bob: kernel"),
        (f.NodeResumed(at_s=5.0, node="n1", by="bob"), "resumed by bob"),
        (f.NodeRemoved(at_s=5.0, node="n1", by="bob"), "removed by bob"),
        (
            f.NodeReplaced(
                at_s=5.0, node="n1", identity="0123456789", machine=Machine(product="p"), by="bob"
            ),
            "replaced by bob: its identity begins with 01234567 now",
        ),
        (
            f.ReservationCreated(at_s=5.0, reservation=RESERVED),
            f"reservation r {TIMES} on n1 created by bob",
        ),
        (
            f.ReservationChanged(at_s=5.0, reservation=RESERVED, why="altered", by="bob"),
            f"reservation r {TIMES} on n1: altered by bob",
        ),
        (f.ReservationBegun(at_s=5.0, name="r"), "reservation r has begun"),
        (
            f.ReservationEnded(at_s=5.0, name="r", why="its time is over"),
            "reservation r is over: its time is over",
        ),
        (
            f.NodeFaulted(at_s=5.0, node="n1", faults=2, message="fork"),
            "consecutive failed starts: 2 fork",
        ),
        (
            f.NodeProbeRequested(at_s=5.0, node="n1", request=3, due_s=125.0),
            "probe 3 requested",
        ),
        (
            f.NodeProbed(at_s=5.0, node="n1", passed=False, message="cannot fork", due_s=35.0),
            "probe failed: cannot fork",
        ),
    )
}


def test_an_attempt_that_was_stopped_to_migrate_has_not_failed() -> None:
    record = structs.replace(RECORD, exit_code=143, rank=None, stop_reason=StopReason.MOVE)
    fact = f.PartEnded(**ATTEMPT, node="n1", record=record, usage=Usage())  # type: ignore[arg-type] # common fields

    assert describe(fact) == "attempt 2 ended on n1: stopped for the migration"


@pytest.mark.parametrize("kind", get_args(f.AnyFact))
def test_every_fact_is_kept_and_told(kind: type[f.Fact]) -> None:
    """It reads back as it was, and a history has words for it."""
    fact, text = EXAMPLES[kind]

    row = rows.event_row(7, fact)
    assert row[:3] == (7, 5.0, kind.__name__)
    assert row[3] == getattr(fact, "job", None)
    assert row[4] == getattr(fact, "node", None)
    assert rows.read_event(sealed(row)) == fact
    with pytest.raises(DamagedRowError, match="checksum"):
        rows.read_event((*row, None))
    assert describe(fact) == text


def test_a_fact_of_another_version_is_not_guessed_at() -> None:
    """An unknown kind is an error, not something else."""
    data = b'{"type":"JobPainted","at_s":1.0,"job":1}'
    with pytest.raises(DamagedRowError, match="event 7: it cannot be decoded"):
        rows.read_event(sealed((7, 1.0, "JobPainted", 1, None, data)))


def test_a_job_with_everything_in_it_reads_back() -> None:
    """Every column that is not in the spec."""
    job = Job(
        id=7,
        spec=spec_of(client_key="k"),
        state=JobState.DONE,
        submitted_s=1.0,
        eligible_s=2.0,
        holds=(HoldKind.OPERATOR, HoldKind.USER),
        hold_reason="why",
        not_before_s=3.0,
        attempts=4,
        faults=5,
        requeues=6,
        requeue_reason="again",
        started_s=7.0,
        ended_s=8.0,
        cpu_s=9.0,
        wall_s=10.0,
        gpu_s=11.0,
        outcome=OUTCOME,
        sparse=SparseFields(
            move=MigrationTarget(allocation=(SHARE,), why="room", by="gsched", requested_s=3.0),
            moves=2,
            moves_lost=1,
            moves_requested=3,
            migration=MigrationProgress(requested_s=1.0, saved_s=2.0),
            saved=Saved(at_s=2.0, step=30, path="/c", size_bytes=7, wall_s=0.5),
            work_done=12.5,
            guaranteed=True,
            meets=False,
            expected_end_s=99.0,
        ),
    )
    row = rows.job_row(job)

    assert len(row) == len(rows.JOB_COLUMNS)
    assert rows.job_from_row(row, job.spec) == job
    named = dict(zip(rows.JOB_COLUMNS, row, strict=True))
    assert (named["failed"], named["outcome"], named["client_key"]) == (1, "exited", "k")
    plain = structs.replace(job, outcome=None, holds=(), spec=spec_of())
    for field in structs.fields(SparseFields):
        setattr(plain, field.name, field.default)
    assert plain.sparse is None
    assert rows.job_row(plain)[-1] is None
    named = dict(zip(rows.JOB_COLUMNS, rows.job_row(plain), strict=True))
    assert (named["failed"], named["outcome"], named["client_key"]) == (None, None, None)
    assert rows.job_from_row(rows.job_row(plain), plain.spec) == plain


def test_gpus_are_owned_from_assignment_to_the_end() -> None:
    """Only these three facts change an owner; two others say which GPUs there are."""
    changes = rows.gpu_changes([fact for fact, _ in EXAMPLES.values()])

    assert changes == [
        (rows.OWN_GPU, ("n1", 0, 1, 2, 100, 0)),
        (rows.OWN_GPU, ("n1", 1, 1, 2, 100, 0)),
        (rows.FREE_OLDER_GPUS, (1,)),
        (rows.OWN_GPU, ("n1", 0, 1, 2, 100, 0)),
        (rows.OWN_GPU, ("n1", 1, 1, 2, 100, 0)),
        (rows.FREE_GPUS, (1, 2)),
        (rows.FORGET_GPUS, ("n1",)),  # the node registers, with GPUs of unknown memory
        (rows.FORGET_GPUS, ("n1",)),  # it is removed
    ]


@pytest.mark.parametrize("indices", [(), (0,)])
def test_an_attempt_without_gpus_has_none_to_free(indices: tuple[int, ...]) -> None:
    share = Share(node="n1", cpus=1, gpu_indices=indices)
    attempt = Attempt(
        number=2,
        state=AttemptState.ENDED,
        assigned_s=1.0,
        master_port=0,
        parts={"n1": Part(share=share, state=PartState.ENDED)},
    )
    ended = f.AttemptEnded(
        at_s=1.0,
        job=1,
        attempt=2,
        outcome=Outcome(kind=OutcomeKind.EXITED, exit_code=0),
        usage=Usage(),
        ended_s=1.0,
    )

    freed = [(rows.FREE_GPUS, (1, 2))]
    assert rows.gpu_changes([ended], [(1, attempt)]) == (freed if indices else [])
    assert rows.gpu_changes([ended]) == freed  # nothing is known of it


def test_shares_of_gpus_are_owned_with_their_size() -> None:
    """As the attempt says them; of the node's GPUs the memory is known."""
    part = GpuShare(index=2, percent=40, memory_bytes=2**34, share_class=ShareClass.LOW)
    fact = f.AttemptAssigned(
        at_s=1.0,
        job=7,
        attempt=3,
        allocation=(Share(node="n1", cpus=1, gpu_shares=(part,)),),
        active=("n1",),
        master_port=0,
        why="",
    )

    assert rows.gpu_changes([fact]) == [(rows.OWN_GPU, ("n1", 2, 7, 3, 40, 2**34))]


def test_specs_that_differ_in_name_and_key_alone_are_read_as_what_they_are() -> None:
    names = ("train", 'a "quoted" name', 'x","client_key":"y', "back\\slash", "größe", "", "train")
    keys = ("", "0" * 32, 'k"', "k\\", '","name":"z', "größe", "1" * 32)
    specs = [
        structs.replace(spec_of(), name=name, client_key=key, account=account)
        for account in ("", "p", '"name":"p"')
        for name in names
        for key in keys
    ]
    reader = rows.SpecReader()
    blobs = [rows.spec_blob(spec) for spec in specs]
    assert [reader.read(blob) for blob in [*blobs, *reversed(blobs)]] == [*specs, *reversed(specs)]


def test_specs_that_are_alike_share_their_parts() -> None:
    reader = rows.SpecReader()
    first, second, other = (
        reader.read(rows.spec_blob(structs.replace(spec_of(), name=name, client_key=key)))
        for name, key in (("a", "k1"), ("b", "k2"), ("a", "k3"))
    )
    assert second.owner is first.owner
    assert second.request is first.request
    assert second.arguments is first.arguments, "decoded once"
    assert (second.name, second.client_key) == ("b", "k2")
    assert other.client_key == "k3"


def test_a_reader_that_lives_long_remembers_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_SHARED", 50)
    monkeypatch.setattr(rows, "MAX_ALIKE", 5)
    reader = rows.SpecReader()
    for number in range(200):
        spec = structs.replace(
            spec_of(), name=f"n{number}", client_key=f"k{number}", account=f"p{min(number, 20)}"
        )
        assert reader.read(rows.spec_blob(spec)) == spec
    assert len(vars(reader)["_shared"]) <= 70
    assert len(vars(reader)["_alike"]) <= 6


def test_a_spec_that_another_version_has_written_is_decoded_as_a_whole() -> None:
    reader = rows.SpecReader()
    for number in range(3):
        spec = structs.replace(spec_of(), name="n", client_key=f"k{number}")
        inside = f'"owner":{{"name":"other{number}",'.encode()
        assert reader.read(rows.spec_blob(spec).replace(b'"owner":{', inside)) == spec
