"""Simulated reservations: the decisions are those of a head."""

from pathlib import Path

import pytest

from gsched.errors import UsageError
from gschedd.plan.reserved import WithReservations
from gschedd.policies.queue import fifo
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.reservations import read_reservations
from gschedd.sim.simulation import BEGIN_S, Options, Simulation
from gschedd.sim.workload import TraceJob

COURSE = """
[[reservation]]
name = "course"
start = "1000"
duration = "1000"
nodes = 1
users = ["anna"]
"""


def replay(path: Path) -> dict[int, JobResult]:
    """Run two long jobs on two nodes, one more behind them, and one of the course."""
    results: dict[int, JobResult] = {}
    jobs = [
        TraceJob(submit_s=0, duration_s=5000, user="anna", cpus=4, walltime_s=6000),
        TraceJob(submit_s=0, duration_s=5000, user="ben", cpus=4),
        TraceJob(submit_s=10, duration_s=100, user="ben", cpus=4),
        TraceJob(submit_s=1000, duration_s=100, user="anna", cpus=4, walltime_s=200),
    ]
    simulation = Simulation(
        read_cluster("2xcpus=4"),
        jobs,
        WithReservations(fifo.plan),
        options=Options(reservations=read_reservations(str(path), BEGIN_S)),
        on_result=lambda result: results.update({result.job: result}),
    )
    assert not simulation.run()
    return results


def test_one_begins_on_time_with_a_long_job_in_the_way(tmp_path: Path) -> None:
    """It is requeued, and starts again when the reservation is over, before those behind it."""
    path = tmp_path / "course.toml"
    path.write_text(COURSE)

    results = replay(path)

    assert (results[4].start_s, results[4].nodes) == (1000, "n1")
    assert (results[1].start_s, results[2].start_s, results[3].start_s) == (0, 2000, 5000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COURSE.replace("nodes = 1", "nodes = 7"), "course: 7 nodes requested, and 2 of 2"),
        (COURSE.replace("nodes = 1", "nodes = -1"), ">= 0"),
        (COURSE.replace('"1000"', '"soon"'), "soon"),
        ("x = 1", "unknown field"),
        ("[[", "reservations "),
    ],
)
def test_a_file_that_states_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "course.toml"
    path.write_text(text)

    with pytest.raises(UsageError, match="reservation") as refused:
        replay(path)

    assert message in refused.value.message
