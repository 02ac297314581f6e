"""One package per task (commands, submit, show, local), and what all commands share."""

import sys
from types import TracebackType

from gsched.cli.late_modules import absent, load_late


def _without_interrupts(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print no traceback of Ctrl-C while a command loads its modules, before it can catch it."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _without_interrupts

load_late("difflib", "inspect", "socket", "textwrap")
with absent("typing_extensions"):
    import msgspec as msgspec
