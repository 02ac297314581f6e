"""Stage-in and stage-out between hosts without a shared file system, beside scp and tar over ssh.

A login host and a node have home directories of their own (`tests.support.apart`) and reach the
head over TLS. Files are copied from the login host's to a disk of the node, and back: one large
file, files of 1 MiB, and small ones. A job that stages in, or out, is timed from its submission to
its end, less what a job takes that stages nothing; ``scp -r`` and ``tar | ssh`` copy the same files
between the same directories through an sshd on loopback. Output is what a job prints of the large
file: it returns from the spool of the node, and is compared with scp, too. Only root can do that.
The load average stands beside wall-clock times, and compared figures are of one round. CPU times
are those of head, gnodes, the job and the owner's processes, or of both ends of ssh.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tests.support.apart import Apart, made_apart
from tests.support.cluster import wait_until
from tests.support.sshd import PROGRAM, free_port

SETTINGS: Final = """ListenAddress 127.0.0.1
Port {port}
HostKey {place}/host
AuthorizedKeysFile {place}/user.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""
MIB: Final = 1024 * 1024
LIMIT_S: Final = 900.0


class Took(NamedTuple):
    """What something took, seconds."""

    wall_s: float
    cpu_s: float

    def less(self, other: "Took") -> "Took":
        """Return what it took more than something else."""
        return Took(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


def timed(action: Callable[[], object], processes: Callable[[], Iterable[int]]) -> Took:
    """Return what something takes, with the CPU time of processes and their ended children."""
    cpu_s, begin_s = _cpu_s(processes()), time.monotonic()
    action()
    wall_s = time.monotonic() - begin_s
    return Took(wall_s, _cpu_s(processes()) - cpu_s)


def _cpu_s(processes: Iterable[int]) -> float:
    found = 0
    for pid in processes:
        with suppress(OSError):
            _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
            found += sum(map(int, fields.split()[11:15]))
    return found / os.sysconf("SC_CLK_TCK")


class Ssh:
    """An sshd on loopback for root, with the files of the login host, and copies through it.

    Args:
        place: a directory for its files.
        namespace: the mount namespace of the login host. A target below /proc/PID/root would not
            do: the sftp server resolves that link to "/".
    """

    def __init__(self, place: Path, namespace: str) -> None:
        for name in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
            subprocess.run(words, check=True)
        self._port = str(free_port())
        settings = place / "sshd_config"
        settings.write_text(SETTINGS.format(port=self._port, place=place))
        Path("/run/sshd").mkdir(exist_ok=True)
        assert PROGRAM is not None, "openssh-server is installed"
        self._log = (place / "sshd.log").open("wb")
        self._process = subprocess.Popen(
            ["nsenter", f"--mount={namespace}", PROGRAM, "-D", "-e", "-f", str(settings)],
            stderr=self._log,
        )
        self._options = [
            *("-F", "none", "-i", str(place / "user"), "-o", "BatchMode=yes", "-o"),
            *("StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={place}/known"),
        ]
        wait_until(lambda: self._run("true").returncode == 0, what="sshd to answer")

    def timed(self, action: Callable[[Path, Path], None], source: Path, target: Path) -> Took:
        """Return what a copy takes."""
        return timed(lambda: action(source, target), self._both_ends)

    def _both_ends(self) -> list[int]:
        server = psutil.Process(self._process.pid)
        return [os.getpid(), server.pid, *(each.pid for each in server.children(recursive=True))]

    def _run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        ssh = ["ssh", *self._options, "-p", self._port, "root@127.0.0.1", *words]
        return subprocess.run(ssh, capture_output=True, check=False)

    def scp(self, source: Path, target: Path) -> None:
        """Copy a file or directory with scp."""
        words = ["scp", "-qrp", *self._options, "-P", self._port, str(source)]
        subprocess.run([*words, f"root@127.0.0.1:{target}"], check=True)

    def tar(self, source: Path, target: Path) -> None:
        """Copy a file or directory with tar over ssh."""
        ssh = " ".join(["ssh", *self._options, "-p", self._port, "root@127.0.0.1"])
        pack = f"tar -C {source.parent} -cf - {source.name}"
        unpack = f"mkdir -p {target} && tar -C {target} -xf -"
        subprocess.run(["sh", "-c", f"{pack} | {ssh} '{unpack}'"], check=True)

    def close(self) -> None:
        """End sshd."""
        self._process.kill()
        self._process.wait()
        self._log.close()


class Staging:
    """The cluster, and what is copied in it.

    Args:
        apart: of hosts.
        disk: a directory of the node's disk.
    """

    def __init__(self, apart: Apart, disk: Path) -> None:
        self._apart = apart
        self._disk = disk
        self.empty = Took(0.0, 0.0)
        self.home = apart.on("l1", apart.home)
        self.ssh = Ssh(disk, apart.namespace("l1"))

    def make(self, name: str, files: int, size_bytes: int) -> Path:
        """Make files of random bytes on the login host."""
        top = self.home / name
        top.mkdir()
        for number in range(files):
            with (top / f"file{number}").open("wb") as file:
                for begin in range(0, size_bytes, MIB):
                    file.write(os.urandom(min(MIB, size_bytes - begin)))
        for path in (top, *top.iterdir()):
            os.chown(path, self._apart.alice.uid, self._apart.alice.gid)
        return top

    def timed(self, *words: str) -> Took:
        """Return what a job takes to its end, with all that returns."""
        return timed(lambda: self._run(*words), self._apart.cluster.pids)

    def _run(self, *words: str) -> None:
        job = self._apart.submit(*words, host="l1")
        wait_until(
            lambda: self._apart.cluster.head.job(job).row.state == "done", LIMIT_S, what="its end"
        )
        row = self._apart.cluster.head.job(job).row
        assert row.outcome is not None, "it is done"
        assert (row.outcome.exit_code, row.outcome.message) == (0, ""), row
        wait_until(lambda: self._apart.outboxes() == [], LIMIT_S, what="its files")

    def round(self, name: str) -> dict[str, Took]:
        """Copy a directory in each way; return what that takes."""
        source, far, back = self.home / name, self._disk / "far", self.home / "back"
        found: dict[str, Took] = {}
        found["stage-in"] = self.timed("--stage-in", name, "--", "true").less(self.empty)
        found["scp in"] = self.ssh.timed(self.ssh.scp, source, far)
        shutil.rmtree(far)
        found["tar in"] = self.ssh.timed(self.ssh.tar, source, far)
        made = f"cp -r {far}/{name} back"
        local = self.timed("--", "sh", "-c", made)
        found["stage-out"] = self.timed("--stage-out", "back", "--", "sh", "-c", made).less(local)
        shutil.rmtree(back)
        if len(os.listdir(far / name)) == 1:
            printed = self.timed("-N", "printed", "--", "cat", f"{far}/{name}/file0")
            found["output"] = printed.less(self.empty)
            for each in self.home.glob("printed.*"):
                each.unlink()
        target = self._apart.home / "back"
        found["scp out"] = self.ssh.timed(self.ssh.scp, far / name, target)
        shutil.rmtree(back)
        found["tar out"] = self.ssh.timed(self.ssh.tar, far / name, target)
        for each in (back, far):
            shutil.rmtree(each)
        return found


def _print_rounds(rounds: list[dict[str, Took]]) -> None:
    for key in rounds[0]:
        times = [each[key].wall_s for each in rounds]
        spread = f"{min(times):.2f} to {max(times):.2f}"
        cpu_s = statistics.median(each[key].cpu_s for each in rounds)
        median_s = statistics.median(times)
        print(f"  {key:10} {median_s:8.2f} s  ({spread}), CPU {cpu_s:.2f} s", flush=True)
    for key, scp in (("stage-in", "in"), ("stage-out", "out"), ("output", "out")):
        if key not in rounds[0]:
            continue
        pairs = [(each[key], each[f"scp {scp}"]) for each in rounds]
        wall = statistics.median(own.wall_s / other.wall_s for own, other in pairs)
        cpu = statistics.median(own.cpu_s / other.cpu_s for own, other in pairs)
        print(f"  {key} takes {wall:.2f} times as long as scp, and {cpu:.2f} times its CPU time")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=1024, help="size of the large file, MiB")
    parser.add_argument("--medium", type=int, default=1000, help="number of files of 1 MiB")
    parser.add_argument("--files", type=int, default=10_000, help="number of files of 4 kB")
    stated = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="staging-") as place, made_apart("bench") as apart:
        apart.start_host("l1", role="login", size=f"{3 * max(stated.large, stated.medium) + 512}m")
        apart.start_host("n1")
        staging = Staging(apart, Path(place))
        os.chmod(place, 0o755)
        try:
            empty = sorted(staging.timed("--", "true") for _ in range(5))
            staging.empty = empty[len(empty) // 2]
            print(f"a job that stages nothing: {staging.empty.wall_s:.2f} s")
            for name, what, files, size_bytes in (
                ("large", f"one file of {stated.large} MiB", 1, stated.large * MIB),
                ("medium", f"{stated.medium} files of 1 MiB", stated.medium, MIB),
                ("small", f"{stated.files} files of 4 kB", stated.files, 4096),
            ):
                if not files or not size_bytes:
                    continue
                made = staging.make(name, files, size_bytes)
                rounds = [staging.round(name) for _ in range(stated.rounds)]
                print(f"{what}, load {os.getloadavg()[0]:.1f}")
                _print_rounds(rounds)
                shutil.rmtree(made)
        finally:
            staging.ssh.close()


if __name__ == "__main__":
    main()
