"""Whose fault a failed start is, from evidence alone."""

import errno

import pytest

from gsched.model.job import LaunchFailure
from gsched.model.states import LaunchStage as S
from gsched.model.states import Subject
from gschedd.core.attempts.blame import Verdict, verdict
from tests.support.evidence import MISSING


def failure(stage: S, subject: Subject, number: int = 0) -> LaunchFailure:
    return LaunchFailure(stage=stage, subject=subject, errno=number)


@pytest.mark.parametrize(
    ("stage", "subject", "number", "expected"),
    [
        (S.PROLOG, Subject.NODE, 0, Verdict.NODE),
        (S.HEALTH, Subject.NODE, 0, Verdict.NODE),
        (S.PROLOG_USER, Subject.USER, 0, Verdict.USER),
        (S.WORKDIR, Subject.JOB, errno.ENOENT, Verdict.JOB),
        (S.WORKDIR, Subject.JOB, errno.EACCES, Verdict.JOB),
        (S.WORKDIR, Subject.JOB, errno.ESTALE, Verdict.OWN_PASSING),  # H4
        (S.WORKDIR, Subject.JOB, errno.ETIMEDOUT, Verdict.OWN_PASSING),  # H1
        (S.HOME, Subject.USER, errno.ENOENT, Verdict.USER),  # D23
        (S.OUTPUT, Subject.JOB, 0, Verdict.JOB),  # a pipe
        (S.OUTPUT, Subject.JOB, errno.EAGAIN, Verdict.OWN_PASSING),  # a lease
        (S.OUTPUT, Subject.JOB, errno.ENOSPC, Verdict.JOB),
        (S.OUTPUT, Subject.JOB, errno.EDQUOT, Verdict.JOB),  # H6
        (S.PROGRAM, Subject.JOB, errno.ENOENT, Verdict.JOB),  # C16
        (S.PROGRAM, Subject.JOB, errno.E2BIG, Verdict.JOB),
        (S.PROGRAM, Subject.JOB, errno.EAGAIN, Verdict.OWN_PASSING),  # too many processes
        (S.PROGRAM, Subject.JOB, errno.EINTR, Verdict.OWN_PASSING),  # killed on the way
        (S.ACCOUNT, Subject.JOB, errno.EPERM, Verdict.JOB),  # no member of its group
        (S.ACCOUNT, Subject.USER, errno.ENOENT, Verdict.USER),  # D19
        (S.ACCOUNT, Subject.USER, errno.ETIMEDOUT, Verdict.PASSING),  # D22
        (S.FORK, Subject.NODE, errno.EAGAIN, Verdict.NODE),  # C15
        (S.GROUP, Subject.NODE, errno.EACCES, Verdict.NODE),
        (S.SPOOL, Subject.NODE, errno.EROFS, Verdict.NODE),
        (S.ORDER, Subject.NODE, 0, Verdict.PASSING),
        (S.MESSAGE, Subject.JOB, 0, Verdict.UNREADABLE),
    ],
)
def test_each_evidence_has_one_verdict(
    stage: S, subject: Subject, number: int, expected: Verdict
) -> None:
    assert verdict(failure(stage, subject, number)) is expected


def test_a_directory_that_may_be_made_yet_is_nobodys_fault() -> None:
    assert verdict(MISSING) is Verdict.MISSING


def test_without_evidence_nobody_is_blamed() -> None:
    assert verdict(None) is Verdict.NOBODY


@pytest.mark.parametrize("stage", list(S))
@pytest.mark.parametrize("subject", [Subject.JOB, Subject.USER])
def test_nothing_of_a_user_ever_counts_against_a_node(stage: S, subject: Subject) -> None:
    """Whatever error it is: a user can make each of them happen."""
    found = {verdict(failure(stage, subject, number)) for number in (0, *errno.errorcode)}

    assert Verdict.NODE not in found
