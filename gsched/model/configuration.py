"""How the configuration of a daemon was read, and keys of it that have changed."""

from typing import Final, Literal

from msgspec import Struct, structs

from gsched.model.numbers import Amount

#: Of a text that a node sends, characters, and of keys that wait for a restart there.
MAX_TEXT: Final = 500
MAX_KEYS: Final = 50

#: What operators change on a running head; see `gsched.config.objects`.
ObjectKind = Literal["server", "queue", "project", "user", "qos"]


class ConfigChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key whose value differs, or a queue, project or QOS that was added or removed.

    Attributes:
        table: as the file writes it, ``training.sia``; of a queue ``queue NAME``, likewise others.
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
        if " " in self.table:
            return f"{self.table}: {self.key}" if self.key else self.table
        return f"[{self.table}] {self.key}"

    @property
    def text(self) -> str:
        """Return the key with both values."""
        if not self.key:
            return f"{self.place}: {'added' if self.after else 'removed'}"
        return f"{self.place}: {self.before or 'none'} -> {self.after or 'none'}"


class ConfigRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration file of a daemon, as it was read last.

    Attributes:
        digest: SHA-256 of the file with which it runs; empty: there was none.
        read_s: when, by a start or a reload.
        waits: keys of it that need a restart.
        problem: why the last reload was refused, or empty; ``hint`` says what to do.
        problem_s: when that was.
    """

    path: str
    digest: str
    read_s: Amount
    waits: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""
    problem_s: Amount = 0.0

    @property
    def bounded(self) -> "ConfigRow":
        """Return it with texts that are not longer than they are shown; a node has sent them."""
        return structs.replace(
            self,
            path=self.path[:MAX_TEXT],
            digest=self.digest[:MAX_TEXT],
            waits=tuple(each[:MAX_TEXT] for each in self.waits[:MAX_KEYS]),
            problem=self.problem[:MAX_TEXT],
            hint=self.hint[:MAX_TEXT],
        )
