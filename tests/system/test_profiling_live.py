"""A real training of which nothing is known: measured on one GPU, then resized, exact all along."""

import json
import os

import pytest

from gsched.client import new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.elastic_runs import SCRIPT
from tests.support.forks import training_server
from tests.support.torch_python import TRAINING_PATH, torch_python

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("profiling"), pytest.mark.sweep]

#: 24 steps in an epoch; longer than the policy leaves one alone that has just started.
EPOCHS, STEP_S = 16, 0.2


def test_a_training_begins_on_one_gpu_and_is_resized_when_its_steps_are_known(
    cluster: Cluster,
) -> None:
    python = torch_python("sklearn")
    cluster.trains = training_server()
    cluster.queues = '[[queue]]\nname = "batch"\n[training]\npolicy = "deadline"\nmove_s = 5\n'
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=2)
    options = ("--model=transformer", f"--epochs={EPOCHS}", f"--step-s={STEP_S}")
    job = new_job(
        name="train",
        workdir=str(cluster.jobs),
        launch="torchrun",
        python=python,
        arguments=(str(SCRIPT), str(cluster.jobs), *options),
        resources=("select=1:ncpus=1:ngpus=1",),
        places_max=2,
        environment={
            "PYTHONPATH": TRAINING_PATH,
            "OMP_NUM_THREADS": "1",
            "PATH": os.environ["PATH"],
        },
        movable=True,
        profile=True,
        deadline_after_s=1200.0,
    )
    result = cluster.head.submit([job]).results[0]
    assert result.error is None, result.error
    number = str(result.id)

    wait_until(
        lambda: cluster.head.job(number).row.state == "done", 600.0, what="the training's end"
    )

    story = cluster.head.job(number)
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0, cluster.logs()
    kinds = [event.kind for event in story.events]
    assert kinds.index("StepsMeasured") < kinds.index("MigrationRequested")
    lines = (cluster.jobs / "log-0").read_text().splitlines()
    sizes = [json.loads(line)["world_size"] for line in lines]
    assert (sizes[0], sizes[-1]) == (1, 2)
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 24 * EPOCHS + 1))
    told = {"StepsMeasured", "MigrationMeasured"}
    print([event.text for event in story.events if event.kind in told], story.move)
