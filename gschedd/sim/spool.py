"""What lies on a modelled machine's disk: what gnode and its supervisors keep of attempts."""

from dataclasses import dataclass, field
from typing import Final

from gnode.core.inputs import SpoolEntry
from gnode.core.mark import HeadMark
from gnode.core.task import AcceptedTask, AttemptKey
from gnode.task import SupervisorInfo
from gsched.model.job import ExitRecord
from gsched.protocol import node as n

ENDED_MAX: Final = 1_000  # attempts that a modelled node remembers after their end


@dataclass(slots=True)
class Spool:
    """What is on the machine's disk."""

    tasks: dict[AttemptKey, AcceptedTask] = field(default_factory=dict)
    infos: dict[AttemptKey, SupervisorInfo] = field(default_factory=dict)
    records: dict[AttemptKey, ExitRecord] = field(default_factory=dict)
    renewals: dict[AttemptKey, float] = field(default_factory=dict)
    mark: HeadMark = field(default_factory=HeadMark)
    ended: dict[AttemptKey, n.KnownAttempt] = field(default_factory=dict)
    launched: dict[AttemptKey, AcceptedTask] = field(default_factory=dict)

    def bury(self, known: n.KnownAttempt) -> None:
        """Keep what is known of an ended attempt; the oldest ones are dropped."""
        self.ended[AttemptKey(known.job, known.attempt)] = known
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def found(self, key: AttemptKey) -> SpoolEntry:
        """Return what lies there of one attempt."""
        return SpoolEntry(
            key=key,
            task=self.tasks.get(key),
            info=self.infos.get(key),
            record=self.records.get(key),
            renewed_s=self.renewals.get(key),
            launched=self.launched.get(key),
        )

    def all_found(self) -> tuple[SpoolEntry, ...]:
        """Return everything that lies there, as a starting gnode finds it."""
        return tuple(self.found(key) for key in sorted({*self.tasks, *self.records}))

    def remove(self, key: AttemptKey) -> None:
        """Forget an attempt."""
        self.tasks.pop(key, None)
        self.infos.pop(key, None)
        self.records.pop(key, None)
        self.renewals.pop(key, None)
        self.launched.pop(key, None)
