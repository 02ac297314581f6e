"""How the configuration of a daemon was read, and keys of it that have changed."""

from typing import Final, Literal

from msgspec import Struct, structs

from gsched.model.numbers import Amount

#: Of a text that a node sends, characters, and of keys that wait for a restart there.
MAX_TEXT: Final = 500
MAX_KEYS: Final = 50
#: Keys that a node tells of itself, and characters of a value.
MAX_SETTINGS: Final = 1000
MAX_VALUE: Final = 8192

#: Where the value of a key comes from: nobody has stated one, the head, or the node's own file.
SettingOrigin = Literal["default", "head", "own"]

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


class SettingRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key of a node.

    Attributes:
        table: as the file writes it, ``node`` or ``node.health_check[0]``.
        value: with which the node runs, as JSON; empty: it has none yet.
        origin: of the value that is wanted.
        pending: the value that is wanted and needs a restart, as JSON; empty: the same.
        unused: why the value has no effect on this host, in words; empty: it has.
    """

    table: str
    key: str
    value: str = ""
    origin: SettingOrigin = "default"
    pending: str = ""
    unused: str = ""

    @property
    def bounded(self) -> "SettingRow":
        """Return it with texts that are not longer than they are shown; a node has sent them."""
        return structs.replace(
            self,
            table=self.table[:MAX_TEXT],
            key=self.key[:MAX_TEXT],
            value=self.value[:MAX_VALUE],
            pending=self.pending[:MAX_VALUE],
            unused=self.unused[:MAX_TEXT],
        )


class SettingsRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of the cluster on a node, which come from the head.

    Attributes:
        digest: of those with which the node runs, or which count there after a restart; empty: it
            has none.
        received_s: when they came.
        own: keys for which the node's own file states another value.
        problem: why the settings that came last are refused, or empty; ``hint`` says what to do.
        problem_s: when that was.
        closed: the node was started with settings that it cannot use, and has none instead: until
            they can be used it takes no new jobs.
    """

    digest: str = ""
    received_s: Amount = 0.0
    own: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""
    problem_s: Amount = 0.0
    closed: bool = False

    @property
    def bounded(self) -> "SettingsRow":
        """Return it with texts that are not longer than they are shown; a node has sent them."""
        return structs.replace(
            self,
            digest=self.digest[:MAX_TEXT],
            own=tuple(each[:MAX_TEXT] for each in self.own[:MAX_KEYS]),
            problem=self.problem[:MAX_TEXT],
            hint=self.hint[:MAX_TEXT],
        )


class ConfigRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration file of a daemon, as it was read last.

    Attributes:
        digest: SHA-256 of the file with which it runs; empty: there was none.
        read_s: when, by a start or a reload.
        waits: keys of it that need a restart.
        problem: why the last reload was refused, or empty; ``hint`` says what to do.
        problem_s: when that was.
        settings: of the cluster; of the head only their digest; None: a gnode that takes none.
    """

    path: str
    digest: str
    read_s: Amount
    waits: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""
    problem_s: Amount = 0.0
    settings: SettingsRow | None = None

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
            settings=self.settings.bounded if self.settings is not None else None,
        )
