"""Becoming the job's owner for good, and proof that it worked.

Each step is checked and all of it verified at the end: a daemon that goes on as root after a step
failed runs a user's program as root.
"""

import os
import pwd

from gnode.supervisor import kernel
from gnode.supervisor.errors import LaunchError

_LOGINUID_UNSET = 0xFFFFFFFF
_DEFAULT_UID_MIN = 1000


def read_uid_min(path: str = "/etc/login.defs") -> int:
    """Return the first uid that belongs to a person here; lower ones never run jobs."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split()
                if len(words) >= 2 and words[0] == "UID_MIN" and words[1].isdigit():
                    return max(1, int(words[1]))
    except OSError:
        pass
    return _DEFAULT_UID_MIN


def resolve_groups(user: str, uid: int, gid: int, uid_min: int) -> list[int]:
    """Return the groups of the job's owner, if this node agrees about who that is.

    Raises:
        LaunchError: root or a system account, or the name has another uid or group here.
    """
    if uid < max(1, uid_min):
        raise LaunchError(
            f"uid {uid} is a system account (below {uid_min}): jobs run as ordinary users only",
            user_error=True,
        )
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise LaunchError(
            f"there is no user {user} on this node: the administrator has to add the account",
            user_error=False,
        ) from None
    groups = os.getgrouplist(user, account.pw_gid)
    if account.pw_uid != uid:
        raise LaunchError(
            f"user {user} has uid {account.pw_uid} on this node, but {uid} at the head: "
            "the administrator has to make them equal",
            user_error=False,
        )
    if gid not in groups:
        raise LaunchError(
            f"user {user} is not in group {gid} on this node: choose one of {sorted(groups)}",
            user_error=True,
        )
    return groups


def become(uid: int, gid: int, groups: list[int]) -> None:
    """Give up root: capabilities, keyring, groups, gid and uid, then verify.

    Raises:
        LaunchError: the result is not exactly what was asked for.
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
            user_error=False,
        )


def _capabilities() -> set[int]:
    """Return the values of all capability sets of this process."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return {int(line.split()[1], 16) for line in file if line.startswith("Cap")}


def _can_become_root() -> bool:
    try:
        os.setuid(0)
    except PermissionError:
        return False
    return True
