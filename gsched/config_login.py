"""The table ``[login]`` of the configuration: who may log in to a node over ssh."""

from typing import Annotated, Final

import msgspec
from msgspec import Struct

#: What ``[login] when_unknown`` may say.
WHEN_UNKNOWN: Final = ("deny", "allow")


class LoginConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[login]``: who may log in to a node where PAM runs ``gnode.pam``, besides root.

    Attributes:
        allow_users, allow_groups: come in without a job, and are in no job's control groups.
        when_unknown: what becomes of others where it cannot be told whether they have a job on the
            node, as gnode or the head does not answer: ``deny`` or ``allow``, as those above.
        timeout_s: until then it is not known.
    """

    allow_users: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    when_unknown: str = "deny"
    timeout_s: Annotated[float, msgspec.Meta(ge=1, le=60)] = 10.0
