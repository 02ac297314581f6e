"""How much GPU memory each job uses, and whether it may have more: pure."""

from dataclasses import dataclass, field

from gsched.model.numbers import MAX_NUMBER


@dataclass(slots=True)
class MemoryBook:
    """Limits of jobs, and bytes in use by each of their processes.

    A process says before an allocation how much it needs, so two processes of a job cannot both get
    the last bytes. What it says of memory that is in use already counts whatever the limit is, up
    to the largest number that the head can read.

    Attributes:
        context_bytes: that each process has of the limit for its CUDA context, beside what it says.
    """

    context_bytes: int = 0

    limits_bytes: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    _used: dict[str, dict[int, int]] = field(default_factory=dict)

    def set_limit(self, group: str, limit_bytes: int) -> None:
        """Admit a job, or change its limit."""
        self.limits_bytes[group] = limit_bytes
        self._used.setdefault(group, {})

    def remove(self, group: str) -> None:
        """Forget a job."""
        for table in (self.limits_bytes, self.refused, self._used):
            table.pop(group, None)

    def used_bytes(self, group: str) -> int:
        """Return what all processes of the job use."""
        used = self._used[group]
        return min(MAX_NUMBER, sum(used.values()) + self.context_bytes * len(used))

    def reserve(self, group: str, client: int, wanted_bytes: int, *, forced: bool = False) -> bool:
        """Charge bytes to a process; return whether the job may have them."""
        context_bytes = 0 if client in self._used[group] else self.context_bytes
        total_bytes = self.used_bytes(group) + wanted_bytes + context_bytes
        if not forced and total_bytes > self.limits_bytes[group]:
            self.refused[group] = self.refused.get(group, 0) + 1
            return False
        used = self._used[group]
        used[client] = min(MAX_NUMBER, used.get(client, 0) + wanted_bytes)
        return True

    def free(self, group: str, client: int, freed_bytes: int) -> None:
        """Take bytes off a process; no more than it has."""
        used = self._used[group]
        if client in used:
            used[client] = max(0, used[client] - freed_bytes)

    def drop(self, group: str, client: int) -> None:
        """Forget a process that has ended: the driver has freed its memory."""
        self._used.get(group, {}).pop(client, None)
