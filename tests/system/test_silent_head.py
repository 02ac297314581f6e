"""A head that is stopped: commands say so, also in a pipe, and the doctor finds it in seconds."""

import os
import pty
import signal
import subprocess
import sys

import psutil

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import command_environment, run_command
from tests.support.processes import PATIENCE_S


def test_a_stopped_head_is_told_and_found(cluster: Cluster) -> None:
    cluster.start_head()
    head = psutil.Process(cluster.head_process.pid)
    head.send_signal(signal.SIGSTOP)
    wait_until(lambda: head.status() == psutil.STATUS_STOPPED, what="the stopped head")
    terminal, its_side = pty.openpty()
    try:
        waiting, piped = (
            subprocess.Popen(
                [sys.executable, "-c", "from gsched.cli.commands.gstat import main; main()"],
                stdout=subprocess.PIPE,
                stderr=where,
                env=command_environment(cluster.socket),
            )
            for where in (its_side, subprocess.PIPE)
        )
        doctor = run_command("gsched", "doctor", head=cluster.socket)
        told = os.read(terminal, 4096).decode()
        assert piped.stderr is not None
        told_in_pipe = piped.stderr.readline().decode()
    finally:
        head.send_signal(signal.SIGCONT)
    listed, _ = waiting.communicate(timeout=PATIENCE_S)
    listed_in_pipe, _ = piped.communicate(timeout=PATIENCE_S)

    words = "gstat: the head has not answered for 5 s; waiting up to 60 s."
    assert told.startswith(words)
    assert told_in_pipe.startswith(words)
    assert (waiting.returncode, piped.returncode) == (0, 0), (listed, listed_in_pipe)
    assert doctor.status == 1
    assert f"process {head.pid} is stopped by a signal (SIGSTOP)" in doctor.stdout
    assert f"-> kill -CONT {head.pid}" in doctor.stdout
