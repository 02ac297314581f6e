"""Further clients of the commands of PBS and Slurm: Parsl, PSI/J, QToolKit and dask-jobqueue."""

from importlib.util import find_spec

import pytest

from tests.interop.conftest import Site

pytestmark = [pytest.mark.timeout(240)]

PARSL = """
import time
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

provider = SlurmProvider(partition="batch", account="lab", nodes_per_block=1, cores_per_node=2,
                         walltime="00:05:00", launcher=SrunLauncher(), exclusive=False)
provider.script_dir = "."
jobs = [provider.submit(command, 1, job_name="x") for command in ("true", "sleep 600", "false")]
for _ in range(600):
    states = [status.state.name for status in provider.status(jobs)]
    if states == ["COMPLETED", "RUNNING", "FAILED"]:
        break
    time.sleep(0.1)
print(states)
print(provider.cancel(jobs[1:2]))
for _ in range(600):
    states = [status.state.name for status in provider.status(jobs)]
    if states[1] == "CANCELLED":
        break
    time.sleep(0.1)
print(states)
"""

PSIJ = """
import os, sys
from datetime import timedelta
from psij import Job, JobExecutor, JobSpec, JobState
from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutorConfig

config = BatchSchedulerExecutorConfig(queue_polling_interval=1, initial_queue_polling_delay=1)
executor = JobExecutor.get_instance("EXECUTOR", config=config)
programs = (["/bin/true"], ["/bin/false"], ["/bin/sleep", "600"])
jobs = [Job(JobSpec(executable=words[0], arguments=words[1:])) for words in programs]
for job in jobs:
    executor.submit(job)
limit = timedelta(seconds=90)
print(*(job.wait(limit).state.name for job in jobs[:2]))
print(jobs[2].wait(limit, target_states=[JobState.ACTIVE]).state.name)
jobs[2].cancel()
print(jobs[2].wait(limit).final)
sys.stdout.flush()
os._exit(0)
"""

QTOOLKIT = """
import subprocess, time
from qtoolkit.io.MODULE import KIND

io = KIND()


def ran(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


open("job.sh", "w").write(io.get_submission_script(["sleep 600"], options={"job_name": "qt"}))
job = io.parse_submit_output(*ran(io.get_submit_cmd("job.sh"))).job_id
for _ in range(300):
    seen = io.parse_job_output(*ran(io.get_job_cmd(job)))
    if seen.state.name == "RUNNING":
        break
    time.sleep(0.1)
print(seen.name, seen.state.name)
print(len(io.parse_jobs_list_output(*ran(io.get_jobs_list_cmd(jobs=[job], user=None)))))
print(io.parse_cancel_output(*ran(io.get_cancel_cmd(job))).status.name)
"""

DASK = """
import sys
from dask.distributed import Client
from dask_jobqueue import KIND


def double(number):
    return 2 * number


if __name__ == "__main__":
    request = {"queue": "batch", "cores": 1, "memory": "500MB", "walltime": "00:10:00"}
    with KIND(interface="lo", **request) as cluster:
        cluster.scale(jobs=1)
        with Client(cluster) as client:
            client.wait_for_workers(1, timeout=120)
            print(sum(client.gather(client.map(double, range(10)))))
"""


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(module) is None, reason=f"{module} is missing: pip install '.[interop]'"
    )


@needs("parsl")
def test_parsl_submits_watches_and_cancels_by_the_commands_of_slurm(site: Site) -> None:
    site.use("slurm")
    ran = site.python(PARSL)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "['COMPLETED', 'RUNNING', 'FAILED']",
        "[True]",
        "['COMPLETED', 'CANCELLED', 'FAILED']",
    ]


@needs("psij")
@pytest.mark.parametrize(
    ("personality", "executor"),
    [("slurm", "slurm"), ("openpbs", "pbs"), ("torque", "pbs_classic")],
)
def test_psij_runs_fails_and_cancels_jobs(site: Site, personality: str, executor: str) -> None:
    site.use(personality)
    ran = site.python(PSIJ.replace("EXECUTOR", executor))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["COMPLETED FAILED", "ACTIVE", "True"]


@needs("qtoolkit")
@pytest.mark.parametrize(
    ("personality", "module", "kind"),
    [("slurm", "slurm", "SlurmIO"), ("openpbs", "pbs", "PBSIO")],
)
def test_qtoolkit_reads_what_the_commands_print(
    site: Site, personality: str, module: str, kind: str
) -> None:
    site.use(personality)
    ran = site.python(QTOOLKIT.replace("MODULE", module).replace("KIND", kind))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["qt RUNNING", "1", "SUCCESSFUL"]


@needs("dask_jobqueue")
@pytest.mark.parametrize(
    ("personality", "kind"),
    [("slurm", "SLURMCluster"), ("openpbs", "PBSCluster"), ("torque", "PBSCluster")],
)
def test_dask_workers_run_as_jobs(site: Site, personality: str, kind: str) -> None:
    site.use(personality)
    ran = site.python(DASK.replace("KIND", kind))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["90"]
