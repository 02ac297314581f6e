"""Jobs on two nodes: pbsdsh, srun and mpirun start tasks on both, within the job."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gsched.client import new_job
from gsched.head_calls import error_from
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import command_environment, run_command

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with two CPUs each, and the commands of PBS and Slurm."""
    directory = tmp_path_factory.mktemp("two")
    made = Cluster(directory / "c", f"steps-{uuid.uuid4().hex}")
    made.start_head()
    for name in ("n1", "n2"):
        made.start_node(name, cpus=2)
    for personality in ("torque", "slurm"):
        place = str(directory / personality)
        installed = run_command("gsched", "install-shims", "--personality", personality, place)
        assert installed.status == 0, installed.stderr
    yield made
    made.stop()


def submit(cluster: Cluster, script: str, *, slurm: bool = False, **options: object) -> int:
    """Submit a job on both nodes, two slots each, and return its number."""
    shims = cluster.directory.parent
    own = Path(sys.executable).parent
    path = f"{shims / 'torque'}:{shims / 'slurm'}:{own}:{os.environ['PATH']}"
    environment = {"PATH": path}
    if slurm:
        environment |= {"SLURM_SUBMIT_DIR": str(cluster.jobs), "SLURM_NTASKS": "4"}
    settings: dict[str, object] = {"resources": ("nodes=n1:ppn=2+n2:ppn=2",), **options}
    job = new_job(
        name="wide",
        workdir=str(cluster.jobs),
        script=script,
        grace_s=1.0,
        environment=environment,
        stdout_path="$PBS_JOBID.out",
        stderr_path="$PBS_JOBID.err",
        **settings,
    )
    result = cluster.head.submit([job]).results[0]
    if result.error is not None:
        raise error_from(result.error)
    return result.id


def ended(cluster: Cluster, job: int) -> tuple[int, str, str]:
    """Wait for a job; return its exit code and what it has written."""
    waited = run_command("gwait", str(job), head=str(cluster.socket))
    out, err = (cluster.jobs / f"{job}.test.{letter}" for letter in ("out", "err"))
    return waited.status, out.read_text(), err.read_text()


def test_pbsdsh_runs_a_task_on_each_slot_of_each_node(two: Cluster) -> None:
    """Each with its numbers, its node's variables, and the environment of the script."""
    job = submit(
        two,
        "export MINE='a b'\n"
        "pbsdsh sh -c 'echo $PBS_VNODENUM $PBS_NODENUM $GSCHED_NODE $PBS_TASKNUM $MINE; "
        "test -r $PBS_NODEFILE'\n",
    )

    status, out, err = ended(two, job)

    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "0 0 n1 2 a b",
        "1 0 n1 3 a b",
        "2 1 n2 4 a b",
        "3 1 n2 5 a b",
    ]


def test_pbsdsh_chooses_slots_and_returns_the_highest_exit_code(two: Cluster) -> None:
    job = submit(
        two,
        "pbsdsh -u sh -c 'echo u $GSCHED_NODE'\n"
        "pbsdsh -n 3 sh -c 'echo n $PBS_VNODENUM; exit 7'; echo $?\n"
        "pbsdsh -h n2 -s sh -c 'echo h $PBS_VNODENUM; echo no >&2'; echo $?\n"
        "pbsdsh -c 5 -v sh -c 'echo c'\n"
        "pbsdsh -n 2 /no/such/program; echo $?\n"
        "pbsdsh -n 9 true; pbsdsh -h n9 true\n"
        "exit 3\n",
    )

    status, out, err = ended(two, job)

    assert status == 3, "the script's own code, and not that of a step agent that was stopped"
    lines = out.splitlines()
    assert sorted(lines[:2]) == ["u n1", "u n2"]
    assert lines[2:7] == ["n 3", "7", "h 2", "h 3", "0"]
    assert lines[7:] == ["c"] * 5 + ["127"]
    assert err.count("pbsdsh: spawned task") == 5
    assert "no\nno\n" in err
    assert "cannot run a task on n2: /no/such/program: No such file or directory" in err
    assert "pbsdsh: -n 9: the job has 4 slots" in err
    assert "pbsdsh: host n9 is no node of this job" in err


def test_tasks_on_other_nodes_end_with_the_program_that_started_them(two: Cluster) -> None:
    """When pbsdsh is killed, so are they, also those that ignore TERM; and the job goes on."""
    job = submit(
        two,
        "pbsdsh -n 2 sh -c 'trap \"\" TERM; sleep 600 & echo $! $$ > up; wait; wait' &\n"
        "until [ -s up ]; do sleep 0.05; done\n"
        "kill -9 $!\n"
        "for pid in $(cat up); do while kill -0 $pid 2>/dev/null; do sleep 0.1; done; done\n"
        "pbsdsh -n 2 sh -c 'echo still here'\n",
    )

    status, out, _ = ended(two, job)

    assert (status, out) == (0, "still here\n")


