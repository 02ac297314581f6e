"""A rendezvous port that is somebody else's, and ranks of others that come to it (I17)."""

import contextlib
import pathlib
import secrets
import socket
import subprocess
from collections.abc import Iterator

import pytest

from gsched.client import new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.launching import Launcher
from tests.support.torch_python import torch_python

AGENT = pathlib.Path(__file__).parents[2] / "gnode" / "supervisor" / "torchrun_agent.py"
SCRIPT = "import os; print(os.environ['RANK'], os.environ['TORCHELASTIC_RUN_ID'], flush=True)\n"


@pytest.fixture
def launcher(tmp_path: pathlib.Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path / "state")
    yield launcher
    launcher.close()


@contextlib.contextmanager
def listening(port: int = 0) -> Iterator[int]:
    """Listen on a port as any program may; give its number."""
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def claimed() -> Iterator[int]:
    """Claim a free port as the agent of another cluster does, before its rank 0 listens there."""
    with listening() as port:
        pass
    with socket.socket(socket.AF_UNIX) as claim:
        claim.bind(f"\0gsched-port-{port}")
        yield port


def free_port() -> int:
    """Return a port on which nothing listens."""
    with listening() as port:
        return port


def command(report: pathlib.Path, script: pathlib.Path, port: int, **said: object) -> list[str]:
    """Return the command of a node's agent."""
    options = {"nnodes": 1, "node-rank": 0, "rdzv-id": "1.1.ours", **said}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    words += ["--nproc-per-node", "1", "--max-restarts", "0"]
    return [
        torch_python(),
        str(AGENT),
        "--report",
        str(report),
        "--grace",
        "30",
        "--",
        *words,
        str(script),
    ]


@pytest.mark.parametrize("taken", [listening, claimed])
@pytest.mark.parametrize("elastic", [True, False])
def test_i17_a_port_of_somebody_else_is_told_before_a_rank_starts(
    launcher: Launcher, taken: object, *, elastic: bool
) -> None:
    """By a program that listens there, and by a training that does not yet."""
    script = launcher.state / "train.py"
    script.write_text(SCRIPT)
    report = launcher.state / "user" / "1.1" / "report"
    with taken() as port:  # type: ignore[operator] # one of the two above
        task = launcher.task(1, command(report, script, port), failure_report=str(report))
        if elastic:
            task["env"] |= {"GSCHED_ELASTIC_SOCKET": "@nobody"}
        launcher.launch(task)
        record = launcher.exit(1)

    assert (record["kind"], record["port_taken"]) == ("launch_failed", True)
    assert f"the rendezvous port {port} is taken" in str(record["message"])
    assert "exit_code" not in record
    assert launcher.output(1) == ""


def test_i17_agents_of_another_attempt_are_not_let_in(tmp_path: pathlib.Path) -> None:
    """Nobody's ranks start before all nodes of this very attempt are there."""
    script, port = tmp_path / "train.py", free_port()
    script.write_text(SCRIPT)
    environment = {"PATH": "/usr/bin:/bin", "GSCHED_ELASTIC_SOCKET": "@nobody"}
    agents: dict[str, subprocess.Popen[str]] = {}

    def start(name: str, **said: object) -> None:
        words = command(tmp_path / f"report-{name}", script, port, nnodes=2, **said)
        agents[name] = subprocess.Popen(
            words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    try:
        start("stale", **{"node-rank": 1, "rdzv-id": "1.0.ours"})
        start("other", **{"node-rank": 1, "rdzv-id": "1.1.theirs"})
        start("first")
        with socket.create_connection(("127.0.0.1", wait_for(port))) as garbage:
            garbage.sendall(b"\x00\xff" * 200)
            start("second", **{"node-rank": 1})
            said = {name: agents[name].communicate(timeout=60)[0] for name in ("first", "second")}
        still = {name: agents[name].poll() for name in ("stale", "other")}
    finally:
        for agent in agents.values():
            agent.kill()
    rest = {name: agents[name].communicate()[0] for name in ("stale", "other")}

    assert said == {"first": "0 1.1.ours\n", "second": "1 1.1.ours\n"}
    assert still == {"stale": None, "other": None}
    assert rest == {"stale": "", "other": ""}


def wait_for(port: int) -> int:
    """Return the port when somebody listens there."""

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_until(answers, 60.0, what=f"somebody at port {port}")
    return port


def test_i17_the_next_attempt_has_another_port_and_nobody_is_blamed(cluster: Cluster) -> None:
    """Two ports, one of which is taken: whichever comes first, the job runs on the other one."""
    torch_python()  # or skip
    first = 31_000 + secrets.randbelow(500) * 2
    cluster.head_settings |= {"master_port_first": first, "master_port_last": first + 1}
    cluster.start_head()
    cluster.start_node("n1")
    script = cluster.jobs / "train.py"
    script.write_text("import os; print('port', os.environ['MASTER_PORT'])\n")
    attempts: list[int] = []
    for _ in range(2):  # attempts of neighbouring jobs begin at different ones of the two
        with listening(first):
            job = new_job(
                name="train",
                workdir=str(cluster.jobs),
                launch="torchrun",
                python=torch_python(),
                arguments=(str(script),),
                environment={"PATH": "/usr/bin:/bin"},
                movable=True,
                join="oe",
            )
            number = str(cluster.head.submit([job]).results[0].id)
            wait_until(lambda: cluster.head.job(number).row.state == "done", 90.0)  # noqa: B023 - it is waited for here
        story = cluster.head.job(number)
        assert story.row.outcome is not None
        assert story.row.outcome.exit_code == 0, story.row.outcome
        attempts.append(story.row.attempt)
        output = (cluster.jobs / f"train.o{number}").read_text()
        assert f"port {first + 1}" in output
        if story.row.attempt > 1:
            (told,) = [event.text for event in story.events if event.kind == "JobRequeued"]
            assert f"the rendezvous port {first} is taken" in told

    assert sorted(attempts) == [1, 2]
