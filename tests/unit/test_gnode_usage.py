"""What an attempt used, from its samples and its exit record together."""

import pytest

from gnode.core.table import NodeAttempt
from gnode.core.task import AttemptKey
from gsched.model.job import ExitRecord
from gsched.model.resources import Usage
from gsched.model.states import OutcomeKind


def ended(sampled: Usage | None, **record: float) -> NodeAttempt:
    return NodeAttempt(
        key=AttemptKey(1, 1),
        usage=sampled,
        record=ExitRecord(job=1, attempt=1, kind=OutcomeKind.EXITED, exit_code=0, **record),  # type: ignore[arg-type] # figures only
    )


@pytest.mark.parametrize(
    ("sampled", "peak_cores", "end_cores"),
    [
        # Too short to be sampled: the mean of all is all that is known.
        (None, 1.5, 1.5),
        # 25 s of CPU time in the last 10.
        (Usage(wall_s=10.0, cpu_s=5.0, cpu_peak_cores=1.0, samples=1), 2.5, 2.5),
        # The last half second says nothing.
        (Usage(wall_s=19.5, cpu_s=20.0, cpu_peak_cores=2.0, samples=1), 2.0, 1.5),
        # A record that knows less than the samples.
        (Usage(wall_s=10.0, cpu_s=40.0, cpu_peak_cores=4.0, samples=1), 4.0, 0.0),
    ],
)
def test_the_busiest_time_may_be_after_the_last_sample(
    sampled: Usage | None, peak_cores: float, end_cores: float
) -> None:
    attempt = ended(sampled, cpu_s=30.0, wall_s=20.0)

    assert attempt.record is not None
    assert attempt.total_usage().cpu_peak_cores == peak_cores
    assert attempt.busy_cores_at_end(attempt.record) == end_cores


def test_a_run_too_short_for_a_sample_has_its_records_figures() -> None:
    attempt = ended(None, cpu_s=0.5, wall_s=0.25, memory_peak_bytes=7)

    assert attempt.total_usage() == Usage(
        wall_s=0.25, cpu_s=0.5, cpu_peak_cores=2.0, memory_peak_bytes=7
    )


def test_what_never_ran_used_nothing() -> None:
    attempt = ended(None, cpu_s=0.0, wall_s=0.0)

    assert attempt.total_usage() == Usage()
    assert attempt.record is not None
    assert attempt.busy_cores_at_end(attempt.record) == 0