def test_what_tasks_leave_behind_ends_with_the_job(two: Cluster) -> None:
    """Also a daemon that has left its session; the attempt ends after it."""
    job = submit(
        two,
        "pbsdsh -n 2 sh -c 'setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! > daemon'\n",
    )

    status, _, err = ended(two, job)

    assert (status, err) == (0, "")
    daemon = int((two.jobs / "daemon").read_text())
    assert not Path(f"/proc/{daemon}").exists()


def test_a_deleted_job_ends_on_all_of_its_nodes(two: Cluster) -> None:
    job = submit(two, "pbsdsh sh -c 'echo $$ > pid.$PBS_VNODENUM; exec sleep 600'\n")
    pids = [two.jobs / f"pid.{number}" for number in range(4)]
    wait_until(lambda: all(each.exists() and each.read_text().strip() for each in pids))

    assert run_command("gdel", "-W", "1", str(job), head=str(two.socket)).status == 0

    assert ended(two, job)[0] == 143
    assert not [each for each in pids if Path(f"/proc/{each.read_text().strip()}").exists()]
    story = run_command("gstat", "-f", str(job), head=str(two.socket)).stdout
    assert "cancelled by" in story


def written_bytes(pid: str) -> str:
    """Return how much a process has written; empty: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((line for line in lines if line.startswith("wchar")), "")


def test_large_output_waits_for_its_reader(two: Cluster) -> None:
    """It comes whole, and while nobody reads it the task waits: 64 MB are more than all buffers."""
    job = submit(
        two,
        "pbsdsh -n 2 sh -c "
        "'head -c 67108864 /dev/zero & echo $! > writer; wait; touch written' | (\n"
        "  until [ -s read ]; do sleep 0.05; done; wc -c)\n",
    )
    writer = two.jobs / "writer"
    wait_until(lambda: writer.exists() and writer.read_text().strip())
    seen = [written_bytes(writer.read_text().strip())]

    def stands() -> bool:
        time.sleep(0.5)
        seen.append(written_bytes(writer.read_text().strip()))
        return seen[-1] == seen[-2]

    wait_until(stands, what="the writer to wait or to end")
    assert seen[-1], "it waits for its reader"
    assert not (two.jobs / "written").exists()

    (two.jobs / "read").write_text("now\n")

    status, out, _ = ended(two, job)
    assert (status, out.strip()) == (0, "67108864")
    assert (two.jobs / "written").exists()


def test_tasks_of_slurm_are_told_their_process_ids(two: Cluster) -> None:
    """And the script its own; functions of bash in the environment reach them."""
    job = submit(
        two,
        "#!/bin/bash\n"
        "echo $(($$ - SLURM_TASK_PID)) $SLURM_JOB_NODELIST\n"
        "f() { echo f; }; export -f f\n"
        "srun bash -c 'echo $SLURM_PROCID $(($$ - SLURM_TASK_PID)) $(f) $SLURM_STEP_NODELIST'"
        " | sort\n"
        "mkdir -p own; printf '#!/bin/sh\\necho own\\n' > own/prog; chmod +x own/prog\n"
        "PATH=own:$PATH srun -N2 --ntasks-per-node=1 prog\n"
        "printf 'x' > own/no; PATH=own:$PATH srun -n1 no; srun -n1 -w n2 nowhere\n",
        slurm=True,
    )

    _, out, err = ended(two, job)

    lines = [f"{rank} 0 f n[1-2]" for rank in range(4)]
    assert out.splitlines() == ["0 n[1-2]", *lines, "own", "own"]
    assert "cannot run no: Permission denied" in err
    assert "nowhere: No such file or directory" in err


def test_srun_starts_a_step_on_all_nodes(two: Cluster) -> None:
    """With ranks that are consecutive on a node, steps one after another, files and labels."""
    show = "sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURMD_NODENAME $SLURM_NTASKS'"
    job = submit(
        two,
        f"srun {show} | sort\n"
        f"srun -N 2 --ntasks-per-node=1 {show} | sort\n"
        f"srun -n 3 {show} | sort\n"
        f"srun -N1 -w 'n[2]' -n 1 {show}\n"
        "srun -l -n 4 sh -c 'echo $SLURM_STEP_ID' | sort\n"
        "srun -o step.%s.%t sh -c 'echo $SLURM_PROCID'\n"
        "cat step.5.3\n"
        "echo input | srun -n 1 -w n2 cat\n"
        "srun -w n2 cat < /etc/hostname\n"
        "srun -n 4 sh -c 'exit $SLURM_PROCID'; echo $?\n"
        "srun -K -n 2 --ntasks-per-node=1 sh -c "
        "'[ $SLURM_PROCID = 1 ] && exit 5; sleep 600'; echo $?\n"
        "srun -N 3 true\n",
        slurm=True,
    )

    _, out, err = ended(two, job)

    assert out.splitlines() == [
        *("0 0 0 n1 4", "1 1 0 n1 4", "2 0 1 n2 4", "3 1 1 n2 4"),
        *("0 0 0 n1 2", "1 0 1 n2 2"),
        *("0 0 0 n1 3", "1 1 0 n1 3", "2 0 1 n2 3"),
        "0 0 0 n2 1",
        *("0: 4", "1: 4", "2: 4", "3: 4"),
        "3",
        "input",
        Path("/etc/hostname").read_text().strip(),
        "3",
        "143",
    ]
    assert (
        err == ("srun: error: --nodes=3: the step can have 2 nodes (nodes of the job: n1, n2)\n")
        or "--nodes=3: the step can have 2 nodes" in err
    )


def test_the_launch_agent_starts_commands_like_ssh(two: Cluster) -> None:
    """By host name, on this node and the other one, with options of ssh."""
    job = submit(
        two,
        "gsched-launch-agent -x -q n2 echo on '$GSCHED_NODE' '&&' exit 4; echo $?\n"
        "gsched-launch-agent n1.some.domain -n -x 2>/dev/null; echo $?\n"
        "gsched-launch-agent -l me N1.some.domain 'echo on $GSCHED_NODE'\n"
        "echo words | gsched-launch-agent n2 cat\n"
        "gsched-launch-agent nowhere true; echo $?\n",
    )

    _, out, err = ended(two, job)

    assert out.splitlines()[:2] == ["on n2", "4"]
    assert out.splitlines()[3:] == ["on n1", "words", "2"]
    assert "host nowhere is no node of this job (its nodes: n1, n2)" in err


def test_a_job_whose_program_runs_everywhere_has_no_step_agents(two: Cluster) -> None:
    job = submit(two, "[ $PBS_NODENUM = 0 ] || exit 0\npbsdsh -n 2 true\n", every_node=True)

    status, _, err = ended(two, job)

    assert status != 0
    assert "cannot start tasks on n2: the job's program runs on each of its nodes" in err


def test_a_restarted_gnode_and_head_still_start_tasks(two: Cluster) -> None:
    """The agent comes back to the new gnode; the head knows that it runs."""
    job = submit(
        two,
        "pbsdsh -n 2 echo first\ntouch once\nuntil [ -e again ]; do sleep 0.05; done\n"
        "pbsdsh -n 2 echo second\n",
    )
    wait_until((two.jobs / "once").exists)
    for name in ("n1", "n2"):
        two.kill_node(name)
    two.kill_head()
    two.start_head()
    for name in ("n1", "n2"):
        two.start_node(name, cpus=2)

    (two.jobs / "again").touch()

    status, out, err = ended(two, job)
    assert (status, out, err) == (0, "first\nsecond\n", "")


#: A rank tells on which node its parent runs: MPICH gives all ranks the variables of mpirun.
HELLO_MPI = """
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char path[64], text[65536] = "", *node = "?";
    snprintf(path, sizeof path, "/proc/%d/environ", getppid());
    FILE *file = fopen(path, "r");
    size_t got = fread(text, 1, sizeof text - 1, file);
    for (size_t at = 0; at < got; at += strlen(text + at) + 1)
        if (!strncmp(text + at, "GSCHED_NODE=", 12)) node = text + at + 12;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d on %s: sum %d\\n", rank, size, node, sum);
    MPI_Finalize();
    return 0;
}
"""


def mpi_commands(kind: str) -> Sequence[str]:
    """Return compiler and starter of an MPI; skip the test where it is not installed."""
    names = {
        "openmpi": ("mpicc.openmpi", "mpirun.openmpi"),
        "mpich": ("mpicc.mpich", "mpirun.mpich"),
    }
    found = [shutil.which(name) for name in names[kind]]
    if None in found:
        pytest.skip(f"{kind} is not installed here")
    return [each for each in found if each]


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_mpirun_runs_over_the_nodes_of_the_job(two: Cluster, kind: str, tmp_path: Path) -> None:
    """Plain ``mpirun ./a.out``: hosts, slots and launch agent come from the job's environment."""
    compiler, mpirun = mpi_commands(kind)
    source = tmp_path / "hello.c"
    source.write_text(HELLO_MPI)
    program = two.jobs / f"hello-{kind}"
    made = subprocess.run(
        [compiler, str(source), "-o", str(program)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    # Both nodes are one machine here, so that ranks must not take each other for neighbours.
    settings = (
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
        "export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo\n"
    )
    job = submit(two, f"{settings}{mpirun} ./{program.name}\n")

    status, out, err = ended(two, job)

    assert status == 0, f"{out}\n{err}\n{two.log('n2.log')}"
    assert sorted(line for line in out.splitlines() if line.startswith("rank")) == [
        f"rank {rank} of 4 on {node}: sum 6" for rank, node in enumerate(("n1", "n1", "n2", "n2"))
    ]


def test_commands_outside_a_job_say_so(two: Cluster) -> None:
    bare = command_environment(two.socket)
    said = subprocess.run(
        [str(Path(sys.executable).with_name("gsched-launch-agent")), "n1", "true"],
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert (
        said.stderr
        == "gsched-launch-agent: gsched-launch-agent runs inside a job only (see gsub(1))\n"
    )
