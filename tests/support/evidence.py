"""What nodes report of starts that failed: one piece of evidence of each kind."""

import errno

from gsched.model.job import LaunchFailure
from gsched.model.states import LaunchStage, Subject

NO_DIRECTORY = LaunchFailure(stage=LaunchStage.WORKDIR, subject=Subject.JOB, errno=errno.ENOENT)
#: A directory that its user may make yet.
MISSING = LaunchFailure(
    stage=LaunchStage.OUTPUT, subject=Subject.JOB, errno=errno.ENOENT, missing="/data/out"
)
LEASE = LaunchFailure(stage=LaunchStage.OUTPUT, subject=Subject.JOB, errno=errno.EAGAIN)
UNKNOWN_USER = LaunchFailure(stage=LaunchStage.ACCOUNT, subject=Subject.USER, errno=errno.ENOENT)
FORK = LaunchFailure(stage=LaunchStage.FORK, subject=Subject.NODE, errno=errno.EAGAIN)
