"""Shares, a limit and a reservation on two real nodes: the head decides what the simulator does."""

import os
import pwd
import shlex
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from gsched.client import new_key
from gsched.head_calls import error_from
from gsched.protocol.actions import DeleteJob
from gschedd.core.state import facts as f
from gschedd.sim.cluster import read_cluster
from gschedd.sim.workload import Classifier, TraceJob
from gschedd.store.reader import Reader
from tests.support import fair_case as case
from tests.support import stand_in_training
from tests.support.cluster import Cluster, wait_until

pytestmark = pytest.mark.timeout(240)
#: From the creation of the reservation to its beginning, seconds.
SOON_S = 1.5
LIMIT = f"project under uses {case.MOST_GPUS} of {case.MOST_GPUS} GPUs, the limit of project under"
EXPECTED = [
    "elastic: on n1:2",
    "plain: on n1:1",
    "second: on n2:1",
    "early: on n2:1",
    "late: on n2:1",
    "loses: on n2:1",
    "elastic: shrink for first",
    "elastic: to n1:1",
    "first: on n1:1",
    "late: migrate for both",
    "late: to n1:1",
    "both: on n2:2",
    "early: checkpoint for third",
    "early: to the queue",
    "third: on n2:1",
    "loses: requeue for fourth",
    "fourth: on n2:1",
    "early: on n1:1",
    "elastic: checkpoint for reservation course has begun",
    "elastic: to the queue",
    "early: checkpoint for reservation course has begun",
    "early: to the queue",
    "first: requeue for reservation course has begun",
    "lesson: on n1:1",
]


def submit(cluster: Cluster, job: TraceJob) -> None:
    """Submit a job as the simulator does, with a program."""
    stated = Classifier(read_cluster("2xcpus=5,gpus=4")).submission(job)
    program = shlex.join([sys.executable, str(Path(stand_in_training.__file__))])
    script = f"#!/bin/sh\nexec {program if job.training else 'sleep 600'}\n"
    stated = structs.replace(
        stated,
        key=new_key(),
        workdir=str(cluster.jobs),
        launch="script",
        script=script,
        arguments=(),
    )
    result = cluster.head.submit([stated]).results[0]
    if result.error is not None:
        raise error_from(result.error)
    assert result.id == case.NUMBERS[job.name]


def states(cluster: Cluster) -> dict[str, str]:
    """Return the state of each unfinished job; of one that runs, how far its start is."""
    found: dict[str, str] = {}
    for row in cluster.head.jobs().jobs:
        found[row.name] = row.state if row.state != "queued" else f"queued: {row.reason}"
        if row.state == "running":
            story = cluster.head.job(row.id)
            steps = story.training is None or story.progress is not None
            found[row.name] = story.attempts[-1].state if steps else "before its first step"
    return found


def wait_for(cluster: Cluster, act: case.Act) -> None:
    """Wait until exactly the jobs run that are to, and all others wait."""
    seen: dict[str, str] = {}

    def is_so() -> bool:
        seen.clear()
        seen.update(states(cluster))
        waiting = {name for name, state in seen.items() if state.startswith("queued")}
        running = {name for name, state in seen.items() if state == "running"}
        return running == act.then and running | waiting == set(seen)

    try:
        wait_until(is_so, 60)
    except AssertionError:
        raise AssertionError(f"{act.does}: {sorted(act.then)} are to run: {seen}") from None


def reason(cluster: Cluster, name: str) -> str:
    """Return why a job waits."""
    (row,) = cluster.head.jobs([str(case.NUMBERS[name])]).jobs
    return row.reason or ""


def facts_of(cluster: Cluster) -> list[f.AnyFact]:
    reader = Reader(str(cluster.state_dir / "gsched.db"))
    try:
        return reader.all_facts()
    finally:
        reader.close()


def test_shares_a_limit_and_a_reservation_are_decided_live_as_simulated(cluster: Cluster) -> None:
    """The least lost work first, the limit through kill -9, the reservation at its time."""
    cluster.queues = case.settings(pwd.getpwuid(os.getuid()).pw_name) + "[moves]\nwarm = false\n"
    cluster.start_head()
    for name, (cpus, gpus) in case.NODES.items():
        cluster.start_node(name, cpus=cpus, gpus=gpus)
    for act in case.ACTS:
        if act.does == "submit" and act.job is not None:
            submit(cluster, act.job)
        elif act.does == "cancel" and act.job is not None:
            cluster.head.act(DeleteJob(ids=(str(case.NUMBERS[act.job.name]),), grace_s=0))
        elif act.does == "reserve" and act.job is not None:
            cluster.head.change_reservation(case.course(time.time() + SOON_S))
            submit(cluster, act.job)
        else:
            cluster.kill_head()
            cluster.start_head()
            for name in case.NODES:
                cluster.wait_for_node(name)
        wait_for(cluster, act)
        if act.does == "kill head":
            wait_until(lambda: LIMIT in reason(cluster, "fifth"), what="the limit to be told")

    facts = facts_of(cluster)
    assert case.decisions(facts) == EXPECTED
    (reservation,) = cluster.head.reservations().rows
    lesson = [
        fact.at_s
        for fact in facts
        if isinstance(fact, f.AttemptAssigned) and fact.job == case.NUMBERS["lesson"]
    ]
    assert reservation.reservation.from_s <= lesson[0] < reservation.reservation.to_s


@pytest.mark.parametrize("planning_s", [None, 0.02, 0.5])
def test_the_simulator_decides_the_same(planning_s: float | None) -> None:
    """Wherever training jobs are planned, and however long that takes."""
    assert case.decisions(case.simulated(planning_s)) == EXPECTED
