"""Regular expressions that are compiled when they are first used, not while a command starts."""

import re
from typing import TYPE_CHECKING, overload


class _LatePattern:
    """Has the methods of `re.Pattern`; the first use of each compiles the expression."""

    def __init__(self, expression: str | bytes, flags: int):
        self._expression, self._flags = expression, flags

    def __getattr__(self, name: str) -> object:
        method = getattr(re.compile(self._expression, self._flags), name)
        setattr(self, name, method)
        return method


if TYPE_CHECKING:

    @overload
    def pattern(expression: str, flags: int = 0) -> re.Pattern[str]: ...
    @overload
    def pattern(expression: bytes, flags: int = 0) -> re.Pattern[bytes]: ...


def pattern(expression: str | bytes, flags: int = 0) -> object:
    """Return a pattern that is compiled at its first use."""
    return _LatePattern(expression, flags)
