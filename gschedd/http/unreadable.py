"""Messages that a node or the head cannot read: each is set aside with its job, never repeated."""

import asyncio
import logging
from collections.abc import Sequence

from gsched.logs import Complaints
from gsched.model.ids import short_job_id
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.resources import Load, Usage
from gsched.model.states import LaunchStage, OutcomeKind, Subject
from gsched.protocol import node as n
from gsched.protocol.reading import Salvaged
from gsched.protocol.unreadable import Unreadable
from gschedd.engine.loop import Engine

#: Messages that start an attempt, by their type.
_STARTS = frozenset({"launch", "prepare"})


class Unreadables:
    """What becomes of jobs whose messages cannot be read."""

    def __init__(self, engine: Engine, complaints: Complaints) -> None:
        self._engine = engine
        self._complaints = complaints
        self._tasks: set[asyncio.Task[None]] = set()

    def fail(self, node: str, key: tuple[int, int], stage: LaunchStage, message: str) -> None:
        """Let an attempt, ``key``, fail on a node to which its launch cannot be sent."""
        record = ExitRecord(
            job=key[0],
            attempt=key[1],
            kind=OutcomeKind.LAUNCH_FAILED,
            failure=LaunchFailure(stage=stage, subject=Subject.JOB),
            message=message,
        )
        exited = n.Exited(record=record, usage=Usage(), load=Load())
        reported = self._engine.tell(
            lambda now_s: (self._engine.head.failed_to_launch(node, exited, now_s),)
        )
        task = asyncio.create_task(reported)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def set_aside(self, node: str, unread: Unreadable) -> None:
        """Hold a job whose launch its node cannot read: it would refuse each further one, too."""
        self._engine.head.oddities["message_unreadable"] += 1
        about = (
            f" of job {short_job_id(unread.job)}, attempt {unread.attempt}" if unread.job else ""
        )
        what = unread.of or "of an unknown type"
        text = f"it cannot read the message {what}{about}: {unread.reason}"
        self._complaints.say(node, text, level=logging.ERROR)
        if unread.of in _STARTS and unread.job:
            message = f"node {node} cannot read the message that starts it: {unread.reason}"
            self.fail(node, (unread.job, unread.attempt), LaunchStage.MESSAGE, message)

    def log_reports(
        self, node: str, incomplete: Sequence[Salvaged], unreadable: Sequence[Unreadable]
    ) -> None:
        """Log what of a node's reports could not be read, with the jobs; the rest is taken in."""
        for unread in unreadable:
            about = f" of job {short_job_id(unread.job)}" if unread.job else ""
            self._complain(node, f"a report ({unread.of}){about} cannot be read: {unread.reason}")
        for part in (part for each in incomplete for part in each.lost):
            about = f" of job {short_job_id(part.job)}" if part.job else ""
            self._complain(node, f"{part.where} of a report{about} is left out: {part.reason}")

    def _complain(self, node: str, text: str) -> None:
        self._engine.head.oddities["report_unreadable"] += 1
        self._complaints.say(node, text)
