"""What the end of the parts means: the one outcome of the attempt, usage, and what follows."""

import pytest

from gsched.model.job import ExitRecord, Outcome
from gsched.model.resources import Share, Usage
from gsched.model.states import AttemptState, OutcomeKind, PartState, StopReason
from gschedd.core.attempts.settle import attempt_outcome, total_usage
from gschedd.core.state.records import Attempt, Part

K = OutcomeKind


def record(kind: OutcomeKind = K.EXITED, **fields: object) -> ExitRecord:
    """Return how a part ended; code 0 unless said otherwise."""
    if kind is K.EXITED:
        fields.setdefault("exit_code", 0)
    return ExitRecord(job=1, attempt=1, kind=kind, **fields)  # type: ignore[arg-type] # as given


def attempt(
    *records: ExitRecord,
    stop: StopReason | None = None,
    by: str = "",
    message: str = "",
    usages: tuple[Usage, ...] = (),
) -> Attempt:
    """Return an attempt whose parts on n1, n2, … ended like this."""
    parts = {}
    for number, each in enumerate(records, start=1):
        name = f"n{number}"
        usage = usages[number - 1] if usages else None
        parts[name] = Part(
            share=Share(node=name, cpus=1), state=PartState.ENDED, record=each, usage=usage
        )
    return Attempt(
        number=1,
        state=AttemptState.EXITING,
        assigned_s=0.0,
        parts=parts,
        stop=stop,
        stopped_by=by,
        stop_message=message,
    )


STOPPED = {"signal": 15}


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (attempt(record()), Outcome(kind=K.EXITED, exit_code=0)),
        (attempt(record(), record()), Outcome(kind=K.EXITED, exit_code=0)),
        (
            attempt(record(exit_code=3, rank=2, message="m")),
            Outcome(kind=K.EXITED, exit_code=3, node="n1", rank=2, message="m"),
        ),
        (
            attempt(record(K.SIGNALLED, signal=11)),
            Outcome(kind=K.SIGNALLED, signal=11, node="n1"),
        ),
        # the first failure by time, not by node; what has no time of failure counts by its end
        (
            attempt(record(exit_code=1, failed_s=9.0), record(exit_code=2, failed_s=8.0)),
            Outcome(kind=K.EXITED, exit_code=2, node="n2"),
        ),
        (
            attempt(record(exit_code=1, ended_s=7.0), record(exit_code=2, failed_s=8.0, ended_s=9)),
            Outcome(kind=K.EXITED, exit_code=1, node="n1"),
        ),
        (
            attempt(record(exit_code=1, failed_s=8.0), record(exit_code=2, failed_s=8.0)),
            Outcome(kind=K.EXITED, exit_code=1, node="n1"),
        ),
        # a peer that was stopped is not the failure
        (
            attempt(
                record(K.SIGNALLED, signal=15, failed_s=1.0, stop_reason=StopReason.PEER_FAILED),
                record(exit_code=5, failed_s=2.0),
                stop=StopReason.PEER_FAILED,
            ),
            Outcome(kind=K.EXITED, exit_code=5, node="n2"),
        ),
        (
            attempt(
                record(K.SIGNALLED, signal=15, stop_reason=StopReason.PEER_FAILED),
                stop=StopReason.PEER_FAILED,
                by="gsched",
            ),
            Outcome(kind=K.CANCELLED, signal=15, message="stopped by gsched"),
        ),
        (
            attempt(record(K.SIGNALLED, signal=15, stop_reason=StopReason.WALLTIME), record()),
            Outcome(kind=K.WALLTIME, signal=15, node="n1", message="exceeded its walltime limit"),
        ),
        (
            attempt(
                record(K.SIGNALLED, signal=9, stop_reason=StopReason.DELETE),
                stop=StopReason.DELETE,
                by="alice",
                message="why not",
            ),
            Outcome(kind=K.CANCELLED, signal=9, message="cancelled by alice: why not"),
        ),
        (
            attempt(
                record(K.SIGNALLED, signal=15, stop_reason=StopReason.RERUN),
                stop=StopReason.RERUN,
                by="bob",
            ),
            Outcome(kind=K.RERUN, signal=15, message="requeued by bob"),
        ),
        # asked to end, it ended by itself before the request came
        (attempt(record(), stop=StopReason.DELETE), Outcome(kind=K.EXITED, exit_code=0)),
        (
            attempt(record(exit_code=4), stop=StopReason.RERUN),
            Outcome(kind=K.EXITED, exit_code=4, node="n1"),
        ),
        # the walltime of one part and a delete: the delete is what was requested
        (
            attempt(
                record(K.SIGNALLED, signal=15, stop_reason=StopReason.WALLTIME),
                stop=StopReason.DELETE,
            ),
            Outcome(kind=K.CANCELLED, signal=15, message="cancelled"),
        ),
        (
            attempt(record(K.SIGNALLED, signal=15, stop_reason=StopReason.NODE_STOP)),
            Outcome(kind=K.CANCELLED, signal=15, message="stopped"),
        ),
        (attempt(record(K.OOM, signal=9)), Outcome(kind=K.OOM, signal=9, node="n1")),
        (
            attempt(record(), record(K.NODE_LOST, message="gone")),
            Outcome(kind=K.NODE_LOST, node="n2", message="gone"),
        ),
    ],
)
def test_an_attempt_has_one_outcome(given: Attempt, outcome: Outcome) -> None:
    """The first failure with its node and rank, or what was requested."""
    assert attempt_outcome(given) == outcome


