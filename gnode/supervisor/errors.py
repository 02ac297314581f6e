"""Why a job could not be started: the evidence from which the head decides whose fault it is."""

import os
from typing import Literal

#: The values of `gsched.model.states.LaunchStage` and `Subject`, which cannot be imported here.
Stage = Literal[
    "order",
    "account",
    "home",
    "spool",
    "fork",
    "group",
    "identity",
    "files",
    "workdir",
    "output",
    "program",
    "device",
    "health",
    "prolog",
    "prolog_user",
]
Subject = Literal["node", "user", "job"]


class LaunchError(Exception):
    """A step between the fork and the program failed.

    Attributes:
        message: for people: what was tried, what is so, what to do.
        stage: the step.
        subject: whose thing it failed on. ``node`` only where no user can make the step fail.
        errno: the system's number of the error; 0: no system call failed.
        missing: the directory that does not exist, which may come to exist; empty: none.
    """

    def __init__(
        self, message: str, *, stage: Stage, subject: Subject, errno: int = 0, missing: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.subject = subject
        self.errno = errno
        self.missing = missing

    def evidence(self) -> dict[str, object]:
        """Return what the exit record says of it."""
        found: dict[str, object] = {
            "stage": self.stage,
            "subject": self.subject,
            "errno": self.errno,
        }
        return found | {"missing": printable(self.missing)} if self.missing else found


def printable(text: str) -> str:
    """Return ``text`` without what is no character: JSON that holds such is refused by readers."""
    return text.encode("utf-8", "backslashreplace").decode()


def reason(error: OSError) -> str:
    """Return the error in the system's words, without number and file name."""
    return os.strerror(error.errno) if error.errno else str(error)
