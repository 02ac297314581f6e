"""Ends of attempts: what the launcher tells of them, and what lies in the spool.

The agent receives an outcome after its exit record is durable. A record from the launcher is
written to the log of outcomes; a record from a journal is flushed with that journal.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

from gnode.core.agent import Agent
from gnode.core.inputs import Input, SpoolEntry, SpoolFound, SupervisorEnded
from gnode.core.task import AttemptKey, parse_key
from gnode.daemon.measuring import LoadAfterEnds
from gnode.daemon.outcomes import EndToKeep, OutcomeLog
from gnode.daemon.spool import NodeSpool
from gnode.daemon.starts import Answers, Starts
from gnode.daemon.writes import UnreadableRecords
from gnode.task import SupervisorInfo
from gsched.model.job import ExitRecord


class AttemptEnds:
    """Takes in the ends of attempts, in a turn of the event loop or once they can be read.

    Args:
        kept: is told of attempts whose exit records the launcher need not flush.

    Attributes:
        unreadable: attempts whose exit record cannot be read now.
    """

    def __init__(  # noqa: PLR0913 - what the shell puts together
        self,
        agent: Agent,
        spool: NodeSpool,
        *,
        load: LoadAfterEnds,
        starts: Starts,
        answers: Answers,
        post: Callable[[Input], None],
        kept: Callable[[AttemptKey], None],
        start: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self.unreadable = UnreadableRecords()
        self._agent = agent
        self._spool = spool
        self._load = load
        self._starts = starts
        self._answers = answers
        self._post = post
        self._kept = kept
        self._log = OutcomeLog(spool.state_dir, flush_exit=spool.flush_exit, start=start)

    def removed(self, names: Sequence[str]) -> None:
        """Note that the records of these attempts are removed."""
        self._log.note_gone(names)

    def close(self) -> None:
        """Take in nothing more."""
        self.unreadable.close()
        self._log.close()

    # --- the launcher ---

    def launcher_says(self, key: AttemptKey, known: bytes, known_info: bytes) -> None:
        """Take the end of an attempt that the launcher tells, with its records if it knows them.

        The log of outcomes has attempts that a restarted gnode reports. It has no probes and no
        attempts that were never launched.
        """
        if not known:
            self.read(key)
            return
        attempt = self._agent.attempts.get(key)
        text = known if attempt is not None and not attempt.prepared else b""
        # The end tells the start as well, unless that was told: it is not looked for meanwhile.
        start = known_info if self._starts.forget(key) else None
        self._log.add(EndToKeep(key.name, text, partial(self._take_durable, key, known, start)))

    def _take_durable(self, key: AttemptKey, known: bytes, known_info: bytes | None) -> None:
        info = None if known_info is None else self._spool.read_info(key, known_info)
        self._take(key, self._spool.decoded_exit(key, known), info)

    def read(self, key: AttemptKey) -> None:
        """Take the end of an attempt from its journal."""
        try:
            record = self._spool.read_exit(key)
        except OSError as error:
            self.unreadable.again(key, str(error), "end", partial(self.read, key))
            return
        self._take(key, record, self._spool.read_info(key) if self._starts.forget(key) else None)

    def _take(
        self, key: AttemptKey, record: ExitRecord | None, info: SupervisorInfo | None
    ) -> None:
        self._kept(key)
        self.unreadable.settle(key)
        self._load.note(self._agent.attempts.get(key), record)
        self._answers.forget(key)
        self._post(SupervisorEnded(key=key, record=record, info=info))

    # --- the spool ---

    def find(self, ended: Sequence[AttemptKey]) -> tuple[SpoolEntry, ...]:
        """Return what a starting gnode finds in the spool and in the log of outcomes.

        Args:
            ended: attempts that are in the log of ended attempts: the head has their outcomes.
        """
        kept = self._log.read()
        found = self.look(*self._spool.attempts(), kept=kept)
        known = {each.key.name for each in found} | {key.name for key in ended}
        lost: list[SpoolEntry] = []  # with the machine's power, directory and all
        for name, text in kept.items():
            record = self._spool.decoded_exit(parse_key(name), text) if name not in known else None
            if record is not None:
                lost.append(SpoolEntry(key=parse_key(name), task=None, info=None, record=record))
        return (*found, *lost)

    def look(
        self, *keys: AttemptKey, kept: Mapping[str, bytes] | None = None
    ) -> tuple[SpoolEntry, ...]:
        """Return what lies in the spool, and look again at what cannot be read now."""
        found = tuple(self._spool.look(key, kept or {}) for key in keys)
        for each in found:
            if not each.doubt:
                self.unreadable.settle(each.key)
            elif each.task is not None or each.key in self._agent.attempts:
                self.unreadable.again(
                    each.key, each.doubt, "look", partial(self._look_again, each.key)
                )
        return found

    def _look_again(self, key: AttemptKey) -> None:
        if key in self._agent.attempts:
            self._post(SpoolFound(found=self.look(key)))
