"""Accounts that exist for one test only: daemons see them, the machine itself does not.

The daemons run in a mount namespace whose ``/etc/passwd`` and ``/etc/group`` are the test's own
files, so that accounts can come and go, and be two, on any machine where tests run as root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gsched.model.ids import read_job_id
from tests.support.cluster import Cluster
from tests.support.commands import Ran, command_environment
from tests.support.forks import Wrapper, run

TIMEOUT_S = 60.0
FIRST_UID = 71001


@dataclass(frozen=True, kw_only=True)
class User:
    """An account; ``groups`` are further groups it is a member of."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class Users:
    """The account files of one test, and commands run as one of their users."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._users: dict[str, User] = {}
        for name in ("passwd", "group"):
            (directory / name).write_bytes(Path("/etc", name).read_bytes())
        self._begin = {name: (directory / name).read_text() for name in ("passwd", "group")}

    def wrapper(self) -> Wrapper:
        """Return what lets a daemon see these accounts."""
        mounts = tuple(
            (f"{self._directory}/{name}", f"/etc/{name}") for name in ("passwd", "group")
        )
        script = " && ".join(f"mount --bind {source} {target}" for source, target in mounts)
        words = ("unshare", "-m", "sh", "-c", f'{script} && exec "$@"', "sh")
        return Wrapper(words, mounts=mounts)

    def add(self, name: str, *, groups: Sequence[int] = ()) -> User:
        """Make an account with a group of its own."""
        uid = FIRST_UID + len(self._users)
        user = User(name=name, uid=uid, gid=uid, groups=tuple(groups))
        self._users[name] = user
        self._write()
        return user

    def remove(self, user: User) -> None:
        """Delete an account; what runs as it runs on."""
        del self._users[user.name]
        self._write()

    def restore(self, user: User) -> None:
        """Let a deleted account be there again."""
        self._users[user.name] = user
        self._write()

    def _write(self) -> None:
        """Write both files in place: a bind mount follows the file, not its name."""
        passwd, group = self._begin["passwd"], self._begin["group"]
        extra: dict[int, list[str]] = {}
        for user in self._users.values():
            passwd += f"{user.name}:x:{user.uid}:{user.gid}::{self.home(user)}:/bin/sh\n"
            extra.setdefault(user.gid, [])
            for gid in user.groups:
                extra.setdefault(gid, []).append(user.name)
        group += "".join(f"test{gid}:x:{gid}:{','.join(who)}\n" for gid, who in extra.items())
        (self._directory / "passwd").write_text(passwd)
        (self._directory / "group").write_text(group)

    def passwd(self) -> bytes:
        """Return the present content of ``/etc/passwd``, as the daemons see it."""
        return (self._directory / "passwd").read_bytes()

    def home(self, user: User) -> Path:
        """Return the user's own directory, made when it is first asked for."""
        path = self._directory / "home" / user.name
        if not path.exists():
            path.parent.mkdir(exist_ok=True, mode=0o755)
            path.mkdir(mode=0o755)
            os.chown(path, user.uid, user.gid)
        return path

    def run(  # what a command's process has
        self,
        cluster: Cluster,
        user: User,
        name: str,
        *words: str,
        gid: int = 0,
        head: Path | None = None,
    ) -> Ran:
        """Run a command as a user, in that user's directory; ``head`` is another socket."""
        done = run(
            [sys.executable, "-m", f"gsched.cli.commands.{name}", *words],
            env=command_environment(head or cluster.socket, HOME=str(self.home(user))),
            cwd=self.home(user),
            user=user.uid,
            group=gid or user.gid,
            extra_groups=[user.gid, *user.groups],
            timeout=TIMEOUT_S,
        )
        return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def run_program(self, user: User, *words: str) -> str:
        """Return what a program of Python prints that runs as a user."""
        done = subprocess.run(
            [sys.executable, "-I", *words],
            cwd="/",
            user=user.uid,
            group=user.gid,
            extra_groups=[user.gid],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def submit(self, cluster: Cluster, user: User, *words: str, gid: int = 0) -> int:
        """Submit a job as a user and return its number."""
        ran = self.run(cluster, user, "gsub", *words, gid=gid)
        assert ran.status == 0, ran
        return read_job_id(ran.stdout.strip()).number


@contextmanager
def made_users(cluster_of: "type[Cluster]", marker: str) -> Iterator[tuple[Cluster, Users]]:
    """Yield a cluster whose daemons see accounts of the test's own; nothing is started yet."""
    if os.getuid() != 0:
        pytest.skip("only root can start jobs of other users")
    top = Path(tempfile.mkdtemp(prefix="gsched-users-"))  # pytest's own are closed to others
    top.chmod(0o755)
    users = Users(top)
    seen = subprocess.run([*users.wrapper().words, "true"], capture_output=True, check=False)
    if seen.returncode:
        shutil.rmtree(top)
        pytest.skip(f"mount namespaces cannot be made here: {seen.stderr.decode().strip()}")
    cluster = cluster_of(top / "cluster", marker)
    cluster.wrapper = users.wrapper()
    cluster.head_settings["single_user"] = False
    try:
        yield cluster, users
    finally:
        cluster.stop()
        shutil.rmtree(top)
