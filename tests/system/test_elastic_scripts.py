"""Scripts as people write them: kinds of models, and mistakes that are told instead of made."""

import os
import pathlib
import signal
import subprocess

import pytest

from tests.support.cluster import wait_until
from tests.support.elastic_runs import run_ranks
from tests.support.forks import ForkServer
from tests.support.torchrun import ROOT, agent_command

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("elastic")]

KINDS = ROOT / "tests" / "support" / "elastic_kinds.py"
SCRIPT = """
import torch
from gsched import elastic

model, other = torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)
data = torch.utils.data.TensorDataset(torch.zeros(16, 2))
{optimizer}
samples = elastic.Samples(16, global_batch=8, epochs=2)
training = elastic.start(model, optimizer, samples{more})
{loop}
    for (x,) in batches:
        model(x).sum().backward()
        optimizer.step()
        training.step()
training.finish()
print("trained")
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), 0.1)"
LOOP = "for epoch in training.epochs():\n    batches = training.loader(data)"
SAVES = """
import pathlib, signal, sys, time

def save(number, frame):
    time.sleep(0.5)
    pathlib.Path("saved").touch()
    sys.exit(0)

signal.signal(signal.SIGUSR1, save)
pathlib.Path("ready").touch()
while True:
    time.sleep(0.1)
"""


def run(
    folder: pathlib.Path,
    forks: ForkServer,
    *,
    optimizer: str = OPTIMIZER,
    loop: str = LOOP,
    more: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run the script on one rank."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(optimizer=optimizer, loop=loop, more=more))
    output, errors = folder / "stdout", folder / "stderr"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with open(output, "wb") as out, open(errors, "wb") as err:
        code = forks.start([str(script)], environment, out, err).wait(120.0)
    return subprocess.CompletedProcess([script], code, output.read_text(), errors.read_text())


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (
            "batches = training.loader(data)\nfor epoch in training.epochs():",
            "epoch 1 has used no batch: call training.loader()",
        ),
        (
            "for epoch in range(2):\n    batches = training.loader(data)",
            "ask for batches within `for epoch in training.epochs()`",
        ),
    ],
)
def test_loop_that_would_leave_epochs_out_is_told(
    tmp_path: pathlib.Path, loop: str, words: str, forks: ForkServer
) -> None:
    ran = run(tmp_path, forks, loop=loop)

    assert ran.returncode == 1
    assert f"StepError: {words}" in ran.stderr


def test_ranks_without_a_process_group_are_refused(
    tmp_path: pathlib.Path, forks: ForkServer
) -> None:
    """Each would train alone and remove the others' checkpoints."""
    ran = run(tmp_path, forks, RANK="0", WORLD_SIZE="2")

    assert ran.returncode == 78
    assert "this is one of 2 ranks, and they have no process group" in ran.stderr
    assert run(tmp_path, forks, RANK="0", WORLD_SIZE="1").stdout == "trained\n"


def test_parameters_that_are_not_the_models_are_refused_at_the_start(
    tmp_path: pathlib.Path, forks: ForkServer
) -> None:
    both = "optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)"
    ran = run(tmp_path, forks, optimizer=both)

    assert ran.returncode == 78
    assert "an optimiser has parameters that the model has not" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_parameters_that_are_added_later_are_told_with_the_checkpoint(
    tmp_path: pathlib.Path, forks: ForkServer
) -> None:
    loop = f"optimizer.add_param_group({{'params': list(other.parameters())}})\n{LOOP}"
    ran = run(
        tmp_path,
        forks,
        loop=loop,
        GSCHED_CHECKPOINT_DIR=str(tmp_path / "checkpoints"),
        GSCHED_CHECKPOINT_INTERVAL_S="0.000001",
    )

    assert "an optimiser has parameters that the model has not" in ran.stderr
    assert ran.stdout == "trained\n"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (", also={'rate': 0.1}", "also={'rate': …}: a float cannot be saved"),
        (", per_rank={'log': open('/dev/null')}", "per_rank={'log': …}: a TextIOWrapper cannot"),
        (", also={'m': torch.nn.Linear}", "also={'m': …}: the class Linear cannot be saved"),
        (", also={'m': model}, per_rank={'m': model}", "'m' is named in both also and per_rank"),
    ],
)
def test_what_has_no_state_is_refused_at_the_start(
    tmp_path: pathlib.Path, more: str, words: str, forks: ForkServer
) -> None:
    """Not at the first checkpoint, minutes later, and in each move."""
    ran = run(tmp_path, forks, more=more)

    assert ran.returncode == 78
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_kinds_of_models_are_trained_as_without_it_and_restored(
    tmp_path: pathlib.Path, forks: ForkServer
) -> None:
    """FSDP with ranks that hold nothing of a tensor; DistributedDataParallel's special cases."""
    code, output = run_ranks(forks, tmp_path, str(KINDS), str(tmp_path), ranks=3)

    written = (tmp_path / "output").read_text()
    said = [line for line in written.splitlines() if line.endswith(": ok")]
    assert (code, said) == (0, ["fsdp: ok", "static: ok", "sparse: ok"]), output


def test_torchrun_outlives_the_signal_that_asks_its_ranks_to_save(tmp_path: pathlib.Path) -> None:
    """All of a job's processes are sent it; without torchrun the ranks would be ended."""
    (tmp_path / "saves.py").write_text(SAVES)
    command = agent_command(tmp_path / "failure", "saves.py", ranks=1)
    with subprocess.Popen(command, cwd=tmp_path) as agent:
        try:
            wait_until((tmp_path / "ready").exists, 60.0, what="the rank")
            children = pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text()
            assert children
            for pid in (agent.pid, *map(int, children.split())):
                os.kill(pid, signal.SIGUSR1)
            assert agent.wait(60.0) == 0
        finally:
            agent.kill()

    assert (tmp_path / "saved").exists()
