"""Requests for mail on the command line: ``-m`` and ``-M``."""

from gsched.errors import InvalidRequestError, UsageError
from gsched.model.mail import checked_points, checked_recipients


def mail_points(stated: str | None) -> str:
    """Return the letters of ``-m``: when to send mail; empty: nothing is stated.

    Raises:
        UsageError: an unknown letter, or ``n`` or ``p`` beside others.
    """
    try:
        return checked_points(stated or "")
    except InvalidRequestError as error:
        raise UsageError(error.message, hint=error.hint) from None


def check_recipients(stated: str | None) -> None:
    """Check the recipients of ``-M``.

    Raises:
        UsageError: too many, or one that is no address.
    """
    try:
        checked_recipients(stated or "")
    except InvalidRequestError as error:
        raise UsageError(error.message, hint=error.hint) from None
