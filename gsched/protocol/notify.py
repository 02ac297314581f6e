"""What the head tells of mail and hooks."""

from msgspec import Struct


class NotifyRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How mail and hooks work, by way: ``mail``, ``command``, ``url`` and ``user-url``.

    Attributes:
        trouble: why the process that delivers does not run; empty: it does.
        waiting: deliveries that are still to be made; ``sent`` and ``dropped`` since the first.
        reasons: why the last one was dropped.
        down: why a way does not work now.
    """

    trouble: str = ""
    waiting: dict[str, int] = {}
    sent: dict[str, int] = {}
    dropped: dict[str, int] = {}
    reasons: dict[str, str] = {}
    down: dict[str, str] = {}
