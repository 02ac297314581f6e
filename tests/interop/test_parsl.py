"""Parsl's TorqueProvider runs real blocks through the shims, unmodified."""

from importlib.util import find_spec

import pytest

from tests.interop.conftest import Site

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        find_spec("parsl") is None, reason="parsl is missing: pip install '.[interop]'"
    ),
]

EXECUTOR = """
import os
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import TorqueProvider


@parsl.python_app
def where():
    import os
    return os.environ["PBS_JOBID"], os.environ["PBS_JOBNAME"]


@parsl.python_app
def double(number):
    return 2 * number


if __name__ == "__main__":
    provider = TorqueProvider(
        nodes_per_block=1, init_blocks=1, min_blocks=0, max_blocks=1, walltime="00:05:00",
        launcher=SimpleLauncher(), worker_init="cd $PBS_O_WORKDIR",
    )
    executor = HighThroughputExecutor(
        label="g", provider=provider, address="127.0.0.1", max_workers_per_node=2,
        cores_per_worker=1,
    )
    with parsl.load(Config(executors=[executor], run_dir=os.getcwd() + "/runinfo")):
        print(sum(future.result() for future in [double(number) for number in range(10)]))
        print(*where().result())
"""

PROVIDER = """
import time
from parsl.jobs.states import JobState
from parsl.launchers import SimpleLauncher
from parsl.providers import TorqueProvider

provider = TorqueProvider(walltime="00:05:00", launcher=SimpleLauncher())
provider.script_dir = "."
jobs = [provider.submit(command, 1) for command in ("true", "sleep 600", "sleep 600")]
print(len(jobs), all(job.endswith(".test") for job in jobs))
seen = set()
for _ in range(300):
    states = [status.state for status in provider.status(jobs)]
    seen.add(states[0])
    if states[0] == JobState.COMPLETED and states[1] == JobState.RUNNING:
        break
    time.sleep(0.1)
print(states[0].name, states[1].name)
print(provider.cancel(jobs[1:]))
for _ in range(300):
    states = [status.state for status in provider.status(jobs)]
    if set(states) == {JobState.COMPLETED}:
        break
    time.sleep(0.1)
print({state.name for state in states})
"""


def test_an_executor_runs_its_tasks_in_a_block_on_the_cluster(site: Site) -> None:
    ran = site.python(EXECUTOR)

    assert ran.returncode == 0, ran.stderr
    total, where = ran.stdout.splitlines()
    job, name = where.split()
    assert total == "90"
    assert job == "1.test"
    assert name.startswith("parsl.parsl.g.block-0."), "a name longer than POSIX has it"


@pytest.mark.parametrize(
    ("personality", "provider"), [("torque", "TorqueProvider"), ("openpbs", "PBSProProvider")]
)
def test_the_provider_submits_watches_and_cancels(
    site: Site, personality: str, provider: str
) -> None:
    """PBSProProvider reads the JSON of qstat, and finished jobs behind -x."""
    site.use(personality)
    ran = site.python(PROVIDER.replace("TorqueProvider", provider))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "3 True",
        "COMPLETED RUNNING",
        "[True, True]",
        "{'COMPLETED'}",
    ]
