"""Two torchrun agents on loopback under real supervisors: who failed first, and how.

Each as torchrun starts it, and as elastic training jobs get their ranks: from the agent alone.
Where the start is not what is tested, the agents, and the ranks that they start, are forks.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.forks import training_server
from tests.support.launching import Launcher
from tests.support.ports import free_port
from tests.support.torch_python import TORCH_START, torch_python

#: In one worker with all that takes the server of forks with torch for its jobs.
pytestmark = pytest.mark.xdist_group("moves")

AGENT = pathlib.Path(__file__).parents[2] / "gnode" / "supervisor" / "torchrun_agent.py"
NEIGHBOURS = ("record", "output", "errors", "kernel")

TRAIN = f"""
import os, signal, sys
import torch, torch.distributed as dist
assert not any(name in sys.modules for name in {NEIGHBOURS!r})
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == sys.argv[3], "it was started by the other"
on_node = int(os.environ["LOCAL_WORLD_SIZE"])
assert os.environ["GROUP_RANK"] == str(int(os.environ["RANK"]) // on_node)
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(1)
for step in range(5):
    dist.all_reduce(value)
    value /= dist.get_world_size()
    if step == 2 and rank == int(sys.argv[2]):
        exec(sys.argv[1])
dist.barrier()
sys.stdout.write(f"{{rank}} of {{dist.get_world_size()}} sum {{float(value)}}\\n")
dist.destroy_process_group()
"""


@pytest.fixture
def launcher(tmp_path: pathlib.Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path / "state")
    yield launcher
    launcher.close()


@pytest.fixture
def forking(tmp_path: pathlib.Path) -> Iterator[Launcher]:
    """Return a launcher whose agents find torch in memory."""
    launcher = Launcher(tmp_path / "state", server=training_server())
    yield launcher
    launcher.close()


@pytest.fixture(params=["plain", "elastic"])
def training(request: pytest.FixtureRequest) -> str:
    """Return which training it is."""
    return str(request.param)


def start_two(
    launcher: Launcher,
    code: str,
    rank: int,
    *,
    elastic: bool,
    ranks: int = 2,
    options: tuple[str, ...] = (),
) -> None:
    """Start one training on two pretended nodes; jobs 1 and 2 are its parts.

    Args:
        code: run by ``rank`` in the third step.
        elastic: it can be moved.
        ranks: on each node.
        options: for torchrun, by the user.
    """
    script = launcher.state / "train.py"
    script.write_text(TRAIN)
    port = free_port()
    python = torch_python()
    for node_rank in (0, 1):
        report = str(launcher.state / "user" / f"{node_rank + 1}.1" / "report")
        rendezvous = [
            "--nnodes",
            "2",
            "--node-rank",
            str(node_rank),
            "--nproc-per-node",
            str(ranks),
        ]
        rendezvous += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        rendezvous += ["--rdzv-id", "1.1", "--max-restarts", "0", *options]
        argv = [python, str(AGENT), "--report", report, "--grace", "10", "--"]
        argv += [*rendezvous, "--", str(script)]
        by_torchrun = not elastic or bool(options)
        task = launcher.task(
            node_rank + 1,
            [*argv, code, str(rank), str(by_torchrun)],
            failure_report=report,
            grace_s=10,
        )
        if elastic:
            task["env"] |= {"GSCHED_ELASTIC_SOCKET": "@nobody"}
        task["env"] |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        task["env"] |= {"PYTHONPATH": TORCH_START}
        launcher.launch(task)


def first_failure(launcher: Launcher) -> dict[str, Any]:
    """Return the record of the part that failed first, as the head would find it."""
    records = [launcher.exit(job) for job in (1, 2)]
    assert all("failed_s" in record for record in records), launcher.output(1, "e")
    return min(records, key=lambda record: float(record["failed_s"]))


@pytest.mark.timeout(300)
def test_two_agents_train_together(launcher: Launcher, training: str) -> None:
    start_two(launcher, "pass", 0, elastic=training == "elastic")

    assert [launcher.exit(job)["exit_code"] for job in (1, 2)] == [0, 0], launcher.output(1, "e")
    lines = sorted((launcher.output(1) + launcher.output(2)).splitlines())
    assert lines == [f"{rank} of 4 sum 1.0" for rank in range(4)]
    assert sorted(line[0] for line in launcher.output(1).splitlines()) == ["0", "1"]


@pytest.mark.timeout(300)
def test_d8_a_rank_killed_by_a_signal(forking: Launcher, training: str) -> None:
    start_two(
        forking,
        "os.kill(os.getpid(), signal.SIGSEGV)",
        1,
        elastic=training == "elastic",
        ranks=1,
    )

    record = first_failure(forking)

    assert (record["job"], record["rank"]) == (2, 1)
    assert (record["kind"], record["signal"]) == ("signalled", 11)
    assert "rank 1" in record["message"]
    assert "exit_code" not in record


@pytest.mark.timeout(300)
def test_a_stopped_training_is_not_a_failure_of_a_rank(forking: Launcher, training: str) -> None:
    start_two(
        forking,
        "print('up', flush=True); import time; time.sleep(1000)",
        0,
        elastic=training == "elastic",
        ranks=1,
    )
    forking.wait_for_output(1, "up")

    for job in (1, 2):
        forking.order(job, {"do": "stop", "reason": "delete", "grace_s": 30})
    records = [forking.exit(job) for job in (1, 2)]

    assert [record["stop_reason"] for record in records] == ["delete", "delete"]
    assert not any("rank" in record for record in records)


@pytest.mark.timeout(300)
def test_d8_the_exit_code_and_the_message_of_the_first_rank_count(
    forking: Launcher, training: str
) -> None:
    """The message as scripts write it that use torch's record, and gsched.elastic."""
    words = """
import json
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "no such colour", "extraInfo": {"timestamp": "1"}}}, file)
os._exit(3)
"""
    start_two(forking, words, 3, elastic=training == "elastic")

    record = first_failure(forking)

    assert (record["job"], record["rank"]) == (2, 3)
    assert (record["kind"], record["exit_code"]) == ("exited", 3)
    assert record["message"].endswith("rank 3: no such colour")


@pytest.mark.timeout(300)
def test_an_elastic_training_with_options_for_torchrun_gets_torchrun(forking: Launcher) -> None:
    start_two(forking, "pass", 0, elastic=True, ranks=1, options=("--tee", "3"))

    assert [forking.exit(job)["exit_code"] for job in (1, 2)] == [0, 0], forking.output(1, "e")
    assert "[default0]" in forking.output(1) + forking.output(1, "e")
