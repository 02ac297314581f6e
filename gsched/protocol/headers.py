"""Headers of the head's answers, beside those of HTTP."""

from typing import Final

#: Why what an answer shows may be old, or not durable yet.
WARNING_HEADER: Final = "Gsched-Warning"
#: The head that rules, in the answers of one that stands by; or why another one may rule.
STANDBY_HEADER: Final = "Gsched-Standby"