@pytest.mark.parametrize(
    ("outcome", "pbs", "shell", "good"),
    [
        (Outcome(kind=K.EXITED, exit_code=0), 0, 0, True),
        (Outcome(kind=K.EXITED, exit_code=7), 7, 7, False),
        (Outcome(kind=K.SIGNALLED, signal=9), 265, 137, False),
        (Outcome(kind=K.CANCELLED, signal=15), 271, 143, False),
        (Outcome(kind=K.CANCELLED), 271, 143, False),
        (Outcome(kind=K.WALLTIME, signal=15), -11, 143, False),
        (Outcome(kind=K.OOM, signal=9), -10, 137, False),
        (Outcome(kind=K.LAUNCH_FAILED), -1, 126, False),
        (Outcome(kind=K.NODE_LOST), -4, 143, False),
        (Outcome(kind=K.SUPERVISOR_LOST), -4, 143, False),
    ],
)
def test_an_outcome_has_torques_number_and_the_shells(
    outcome: Outcome, pbs: int, shell: int, *, good: bool
) -> None:
    """256 + n for a signal, negative for limits; 128 + n for a shell."""
    assert (outcome.pbs_status, outcome.shell_status, outcome.succeeded) == (pbs, shell, good)


def test_use_is_added_up_over_nodes() -> None:
    """Time is that of the longest part, means are weighted by samples."""
    usages = (
        Usage(
            wall_s=10,
            cpu_s=5,
            cpu_peak_cores=2,
            memory_peak_bytes=1,
            gpu_util_mean_percent=90,
            gpu_memory_mean_bytes=4,
            samples=3,
        ),
        Usage(
            wall_s=20,
            cpu_s=7,
            cpu_peak_cores=1,
            memory_peak_bytes=2,
            gpu_util_mean_percent=10,
            gpu_memory_mean_bytes=5,
            samples=1,
        ),
    )
    total = total_usage(attempt(record(), record(), usages=usages))

    assert (total.wall_s, total.cpu_s, total.memory_peak_bytes) == (20, 12, 3)
    assert (total.cpu_peak_cores, total.gpu_memory_mean_bytes) == (3, 9)
    assert (total.gpu_util_mean_percent, total.samples) == (70, 4)
    assert total_usage(attempt(record(), usages=usages[:1])) is usages[0]
    assert total_usage(attempt(record(), record())) == Usage()
