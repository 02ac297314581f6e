"""Ranks that the agent starts before the launch: they wait, or the attempt is off."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.launching import wait_until
from tests.support.torchrun import ROOT, agent_command

TAKEN = 75
RANK = """
import os, pathlib, sys
from gsched import elastic
place = pathlib.Path(sys.argv[1])
rank = os.environ["RANK"]
if "--die" in sys.argv and rank == "1":
    sys.exit(7)
assert "MASTER_PORT" not in os.environ
(place / f"before-{rank}").touch()
elastic.ready()
names = ("MASTER_PORT", "OTHER", "GONE", "GSCHED_GATE", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
(place / f"after-{rank}").write_text(repr([os.environ.get(name) for name in names]))
"""


class Agent:
    """The agent of a prepared attempt with two ranks, and the node daemon that it talks to."""

    def __init__(self, place: pathlib.Path, *arguments: str) -> None:
        self.place = place
        self.report = place / "failure"
        self.listener = socket.socket(socket.AF_UNIX)
        folder = os.open(place, os.O_PATH)  # an address has 107 bytes at most
        self.listener.bind(f"/proc/self/fd/{folder}/elastic.sock")
        os.close(folder)
        self.listener.listen()
        self.listener.settimeout(60)
        script = place / "rank.py"
        script.write_text(RANK)
        command = agent_command(self.report, str(script), str(place), *arguments, ranks=2)
        self.port = command[command.index("--master-port") + 1]
        command[command.index("--master-port") + 1] = "0"
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "GSCHED_GATE": "stdin",
                "GSCHED_ELASTIC_SOCKET": str(place / "elastic.sock"),
                "GSCHED_JOB_NUMBER": "7",
                "GSCHED_ATTEMPT": "2",
                "MASTER_ADDR": "127.0.0.1",
                "CUDA_VISIBLE_DEVICES": "",
                "OTHER": "before",
                "GONE": "1",
            },
        )

    def ready(self) -> dict[str, Any]:
        """Return what the node daemon hears when all ranks wait."""
        channel, _ = self.listener.accept()
        with channel, channel.makefile() as lines:
            said = json.loads(lines.readline())
        return dict(said)

    def launch(self) -> None:
        """Open the gate, as a supervisor does."""
        environment = {"MASTER_PORT": self.port, "OTHER": "after", "CUDA_VISIBLE_DEVICES": "0,1"}
        words = {"environment": environment, "removed": ["GSCHED_GATE", "GONE"]}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()

    def shut(self) -> None:
        """Close the gate for good."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def seen(self, what: str) -> list[str]:
        """Return what the ranks have written."""
        return [path.read_text() for path in sorted(self.place.glob(f"{what}-*"))]

    def end(self) -> None:
        """Clear up."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.listener.close()


@pytest.fixture
def agent(tmp_path: pathlib.Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.end()


@pytest.mark.timeout(300)
def test_ranks_wait_until_the_launch_and_then_have_its_environment(agent: Agent) -> None:
    """All of them, and the node daemon hears when the last one has come."""
    assert agent.ready() == {"ready": {"version": 1, "job": 7, "attempt": 2}}
    assert len(agent.seen("before")) == 2
    time.sleep(0.3)
    assert agent.seen("after") == []

    agent.launch()

    assert agent.process.wait(60) == 0
    expected = repr([agent.port, "after", None, None, "2", "0,1"])
    assert agent.seen("after") == [expected, expected]
    assert not agent.report.exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_what_is_not_launched_ends_and_never_goes_on(agent: Agent, how: str) -> None:
    """When the supervisor has died, or when it is asked to end."""
    agent.ready()

    if how == "closed":
        agent.shut()
    else:
        agent.process.send_signal(signal.SIGTERM)

    assert agent.process.wait(60) == TAKEN
    assert "was not launched" in json.loads(agent.report.read_text())["message"]
    assert agent.seen("after") == []


@pytest.mark.timeout(300)
def test_a_rank_that_ends_at_its_gate_ends_all(tmp_path: pathlib.Path) -> None:
    """The attempt is tried again: no rank has trained."""
    agent = Agent(tmp_path, "--die")
    try:
        assert agent.process.wait(120) == TAKEN
        said = json.loads(agent.report.read_text())
        assert said["port_taken"] is True
        assert (
            "rank 1 has ended before elastic.ready() returned: exited with code 7"
            in said["message"]
        )
        assert agent.seen("after") == []
    finally:
        agent.end()


@pytest.mark.timeout(300)
def test_a_port_that_is_taken_at_the_launch_lets_no_rank_go_on(agent: Agent) -> None:
    """As in a cold start, where it is found before ranks are started."""
    agent.ready()
    with socket.create_server(("127.0.0.1", int(agent.port))):
        agent.launch()
        assert agent.process.wait(60) == TAKEN

    assert f"the rendezvous port {agent.port} is taken" in agent.report.read_text()
    wait_until(lambda: agent.seen("after") == [], "no rank to go on")
