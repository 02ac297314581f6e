"""A key of the configuration that has changed."""

from msgspec import Struct


class ConfigChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key whose value differs, or a queue that was added or removed.

    Attributes:
        table: as the file writes it, ``training.sia``; of a queue ``queue NAME``.
        key: empty: the queue as a whole.
        before, after: the values as JSON; empty: none.
    """

    table: str
    key: str = ""
    before: str = ""
    after: str = ""

    @property
    def place(self) -> str:
        """Return ``[head] operators`` or ``queue night: max_walltime_s``."""
        if self.table.startswith("queue "):
            return f"{self.table}: {self.key}" if self.key else self.table
        return f"[{self.table}] {self.key}"

    @property
    def text(self) -> str:
        """Return the key with both values."""
        if not self.key:
            return f"{self.place}: {'added' if self.after else 'removed'}"
        return f"{self.place}: {self.before or 'none'} -> {self.after or 'none'}"
