"""sacctmgr and sshare: gsched keeps no database of accounts, so that there are none to list.

Any account is accepted at submission. Tools that check an account before they submit take an empty
list as "cannot be checked".
"""

from collections.abc import Sequence

from gsched.errors import UsageError

_LISTS = frozenset({"list", "show"})


def sacctmgr(words: Sequence[str]) -> int:
    """Print an empty list; refuse everything that would change accounts.

    Raises:
        UsageError: it is no request for a list.
    """
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in _LISTS:
        raise UsageError(
            f"cannot {verb or 'run without a request'}: gsched keeps no accounts",
            hint="valid: list, show, whose lists are empty; any account is accepted by sbatch",
        )
    return 0


def sshare(words: Sequence[str]) -> int:
    """Print an empty list: shares are not counted by account."""
    del words
    return 0
