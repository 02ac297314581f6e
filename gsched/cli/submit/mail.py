"""Requests for mail: gsched sends none yet, and nobody shall wait for it.

On the command line such a request is refused. In a script it is ignored with a warning, because
scripts are shared with Torque.
"""

from typing import Final

from gsched.errors import UsageError

NO_MAIL: Final = "gsched sends no mail yet"
_POINTS: Final = frozenset("abefnp")
_NEVER: Final = frozenset("np")


def mail_points(stated: str | None) -> str:
    """Return the letters of ``-m``: when to send mail.

    Raises:
        UsageError: a letter that is none, or ``n`` or ``p`` beside others.
    """
    points = (stated or "").replace(",", "")
    if set(points) - _POINTS or (len(points) > 1 and _NEVER & set(points)):
        raise UsageError(
            f"-m: invalid mail points {stated!r}",
            hint="use letters of a (abort), b (begin), e (end), f (failure), or n alone",
        )
    return points


def wanted_mail(points: str | None, users: str | None) -> str:
    """Return the option that asks for mail, empty if none does.

    ``-M`` alone asks for it: PBS then sends mail when a job is aborted.
    """
    if points is not None:
        return f"-m {points}" if set(mail_points(points)) - _NEVER else ""
    return f"-M {users}" if users is not None else ""


def refuse_mail(points: str | None, users: str | None) -> None:
    """Refuse a request for mail.

    Raises:
        UsageError: there is one.
    """
    option = wanted_mail(points, users)
    if option:
        raise UsageError(
            f"{option}: {NO_MAIL}",
            hint="omit -m and -M, or write -m n; gwait returns when a job has ended",
        )
