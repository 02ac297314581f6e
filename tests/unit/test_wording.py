"""How a job or an attempt ended, in the words that everybody is shown."""

import pytest

from gsched.model.job import ExitRecord, Outcome
from gsched.model.states import OutcomeKind
from gsched.model.wording import (
    OVER_WALLTIME,
    binding_words,
    counted,
    outcome_word,
    outcome_words,
)
from gsched.protocol.job_rows import OutcomeRow

K = OutcomeKind


@pytest.mark.parametrize(
    ("outcome", "words", "word"),
    [
        (Outcome(kind=K.EXITED, exit_code=0, node="n1"), "finished with exit code 0", "ok"),
        (Outcome(kind=K.EXITED, exit_code=2), "failed with exit code 2", "exit 2"),
        (
            Outcome(kind=K.EXITED, exit_code=2, node="n1", message="no CUDA device"),
            "failed with exit code 2 on n1: no CUDA device",
            "exit 2",
        ),
        (
            Outcome(
                kind=K.EXITED, exit_code=1, node="n1", rank=0, message="rank 0: exited with code 1"
            ),
            "rank 0 on n1 failed with exit code 1",
            "exit 1, rank 0 on n1",
        ),
        (
            Outcome(kind=K.EXITED, exit_code=1, node="n1", rank=3, message="rank 3: ValueError: x"),
            "rank 3 on n1 failed with exit code 1: ValueError: x",
            "exit 1, rank 3 on n1",
        ),
        (
            Outcome(kind=K.SIGNALLED, signal=11, node="n1"),
            "killed by signal 11 (SEGV) on n1",
            "signal SEGV",
        ),
        (
            Outcome(kind=K.SIGNALLED, signal=9, node="n1", rank=2),
            "rank 2 on n1 was killed by signal 9 (KILL)",
            "signal KILL, rank 2 on n1",
        ),
        (Outcome(kind=K.OOM, node="n1", message="9gb"), "killed: out of memory on n1: 9gb", "oom"),
        (Outcome(kind=K.CANCELLED), "cancelled", "cancelled"),
        (
            Outcome(kind=K.CANCELLED, signal=15, message="cancelled by bob: wrong data"),
            "cancelled by bob: wrong data",
            "cancelled",
        ),
        (
            Outcome(kind=K.LAUNCH_FAILED, node="n1", message="no dir"),
            "could not be started on n1: no dir",
            "launch failed",
        ),
        (Outcome(kind=K.NODE_LOST, node="n1"), "node n1 was lost", "node lost"),
        (
            Outcome(kind=K.SUPERVISOR_LOST, node="n1"),
            "its supervisor on n1 was lost",
            "supervisor lost",
        ),
        (Outcome(kind=K.RERUN), "requeued", "rerun"),
        (
            Outcome(kind=K.MOVED, message="migrated by root (gmigrate)"),
            "migrated by root (gmigrate)",
            "moved",
        ),
    ],
)
def test_an_outcome_in_words(outcome: Outcome, words: str, word: str) -> None:
    """Which rank, where, how, and what the message says beyond that."""
    assert outcome_words(outcome) == words
    assert outcome_word(outcome) == word


@pytest.mark.parametrize(
    ("signal", "grace_s", "words"),
    [
        (
            9,
            30.0,
            f"terminated: {OVER_WALLTIME} of 00:00:03 (SIGKILL after the 30 s grace period)",
        ),
        (9, 0.0, "terminated: exceeded its walltime limit of 00:00:03 (SIGKILL)"),
        (15, 30.0, "terminated: exceeded its walltime limit of 00:00:03 (SIGTERM)"),
        (None, None, "terminated: exceeded its walltime limit of 00:00:03"),
    ],
)
@pytest.mark.parametrize("message", ["", "reached its walltime", "exceeded its walltime limit"])
def test_a_job_over_its_walltime_says_the_limit(
    signal: int | None, grace_s: float | None, words: str, message: str
) -> None:
    """Also from rows of earlier versions; the message says nothing more."""
    row = OutcomeRow(
        kind="walltime", exit_status=-11, shell_status=137, signal=signal, node="n1",
        message=message,
    )  # fmt: skip

    assert outcome_words(row, walltime_s=3.0, grace_s=grace_s) == words


def test_a_part_of_an_attempt_has_the_same_words() -> None:
    """Where its node is not said, they do without."""
    record = ExitRecord(job=1, attempt=1, kind=K.EXITED, exit_code=3, rank=1)

    assert outcome_words(record.outcome()) == "rank 1 failed with exit code 3"
    assert outcome_words(record.outcome("n2")) == "rank 1 on n2 failed with exit code 3"


def test_an_outcome_of_a_newer_head_has_words_too() -> None:
    """Commands may be older than the head."""
    row = OutcomeRow(kind="taken_away", exit_status=1, shell_status=1, node="n1")

    assert outcome_words(row) == "taken away on n1"


def test_counts_agree_with_their_noun() -> None:
    """Of none there are several, as in English."""
    assert [counted(count, "job") for count in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
    assert counted(2, "index", "indices") == "2 indices"


def test_the_binding_of_jobs_to_cpus_is_told_with_its_meaning_and_its_reason() -> None:
    """A method of a newer node is shown as it stands; one that does not tell gives nothing."""
    assert binding_words("none: the node offers 4 CPUs") == (
        "none: jobs run on all CPUs of the node, and a job that uses more CPUs than it requested "
        "slows the others down; reason: the node offers 4 CPUs"
    )
    assert binding_words("cpuset") == "cpuset: each job runs only on its own CPUs"
    assert binding_words("rings: of 4") == "rings: of 4"
    assert binding_words("") == ""
