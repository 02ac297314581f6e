"""Becoming the job's owner for good, and proof that it worked.

Each step is checked and all of it verified at the end: a daemon that goes on as root after a step
failed runs a user's program as root.
"""

import errno
import os
import pwd
import time

from gnode.supervisor import kernel
from gnode.supervisor.errors import LaunchError
from gnode.task import Task
from gsched import trust

_LOGINUID_UNSET = 0xFFFFFFFF
_UID_MAX = (1 << 32) - 2  # the one above, as -1, leaves the id as it is
_KEPT_S = 60.0  # as gnode keeps what the name service says of a user
_OWNERS_MAX = 64
_ACCOUNT_FILES = ("/etc/passwd", "/etc/group")

#: When the name service was asked, and which files it may have read.
Moment = tuple[float, tuple[tuple[int, int, int], ...]]


class PrivilegeRules:
    """Whose jobs this node runs: said by gnode's own configuration, never by a task or the head.

    Attributes:
        allow_root: jobs of uid 0 run, as root. Without it this process runs nothing as root.
        uid_min: the lowest uid that may run jobs after a switch of user.
    """

    __slots__ = ("allow_root", "uid_min")

    def __init__(self, *, allow_root: bool = False, uid_min: int = 0) -> None:
        self.allow_root = allow_root
        self.uid_min = max(1, uid_min or trust.uid_min())


def check_owner(uid: int, gid: int, rules: PrivilegeRules, *, switch_user: bool) -> None:
    """Refuse what must never run here, before anything is made or started for it.

    Raises:
        LaunchError: root or a system account, or not this process's user although no other user
            is to be become.
    """
    own_uid = os.getuid()
    if own_uid == 0 and uid == 0 and not rules.allow_root:
        raise LaunchError(
            "this node runs no jobs of root: submit as another user, or set "
            "allow_root_jobs = true in [node] of its own configuration",
            stage="account",
            subject="job",
            errno=errno.EPERM,
        )
    if not switch_user:
        if uid != own_uid:
            raise LaunchError(
                f"the job belongs to uid {uid}, but this gnode runs jobs of {own_uid} only",
                stage="account",
                subject="user",
                errno=errno.EPERM,
            )
        return
    if not rules.uid_min <= uid <= _UID_MAX:
        raise LaunchError(
            f"uid {uid} is a system account (below {rules.uid_min}): jobs run as ordinary users "
            "only",
            stage="account",
            subject="job",
            errno=errno.EPERM,
        )
    if not 1 <= gid <= _UID_MAX:
        raise LaunchError(
            f"gid {gid} is a group of the system: jobs run in groups of ordinary users only",
            stage="account",
            subject="job",
            errno=errno.EPERM,
        )


def resolve_groups(user: str, uid: int, gid: int) -> list[int]:
    """Return the groups of the job's owner, if this node agrees about who that is.

    Raises:
        LaunchError: the name has another uid or group here.
    """
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        if number := kernel.name_service_error(user):
            raise LaunchError(
                f"the name service on this node does not answer for user {user}: "
                f"{os.strerror(number)}",
                stage="account",
                subject="user",
                errno=errno.ETIMEDOUT,
            ) from None
        raise LaunchError(
            f"there is no user {user} on this node: the administrator has to add the account",
            stage="account",
            subject="user",
            errno=errno.ENOENT,
        ) from None
    groups = os.getgrouplist(user, account.pw_gid)
    if account.pw_uid != uid:
        raise LaunchError(
            f"user {user} has uid {account.pw_uid} on this node, but {uid} at the head: "
            "the administrator has to make them equal",
            stage="account",
            subject="user",
            errno=errno.EINVAL,
        )
    if gid not in groups:
        raise LaunchError(
            f"user {user} is not in group {gid} on this node: submit with one of "
            f"{sorted(groups)} as current group (newgrp)",
            stage="account",
            subject="job",
            errno=errno.EPERM,
        )
    return groups


class KnownOwners:
    """The groups of users whose jobs this process has just started.

    The processes of these jobs have asked the name service, which may hang; whoever starts the next
    one need not. They count for a minute, and only as long as the files of accounts are the same.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], tuple[Moment, list[int]]] = {}

    @staticmethod
    def moment() -> Moment:
        """Return what `note` has to know: taken before the name service is asked."""
        return time.monotonic(), _account_files()

    def note(self, task: Task, groups: list[int], since: Moment) -> None:
        """Keep the groups of a task's owner; none: they are not known."""
        if len(self._known) >= _OWNERS_MAX:
            self._known.clear()
        if groups:
            self._known[task.user, task.uid, task.gid] = since, sorted(set(groups))

    def groups(self, user: str, uid: int, gid: int) -> list[int] | None:
        """Return the groups of an owner, ascending; None: the name service has to be asked."""
        (since_s, files), groups = self._known.get((user, uid, gid), ((-_KEPT_S, ()), []))
        if time.monotonic() < since_s + _KEPT_S and files == _account_files():
            return groups
        return None


def _account_files() -> tuple[tuple[int, int, int], ...]:
    found = []
    for path in _ACCOUNT_FILES:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


def become(uid: int, gid: int, groups: list[int]) -> None:
    """Give up root: capabilities, keyring, groups, gid and uid, then verify.

    Raises:
        LaunchError: the result is not exactly what was requested.
        OSError: the kernel refused a step.
    """
    kernel.join_new_keyring()
    _set_loginuid(uid)
    kernel.drop_capabilities_for_good()
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kernel.clear_capabilities()
    _verify(uid, gid, groups)


def _set_loginuid(uid: int) -> None:
    """Tell the audit system whose session this is, where it wants to know and does not."""
    try:
        with open("/proc/self/loginuid", "r+", encoding="ascii") as file:
            if int(file.read()) == _LOGINUID_UNSET:
                file.write(str(uid))
    except OSError:  # no audit in this kernel, or the container forbids it
        return


def _verify(uid: int, gid: int, groups: list[int]) -> None:
    wrong = [
        os.getresuid() != (uid,) * 3,
        os.getresgid() != (gid,) * 3,
        set(os.getgroups()) != set(groups),
        _capabilities() != {0},
        _can_become_root(),
    ]
    if any(wrong):
        raise LaunchError(
            f"could not become uid {uid}: ids {os.getresuid()} {os.getresgid()} "
            f"{os.getgroups()}, capabilities {_capabilities()}",
            stage="identity",
            subject="node",
        )


def _capabilities() -> set[int]:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return {int(line.split()[1], 16) for line in file if line.startswith("Cap")}


def _can_become_root() -> bool:
    try:
        os.setuid(0)
    except PermissionError:
        return False
    return True
