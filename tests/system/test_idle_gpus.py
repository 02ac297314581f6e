"""A job that does not use its GPUs, on real daemons with a fake NVML: warned, shown, held."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import wait_until
from tests.support.commands import run_command
from tests.support.mailbox import MailServer, serving
from tests.support.nvml_machine import build_nvml
from tests.system.test_outside_gpu_use import Gpus

pytestmark = pytest.mark.timeout(240)

NODE = "[idle_gpus]\nwindow_s = 3.0\ngrace_s = 0.0\n"
HEAD = """
[idle_gpus]
action = "hold"
warn_s = 1.0
warn_held_s = 1.0
act_s = {act_s}

[notify]
smtp_host = "127.0.0.1"
smtp_port = {port}
mail_domain = "site.test"
retry_s = 0.1
"""

#: Uses a CPU now and then, so that its node reports often.
COMPUTES = "while :; do sleep 2; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; done"


@pytest.fixture
def mails() -> Iterator[MailServer]:
    with serving(MailServer()) as server:
        yield server


@pytest.fixture
def gpus(tmp_path: Path, mails: MailServer, request: pytest.FixtureRequest) -> Iterator[Gpus]:
    """Return a node; a parameter is the time after which an idle job is held, seconds."""
    act_s = getattr(request, "param", 5.0)
    directory = tmp_path / "nvml"
    directory.mkdir()
    made = Gpus(tmp_path, build_nvml(directory), HEAD.format(port=mails.port, act_s=act_s))
    made.start(NODE)
    yield made
    made.stop()


def shown(gpus: Gpus, *words: str) -> str:
    return run_command(*words, head=str(gpus.cluster.socket)).stdout


def test_an_idle_job_is_warned_shown_and_held(gpus: Gpus, mails: MailServer) -> None:
    gpus.work(60, 0)
    job = gpus.submit(COMPUTES, gpus=2)
    gpus.put({gpus.process_of(job): 1})
    wait_until(lambda: mails.messages, 60.0, what="the mail")
    subject = mails.messages[0][1]["Subject"]
    assert subject == f"gsched: job {job} gpu does not use its GPUs"
    error_file = gpus.cluster.jobs / f"gpu.e{job}"
    wait_until(lambda: "1 of 2 GPUs idle since " in error_file.read_text(), what="the line")

    assert "1 of 2 GPUs idle since " in shown(gpus, "gstat", "--why", str(job))
    assert "idle since " in shown(gpus, "gstat", "-f", str(job))
    assert "1 of 2 GPUs idle since " in shown(gpus, "gseff", str(job))
    line = shown(gpus, "gstat", "--format", "{gpus_idle}|{short_reason}", str(job)).splitlines()
    assert line[-1] == "1|1 GPU idle"
    assert "\t1:idle\t" in shown(gpus, "gnodes")
    details = shown(gpus, "gnodes", "n1")
    assert f"gpu_1_idle = job {job}, holds memory, idle since " in details

    os.kill(gpus.cluster.head_process.pid, signal.SIGKILL)
    gpus.cluster.head_process.wait()
    gpus.cluster.start_head()
    gpus.work(0, 0)
    wait_until(lambda: gpus.state(job) == "held", 120.0, what="the hold")

    wait_until(lambda: len(mails.messages) > 2, what="the third mail")
    subjects = [message["Subject"] for _, message in mails.messages]
    assert subjects[1:] == [subject, f"gsched: job {job} gpu was stopped: its GPUs were idle"]
    assert "the job is held at " in error_file.read_text()
    assert "held by user: 2 GPUs idle since " in shown(gpus, "gstat", "--why", str(job))
    kinds = [event.kind for event in gpus.cluster.head.job(job).events]
    counts = [kinds.count(kind) for kind in ("GpusIdleWarned", "IdleGpusReclaimed", "GpusIdled")]
    assert counts == [2, 1, 1], "a head that restarts does not warn again"
    usage = gpus.cluster.head.job(job).attempts[-1].usage
    assert usage is not None
    assert usage.gpu_idle_s > 6.0


@pytest.mark.parametrize("gpus", [600.0], indirect=True)
def test_a_node_daemon_that_restarts_begins_its_window_anew(gpus: Gpus) -> None:
    job = gpus.submit("sleep 600", gpus=1)
    reason = "1 of 1 GPU idle since "
    wait_until(lambda: reason in shown(gpus, "gstat", "--why", str(job)), 60.0, what="its reason")
    assert "\t0:empty\t" in shown(gpus, "gnodes")
    gpus.work(90, 90)
    gpus.cluster.kill_node("n1")
    gpus.start(NODE)
    wait_until(lambda: gpus.cluster.head.job(job).row.live is not None, 60.0, what="its use")

    def has_ended() -> bool:
        return "IdleWarningEnded" in [each.kind for each in gpus.cluster.head.job(job).events]

    wait_until(has_ended, what="the end of the warning")
    assert gpus.state(job) == "running"
