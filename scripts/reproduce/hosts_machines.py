"""Hosts in containers: each boots a systemd of its own, on one network that only they have."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

SUBNET = "10.83.0"
BOOT_S = 240.0
END_S = 30.0


def run(
    *words: str, check: bool = True, timeout_s: float = 600.0
) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine and return what it has printed."""
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=timeout_s)


class Network:
    """A bridge in a network namespace; nothing else is reached from it."""

    def __init__(self, scratch: Path) -> None:
        self.name = f"gsched-hosts-{os.getpid()}"
        self.capture = scratch / "traffic.pcap"
        run("ip", "netns", "add", self.name)
        self.path = f"/run/netns/{self.name}"
        for words in ("link add br0 type bridge", "link set br0 up", "link set lo up"):
            run("ip", "-n", self.name, *words.split())
        self._dump = subprocess.Popen(
            self.inside("tcpdump", "-i", "br0", "-U", "-s", "0", "-w", str(self.capture)),
            stderr=subprocess.DEVNULL,
        )

    def inside(self, *words: str) -> list[str]:
        """Return the command that runs a program in this network."""
        return ["nsenter", f"--net={self.path}", *words]

    def end_capture(self) -> bytes:
        """Return all that has been on the wire."""
        self._dump.send_signal(signal.SIGINT)
        self._dump.wait(END_S)
        return self.capture.read_bytes()

    def close(self) -> None:
        """Remove it."""
        if self._dump.poll() is None:
            self._dump.kill()
            self._dump.wait()
        run("ip", "netns", "del", self.name, check=False)


class Host:
    """A booted host: a copy of the bare system by an overlay, and an address."""

    def __init__(self, name: str, number: int, network: Network, base: Path, scratch: Path) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self.root = scratch / name / "root"
        self._network = network
        self._layers = {part: scratch / name / part for part in ("upper", "work")}
        for directory in (self.root, *self._layers.values()):
            directory.mkdir(parents=True)
        upper, work = self._layers.values()
        layers = f"lowerdir={base},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))
        self._console = (scratch / name / "console.log").open("wb")
        self._boot: subprocess.Popen[bytes] | None = None
        self._init = 0

    def write(self, path: str, text: str) -> None:
        """Write a file of the host."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def begin_boot(self, hosts: str) -> None:
        """Boot; ``wait_for_boot`` returns when that is done."""
        self.write("/etc/hostname", f"{self.name}\n")
        self.write("/etc/hosts", f"127.0.0.1 localhost\n{hosts}")
        self._boot = subprocess.Popen(
            self._network.inside(
                *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit"),
                *("--network-bridge=br0", f"--machine={self.name}", "-D", str(self.root)),
            ),
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=self._console,
        )

    def wait_for_boot(self) -> None:
        """Wait until systemd has started all, and give the host its address."""
        until = time.monotonic() + BOOT_S
        while time.monotonic() < until:
            time.sleep(0.2)
            if self._boot is None or self._boot.poll() is not None:
                break
            children = run("pgrep", "-P", str(self._boot.pid), check=False).stdout.split()
            self._init = int(children[0]) if children else 0
            if self._init and self("systemctl is-system-running", check=False) in _STARTED:
                for words in (f"addr add {self.address}/24 dev host0", "link set host0 up"):
                    self(f"ip {words}")
                return
        raise RuntimeError(f"{self.name} did not boot: see {self._console.name}")

    def run(
        self, script: str, *, user: str = "root", timeout_s: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of the shell as a user, in the home directory, as a login would."""
        if user != "root":
            script = f"runuser -u {user} -- sh -c {shlex.quote('cd && ' + script)}"
        enter = (
            "nsenter",
            "-t",
            str(self._init),
            "-a",
            "env",
            "-i",
            f"PATH={_PATH}",
            "LANG=C.UTF-8",
        )
        return run(*enter, "sh", "-c", script, check=False, timeout_s=timeout_s)

    def __call__(
        self, script: str, *, user: str = "root", check: bool = True, timeout_s: float = 180.0
    ) -> str:
        """Return what a script printed, or raise with its output."""
        ran = self.run(script, user=user, timeout_s=timeout_s)
        if check and ran.returncode != 0:
            raise CommandError(f"{self.name}$ {script}\n{ran.stdout}{ran.stderr}")
        return ran.stdout.strip()

    def close(self) -> None:
        """Power it off, and unmount its file system."""
        if self._boot is not None and self._boot.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self._init:
                    os.kill(self._init, signal.SIGRTMIN + 4)
            try:
                self._boot.wait(END_S)
            except subprocess.TimeoutExpired:
                self._boot.kill()
                self._boot.wait()
        self._console.close()
        run("umount", str(self.root), check=False)


class CommandError(Exception):
    """A command of a host failed; the text has the command and its output."""


_STARTED = {"running", "degraded"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
