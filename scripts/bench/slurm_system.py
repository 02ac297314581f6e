"""Slurm as a system under measurement: one node on loopback, state in a temporary directory.

Nothing of an installed configuration is read or changed: munged, slurmctld and slurmd are started
with files of our own. The tasks are one job array, which is Slurm's fastest way.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from missing import NotHereError

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
PLACES = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
SCRIPT = "#!/bin/sh\n:\n"
START_S = 30.0
LOOK_S = 0.1  # each look is a process and a connection; an array takes seconds
CONFIG = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
MaxArraySize={most}
MaxJobCount={most}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=bench Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A controller and one node."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def measure(self, tasks: int) -> float:
        """Return the seconds from before ``sbatch --array`` until ``squeue`` shows no job."""
        started_s = time.monotonic()
        self.ask(
            *("sbatch", "--parsable", f"--array=0-{tasks - 1}", "-n", "1", "-D", "/"),
            *("-o", "/dev/null", "-e", "/dev/null"),
            script=SCRIPT,
        )
        while self.ask("squeue", "--noheader"):
            time.sleep(LOOK_S)
        return time.monotonic() - started_s

    def ask(self, *command: str, script: str = "") -> str:
        """Return what one of Slurm's commands prints; ``script`` is its standard input."""
        done = subprocess.run(
            command,
            check=True,
            env=self._environment,
            input=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        return done.stdout.strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _configure(directory: Path, *, cpus: int, tasks: int) -> Path:
    (directory / "state").mkdir()
    (directory / "spool").mkdir()
    key = directory / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    path = directory / "slurm.conf"
    path.write_text(
        CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            user=pwd.getpwuid(os.getuid()).pw_name,
            controller=_free_port(),
            daemon=_free_port(),
            directory=directory,
            most=2 * tasks + 1000,  # ended jobs count until they are forgotten
            cpus=cpus,
        )
    )
    return path


def _daemons(directory: Path, config: Path) -> list[list[str]]:
    munge = [f"--{name}-file={directory}/munge.{name}" for name in ("pid", "log", "seed")]
    return [
        [
            *("munged", "--foreground", "--force", f"--socket={directory}/munge.sock", *munge),
            f"--key-file={directory}/munge.key",
        ],
        ["slurmctld", "-D", "-c", "-f", str(config)],
        ["slurmd", "-D", "-f", str(config)],
    ]


def _stop(process: "subprocess.Popen[bytes]") -> None:
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        if child.is_running():
            child.kill()


@contextmanager
def running(*, cpus: int, tasks: int) -> Iterator[Slurm]:
    """Yield a Slurm of one node.

    Args:
        cpus: of the node.
        tasks: that each measurement will have, at most.

    Raises:
        NotHereError: it is not installed, or does not start here.
    """
    missing = [name for name in PROGRAMS if shutil.which(name, path=PLACES) is None]
    if missing:
        raise NotHereError(f"not installed: no {', '.join(missing)} (Debian: slurm-wlm, munge)")
    with ExitStack() as stack:
        # munged insists on a socket that everybody can reach, through safe directories.
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/run/"))
            if os.access("/run", os.W_OK)
            else stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-"))
        )
        directory.chmod(0o755)
        config = _configure(directory, cpus=cpus, tasks=tasks)
        environment = os.environ | {"PATH": PLACES, "SLURM_CONF": str(config)}
        slurm = Slurm(environment)
        for command in _daemons(directory, config):
            log = stack.enter_context((directory / f"{command[0]}.out").open("wb"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(_stop, process)
            time.sleep(0.5)  # munged before those who need it
            if process.poll() is not None:
                said = (directory / f"{command[0]}.out").read_text(errors="replace")
                raise NotHereError(f"{command[0]} does not start: {said.strip()[-300:]}")
        _await_node(slurm)
        yield slurm


def _await_node(slurm: Slurm) -> None:
    give_up_s = time.monotonic() + START_S
    state = ""
    while time.monotonic() < give_up_s:
        try:
            state = slurm.ask("sinfo", "--noheader", "-o", "%T")
        except subprocess.CalledProcessError as error:
            state = str(error)
        if state == "idle":
            return
        time.sleep(0.2)
    raise NotHereError(f"its node does not come up in {START_S:.0f} s: {state}")
