"""Whom a node or a login host may speak for, when users run commands there."""

from typing import Final

from gsched.errors import NotPermittedError
from gsched.protocol.relays import RelayRequest
from gschedd.core.requests.access import OVERFLOW_UID
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State

#: A node speaks for a user so long after the end of the user's last job there, seconds.
JUST_ENDED_S: Final = 300.0


def check_relayed(
    request: RelayRequest, host: str, settings: Settings, *, is_login: bool, has_job: bool
) -> None:
    """Check that a host may speak for a user; name and number agree with the head's.

    Args:
        request: what the host says of the user.
        host: its name as a node or a login host.
        settings: those in force.
        is_login: it is a login host.
        has_job: a job of the user runs on it, or has just ended there.

    Raises:
        NotPermittedError: it may not.
    """
    uid, user = request.uid, request.user
    if uid == OVERFLOW_UID:
        raise NotPermittedError(
            f"the caller's user id on {host} is 65534 (nobody, or a user of another namespace)",
            hint=f"run the command as a user of {host}",
        )
    if settings.has_operators(host) and settings.operators.has(uid, user):
        return
    if uid == 0:
        raise NotPermittedError(
            f"root of {host} is refused: [head] operator_hosts does not have {host}",
            hint="run the command as an ordinary user, or on the head's machine",
        )
    if uid < settings.min_uid and uid != settings.only_uid:
        raise NotPermittedError(
            f"{user} (uid {uid}) of {host} is a system account, below {settings.min_uid}",
            hint="run the command as an ordinary user",
        )
    if not is_login and not has_job:
        raise NotPermittedError(
            f"{user} has no job on node {host}, which serves commands of users with a job there",
            hint="run the command on a login host or on the head's machine",
        )


def has_job_on(state: State, node: str, request: RelayRequest) -> bool:
    """Return whether a job of the user is on a node."""
    owners = (job.spec.owner for job in state.by_node.get(node, {}).values())
    return any(owner.uid == request.uid and owner.user == request.user for owner in owners)
