"""One package per task (commands, submit, show, local), and what all commands share."""

import sys
from types import TracebackType


def _without_interrupts(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print no traceback of Ctrl-C while a command loads its modules, before it can catch it."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _without_interrupts
