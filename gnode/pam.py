"""Who may log in to this node, for PAM: users who have a job here, and into that job.

``python -I -m gnode.pam [--config FILE]``, run by pam_exec(8) as root. The stage ``account`` lets
administrators in, and users with a job on this node. The stage ``session`` moves the process that
has called PAM, sshd's for this connection, into the control groups of the job, and with it all
that it starts later. Standard output is shown to the user.
"""

import argparse
import contextlib
import grp
import os
import pwd
import signal
import socket
import sys
import syslog
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

from gnode.supervisor import login
from gnode.supervisor.errors import LaunchError
from gsched import pam_stack
from gsched.config.environment import (
    DEFAULT_CONFIG,
    DEFAULT_NODE_STATE_DIR,
    full_environment,
)
from gsched.config.load import read_config
from gsched.config.tables import Config
from gsched.daemon_files import check_config
from gsched.errors import GschedError
from gsched.kept_settings import configured
from gsched.model.ids import short_job_id

ACCOUNT, SESSION = "account", "open_session"
AUTHENTICATION = frozenset({"auth", "password"})


class LoginRefusedError(Exception):
    """The user does not come in; the message says why."""


class _UnknownError(Exception):
    """It cannot be told whether the user has a job here; the message says why."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer PAM by the exit status: 0 lets the user in."""
    parser = argparse.ArgumentParser(
        prog="gnode.pam",
        description="Lets users with a job on this node log in, and puts their sessions into it. "
        "Run by pam_exec(8): see gnode-pam(8).",
        epilog="example, in /etc/pam.d/sshd: "
        "account required pam_exec.so quiet stdout /opt/gsched/bin/python -I -m gnode.pam",
    )
    parser.add_argument(
        "--config", metavar="FILE", default=DEFAULT_CONFIG, help=f"default: {DEFAULT_CONFIG}"
    )
    given = parser.parse_args(arguments)
    syslog.openlog("gnode.pam", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
    try:
        _check_isolated()
        message = answer(full_environment(), given.config, os.getppid())
    except LoginRefusedError as error:
        syslog.syslog(syslog.LOG_NOTICE, f"refused: {error}")
        _show(str(error))
        sys.exit(1)
    if message:
        syslog.syslog(syslog.LOG_INFO, message)


def _check_isolated() -> None:
    """Refuse to work with modules of somebody else's: in some stacks users can set PYTHONPATH.

    Raises:
        RefusedError: it is so.
    """
    if not sys.flags.isolated:
        raise LoginRefusedError("gnode.pam has to be started with python -I: see gnode-pam(8)")


def _check_service(service: str) -> None:
    """Refuse users who could set variables for this program: with LD_PRELOAD they become root.

    The stage "account" comes before the variables are set, and keeps them out.

    Raises:
        RefusedError: it is so.
    """
    found = pam_stack.lines(pam_stack.PAM, service) if service else ()
    if pam_stack.takes_users_environment(found):
        raise LoginRefusedError(
            f"only root can log in: user_readenv=1 of pam_env.so in {pam_stack.PAM}/{service} lets "
            "users set variables for programs of root: tell an administrator to remove it, see "
            "gnode-pam(8)"
        )


def _show(text: str) -> None:
    """Show a line to the user: sshd takes it from standard output."""
    sys.stdout.write(f"gsched: {text}\n")


def answer(pam_variables: Mapping[str, str], path: str, caller: int) -> str:
    """Let a user in, or move the session into the user's job.

    Args:
        told: what PAM says, as environment variables.
        path: of the configuration.
        caller: the process that has called PAM.

    Returns:
        What is logged; empty: nothing.

    Raises:
        RefusedError: the user does not come in.
    """
    stage, user = pam_variables.get("PAM_TYPE", ""), pam_variables.get("PAM_USER", "")
    if stage in AUTHENTICATION:  # a success would let anybody in whose line is "sufficient"
        raise LoginRefusedError(f"gnode.pam does not authenticate: remove its line for {stage!r}")
    if stage not in {ACCOUNT, SESSION}:
        return ""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise LoginRefusedError(f"this node does not know user {user!r}") from None
    if account.pw_uid == 0:
        return ""
    _check_service(pam_variables.get("PAM_SERVICE", ""))
    try:
        check_config(path)
        config = configured(read_config(path))
    except GschedError as error:
        raise LoginRefusedError(f"only root can log in: {error.message}") from None
    if is_administrator(account, config):
        return ""
    try:
        with _limited(config.login.timeout_s):
            return _enter(account, config, stage, pam_variables.get("PAM_RHOST", ""), caller)
    except _UnknownError as error:
        if config.login.when_unknown == "allow":
            return f"{user} comes in, in no job: {error}"
        raise LoginRefusedError(
            f"it is not known whether user {user} has a job on node {_name(config)}: {error}: "
            "try again, or tell an administrator"
        ) from None


def is_administrator(account: pwd.struct_passwd, config: Config) -> bool:
    """Return whether the configuration lets an account in without a job."""
    if account.pw_name in config.login.allow_users:
        return True
    allowed = set()
    for name in config.login.allow_groups:
        with contextlib.suppress(KeyError):  # no such group
            allowed.add(grp.getgrnam(name).gr_gid)
    return bool(allowed) and not allowed.isdisjoint(
        os.getgrouplist(account.pw_name, account.pw_gid)
    )


def _enter(
    account: pwd.struct_passwd, config: Config, stage: str, address: str, caller: int
) -> str:
    """Do what a stage does for a user who is no administrator; return what is logged.

    Raises:
        RefusedError: the user has no job here, or the session cannot be a part of it.
        _UnknownError: that cannot be told.
    """
    user = account.pw_name
    state_dir = os.path.abspath(config.node.state_dir or DEFAULT_NODE_STATE_DIR)
    while True:
        try:
            found = login.attempts_of(state_dir, user, account.pw_uid)
        except (OSError, ValueError) as error:
            raise _UnknownError(f"the records in {state_dir} cannot be read: {error}") from None
        try:
            found = found or login.await_part(state_dir, user, account.pw_uid, address)
        except (OSError, ValueError) as error:
            raise _UnknownError(f"gnode does not tell: {error}") from None
        if not found:
            raise LoginRefusedError(
                f"user {user} has no running job on node {_name(config)}: log in to a node of one "
                "(gstat -n), or start one"
            )
        if stage == ACCOUNT:
            return ""
        chosen = login.nearest(found, address)
        job = short_job_id(chosen.task.job)
        try:
            login.adopt(chosen, caller)
            shares_tmp = login.share_tmp(chosen, caller)
        except login.OverError:
            continue  # its records say so by now, and another one may run
        except LaunchError as error:
            raise LoginRefusedError(
                f"the session cannot be a part of job {job}: {error.message}: use gshell {job}"
            ) from None
        _show(f"this session is a part of job {job} and ends with it")
        if not shares_tmp:
            _show("it sees the temporary files of the node, not those of the job")
        return f"the session of {user}, process {caller}, is a part of job {job}"


def _name(config: Config) -> str:
    return config.node.name or socket.gethostname()


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise `_UnknownError` in the body after so long."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _UnknownError(f"that took more than {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    main()
