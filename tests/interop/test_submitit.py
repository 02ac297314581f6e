"""submitit runs functions as real jobs through the commands of Slurm, unmodified."""

from importlib.util import find_spec

import pytest

from tests.interop.conftest import Site

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        find_spec("submitit") is None, reason="submitit is missing: pip install '.[interop]'"
    ),
]

#: As in submitit's README: the folder has the job's number, so it is made after the submission.
README = """
import submitit


def add(a, b):
    return a + b


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="log_test/%j", cluster="slurm")
    executor.update_parameters(timeout_min=1)
    jobs = [executor.submit(add, number, 7) for number in range(3)]
    print([job.result() for job in jobs])
"""
PROGRAM = """
import os
import submitit


def twice(number):
    print("working on", number)
    environment = submitit.JobEnvironment()
    return 2 * number, environment.global_rank, environment.num_tasks, os.environ["PBS_JOBID"]


def fails():
    raise ValueError("as it must")


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
    executor.update_parameters(timeout_min=5, cpus_per_task=1, tasks_per_node=2, name="sub")
    job = executor.submit(twice, 21)
    print(job.results())
    executor.update_parameters(tasks_per_node=1)
    bad = executor.submit(fails)
    print(type(bad.exception()).__name__, "as it must" in str(bad.exception()))
    print(bad.get_info(mode="force")["State"])
    print("working on 21" in job.stdout())
"""


def test_functions_run_as_jobs(site: Site) -> None:
    site.use("slurm")
    ran = site.python(PROGRAM)

    assert ran.stdout.splitlines() == [
        "[(42, 0, 2, '1.test'), (42, 1, 2, '1.test')]",
        "FailedJobError True",
        "FAILED",
        "True",
    ], ran.stderr


def test_a_folder_may_be_named_after_the_job(site: Site) -> None:
    site.use("slurm")
    ran = site.python(README)

    assert ran.stdout.splitlines() == ["[7, 8, 9]"], ran.stderr
