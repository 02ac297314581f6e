"""A real sshd on loopback, whose PAM asks gnode.pam, and ssh clients of it.

It runs in the mount namespace of the test's accounts (`tests.support.users`), where its
configuration of PAM takes the place of the machine's.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster import wait_until
from tests.support.commands import Ran
from tests.support.ports import free_port
from tests.support.processes import MARKER
from tests.support.users import User, Users

PROGRAM = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
PRIVILEGE_DIRECTORY = Path("/run/sshd")
TIMEOUT_S = 60.0
#: Both stages, as the manual page says; nothing else, so that accounts need no shadow.
STACK = """auth required pam_deny.so
account required pam_exec.so quiet stdout {command}
{namespace}session required pam_exec.so quiet stdout {command}
"""
NAMESPACE = Path("/etc/security/namespace.conf")
SETTINGS = """ListenAddress 127.0.0.1
Port {port}
HostKey {directory}/host
AuthorizedKeysFile {directory}/user.pub
PidFile none
StrictModes no
UsePAM yes
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 200
MaxSessions 200
Subsystem sftp internal-sftp
"""


class Sshd:
    """One sshd; `run` logs in by a key that all users have."""

    def __init__(
        self, directory: Path, users: Users, config: Path, marker: str, *, namespace: bool
    ) -> None:
        self.directory = directory
        self._clients: list[subprocess.Popen[str]] = []
        directory.mkdir(mode=0o755)
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)],
                check=True,
            )
        pam = directory / "pam.d"
        pam.mkdir(mode=0o755)
        command = f"{sys.executable} -I -m gnode.pam --config {config}"
        first = "session required pam_namespace.so\n" if namespace else ""
        for name in ("sshd", "other"):
            (pam / name).write_text(STACK.format(command=command, namespace=first))
        (directory / "namespace.conf").write_text("/dev/shm tmpfs tmpfs root\n")
        self.port = free_port()
        host = (directory / "host.pub").read_text()
        (directory / "known").write_text(f"[127.0.0.1]:{self.port} {host}")
        settings = directory / "sshd_config"
        settings.write_text(SETTINGS.format(port=self.port, directory=directory))
        PRIVILEGE_DIRECTORY.mkdir(exist_ok=True)
        mounted = f'mount --bind {pam} /etc/pam.d && exec "$@"'
        if namespace:
            # A /tmp whose mounts are seen elsewhere, of which pam_namespace does not know.
            shared = "mount --bind /tmp /tmp && mount --make-shared /tmp"
            mounted = (
                f"{shared} && mount --bind {directory}/namespace.conf {NAMESPACE} && {mounted}"
            )
        assert PROGRAM is not None
        words = [*users.wrapper().words, "sh", "-c", mounted, "sh", PROGRAM, "-D", "-e", "-f"]
        self.log = directory / "sshd.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*words, str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, MARKER: marker},
                start_new_session=True,
            )
        wait_until(self._answers, what="sshd to listen")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def options(self, port_option: str = "-p") -> list[str]:
        """Return the options with which ssh and its like log in here."""
        return [
            *("-F", "none", "-i", str(self.directory / "user"), port_option, str(self.port)),
            *("-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.directory}/known"),
        ]

    def command(self, user: User | str, *words: str, options: Sequence[str] = ()) -> list[str]:
        """Return the command that logs in as a user and runs something."""
        name = user if isinstance(user, str) else user.name
        return ["ssh", *self.options(), *options, f"{name}@127.0.0.1", *words]

    def run(
        self, user: User | str, *words: str, options: Sequence[str] = (), typed: str = ""
    ) -> Ran:
        """Log in as a user and run a command there, which reads what is typed."""
        done = subprocess.run(
            self.command(user, *words, options=options),
            input=typed,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def start(
        self, user: User, *words: str, options: Sequence[str] = ()
    ) -> "subprocess.Popen[str]":
        """Log in as a user and leave a command running; its output is a pipe."""
        made = subprocess.Popen(
            self.command(user, *words, options=options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._clients.append(made)
        return made

    def stop(self) -> None:
        """End sshd, and the clients that were started."""
        for client in self._clients:
            client.kill()
            client.communicate()
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(
    users: Users, directory: Path, config: Path, marker: str, *, namespace: bool = False
) -> Iterator[Sshd]:
    """Yield an sshd that sees the test's accounts.

    Args:
        namespace: pam_namespace gives each session a mount namespace of its own.
    """
    if PROGRAM is None or shutil.which("ssh") is None:
        pytest.skip("no sshd is installed (openssh-server)")
    if namespace and not NAMESPACE.exists():
        pytest.skip("pam_namespace is not installed")
    made = Sshd(directory, users, config, marker, namespace=namespace)
    try:
        yield made
    finally:
        made.stop()
