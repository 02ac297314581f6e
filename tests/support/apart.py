"""A cluster whose hosts have home directories of their own, as without a shared file system.

The daemons of each such host run in a mount namespace in which a file system of its own lies where
the users' home directories are, and have its name as their host name. Only root can do that.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gsched.model.ids import read_job_id
from gsched.protocol.job_rows import JobStory
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment
from tests.support.forks import Wrapper
from tests.support.users import TIMEOUT_S, User, Users, made_users

DEFAULT_SIZE = "16m"


class Apart:
    """The cluster; the head's machine has the home directories that this process sees.

    Attributes:
        alice: a user whom all hosts know.
        home: the path of alice's home directory, on every host.
    """

    def __init__(self, cluster: Cluster, users: Users) -> None:
        self.cluster = cluster
        self.users = users
        self.alice = users.add("alice")
        self.home = users.home(self.alice)
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}

    def start_host(
        self,
        name: str,
        *,
        size: str = DEFAULT_SIZE,
        env: dict[str, str] | None = None,
        role: str = "compute",
    ) -> None:
        """Start a gnode on a host with an empty home directory of alice's own; again: as it was.

        Args:
            name: of the host.
            size: of its file system for home directories.
            env: more of gnode's environment.
            role: ``compute`` or ``login``.
        """
        socket = self.socket(name)
        before, own = self.cluster.wrapper, self._hosts.get(name)
        if own is None:
            homes = self.home.parent
            script = (
                f"mount -t tmpfs -o size={size},mode=755 apart {homes} && mkdir -m 755 {self.home} "
                f"&& chown {self.alice.uid}:{self.alice.gid} {self.home} "
                f'&& echo {name} > /proc/sys/kernel/hostname && exec "$@"'
            )
            holder = subprocess.Popen(
                [
                    *before.words,
                    "unshare",
                    "-m",
                    "-u",
                    "sh",
                    "-c",
                    script,
                    "sh",
                    "sleep",
                    "infinity",
                ]
            )
            own = self._hosts[name] = holder
            command = Path(f"/proc/{own.pid}/comm")
            wait_until(lambda: command.read_text().strip() == "sleep", what="its files")
        self.cluster.wrapper = self._enter(name)
        self.cluster.start_node(
            name, env=env, wait=role == "compute", command_socket=str(socket), role=role
        )
        self.cluster.wrapper = before
        if role == "login":
            wait_until(lambda: self.run("gstat", host=name).status == 0, what=f"{name} to relay")

    def socket(self, host: str) -> Path:
        """Return the commands' socket of a host; empty: of the head's machine."""
        return self.cluster.directory / f"{host}.sock" if host else self.cluster.socket

    def _enter(self, host: str) -> Wrapper:
        mount, uts = self.namespace(host), f"/proc/{self._hosts[host].pid}/ns/uts"
        return Wrapper(("nsenter", f"--mount={mount}", f"--uts={uts}"), namespaces=(uts, mount))

    def namespace(self, host: str) -> str:
        """Return the mount namespace of a host, as a path."""
        return f"/proc/{self._hosts[host].pid}/ns/mnt"

    def on(self, host: str, path: Path | str) -> Path:
        """Return a path as a host has it; empty: the head's machine."""
        return Path(f"/proc/{self._hosts[host].pid}/root{path}") if host else Path(path)

    def run(
        self, name: str, *words: str, host: str = "", user: User | None = None, below: str = "."
    ) -> Ran:
        """Run a command on a host, as alice if nothing is said.

        Args:
            name: of the command.
            words: its arguments.
            host: where; empty: on the head's machine.
            user: as whom.
            below: the directory, from the user's home directory.
        """
        user = user or self.alice
        enter = self._enter(host).words if host else ()
        home = self.users.home(user)
        become = (
            f"import os, sys; os.setgroups([{user.gid}]); os.setgid({user.gid}); "
            f"os.setuid({user.uid}); os.chdir({str(home / below)!r}); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        done = subprocess.run(
            [*enter, sys.executable, "-c", become, sys.executable, "-m",
             f"gsched.cli.commands.{name}", *words],
            env=command_environment(self.socket(host), HOME=str(home)),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
        return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def submit(self, *words: str, host: str = "") -> int:
        """Submit a job on a host and return its number."""
        ran = self.run("gsub", *words, host=host)
        assert ran.status == 0, ran
        return read_job_id(ran.stdout.strip()).number

    def ended(self, job: int) -> JobStory:
        """Return the story of a job when it is done."""
        wait_until(
            lambda: self.cluster.head.job(job).row.state == "done", 60, what=f"the end of job {job}"
        )
        return self.cluster.head.job(job)

    def outboxes(self) -> list[str]:
        """Return the files that wait in outboxes of all nodes."""
        return sorted(
            f"{path.parent.name}/{path.name}"
            for path in self.cluster.tmp_dir.glob("*-outbox/[0-9]*/*")
        )

    def close(self) -> None:
        """End what keeps the hosts' file systems."""
        for holder in self._hosts.values():
            holder.kill()
            holder.wait()


@contextmanager
def made_apart(marker: str) -> Iterator[Apart]:
    """Yield a cluster with its head started, and no other host."""
    with made_users(Cluster, marker) as (cluster, users):
        apart = Apart(cluster, users)
        cluster.start_head()
        try:
            yield apart
        finally:
            cluster.stop()
            apart.close()
