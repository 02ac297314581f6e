"""A PostgreSQL server of its own for a test, on a Unix socket."""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import wait_until
from tests.support.processes import PATIENCE_S

#: PostgreSQL does not run as root; Debian's package makes this account.
ACCOUNT = "postgres"


class Postgres:
    """A server; its directory belongs to the account that it runs as.

    Args:
        primary: of which it is a replica; None: it is a server of its own.
        fsync: whether it flushes what it commits to disk, as none must that only tests use.
    """

    def __init__(
        self,
        directory: Path,
        programs: Path,
        account: str | None,
        primary: "Postgres | None" = None,
        *,
        fsync: bool = False,
    ) -> None:
        self._fsync = fsync
        self.directory = directory
        self._programs = programs
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None
        data = str(directory / "data")
        if primary is None:
            self._run("initdb", "-A", "trust", "-U", "gsched", "-N", "-D", data)
        else:
            options = ("-h", str(primary.directory), "-U", "gsched", "-R", "-c", "fast", "-N")
            self._run("pg_basebackup", *options, "-D", data)

    @property
    def url(self) -> str:
        """Return the URL of its database."""
        return f"postgresql:///postgres?user=gsched&host={self.directory}"

    @property
    def process(self) -> psutil.Process:
        """Return the process of the server that runs."""
        assert self._process is not None, "it has started"
        return psutil.Process(self._process.pid)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            user=self._account,
            check=True,
            capture_output=True,
            cwd=self.directory,
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.directory),
            "fsync": "on" if self._fsync else "off",
        }
        self._process = subprocess.Popen(
            [
                *(str(self._programs / "postgres"), "-D", str(self.directory / "data")),
                *(f"--{name}={value}" for name, value in options.items()),
            ],
            user=self._account,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.directory,
        )

        def answers() -> bool:
            ready = [str(self._programs / "pg_isready"), "-h", str(self.directory), "-q"]
            return subprocess.run(ready, check=False).returncode == 0

        wait_until(answers, what="PostgreSQL to answer")

    def stop(self) -> None:
        """Stop it at once; all that it has acknowledged is there after a start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE_S)
        self._process = None

    def replica(self, directory: Path) -> "Postgres":
        """Return a synchronous replica, which has started: no commit is acknowledged without it."""
        directory.mkdir()
        if self._account is not None:
            shutil.chown(directory, self._account)
        made = Postgres(directory, self._programs, self._account, self)
        made.start()
        self.psql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.psql("SELECT pg_reload_conf()")
        state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: self.psql(state) == "1", what="the synchronous replica")
        return made

    def promote(self) -> None:
        """Make a replica a primary, which waits for no replica: as the administrators' guide."""
        self._run("pg_ctl", "promote", "-w", "-D", str(self.directory / "data"))
        self.psql("ALTER SYSTEM SET synchronous_standby_names = ''")
        self.psql("SELECT pg_reload_conf()")

    def psql(self, statement: str) -> str:
        """Return what a statement gives."""
        done = subprocess.run(
            ["psql", "-X", "-A", "-t", "-c", statement, self.url],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()


@contextmanager
def postgres_server(*, fsync: bool = False) -> Iterator[Postgres]:
    """Make a server, which flushes to disk or not; skip the test where PostgreSQL is missing."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL's server is not installed (Debian: postgresql)")
    account = None
    directory = Path(tempfile.mkdtemp(prefix="gsched-pg-"))
    if os.getuid() == 0:
        try:
            entry = pwd.getpwnam(ACCOUNT)
        except KeyError:
            pytest.skip(f"PostgreSQL does not run as root, and there is no account {ACCOUNT}")
        account = ACCOUNT
        os.chown(directory, entry.pw_uid, entry.pw_gid)
    server = Postgres(directory, Path(found[-1]).parent, account, fsync=fsync)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
