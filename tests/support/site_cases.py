"""The cases of `tests.support.site_scripts`: what each script has to get."""

from typing import Final

from tests.support.site_scripts import Case


def _torque(script: str, *got: str, **more: tuple[str, ...]) -> Case:
    return Case(script=script, family="torque", got=got, **more)


def _openpbs(script: str, *got: str, **more: tuple[str, ...]) -> Case:
    return Case(script=script, family="openpbs", got=got, **more)


def _slurm(script: str, *got: str, **more: tuple[str, ...]) -> Case:
    return Case(script=script, family="slurm", got=got, **more)


CASES: Final = (
    _torque(
        "serial.pbs",
        "1 x 1 node, 1 CPU, 500mb, 00:10:00: exit 0",
        says=("in queue batch\n6\nfinished",),
    ),
    _openpbs("openmp.pbs", "1 x 1 node, 4 CPUs, 2gb, 01:00:00: exit 0", says=("threads: 2 of 2",)),
    _torque(
        "mpi.pbs",
        "1 x 2 nodes, 4 CPUs, 2gb, 02:00:00: exit 0",
        says=("ranks: 4 on 2 nodes", "rank 3"),
    ),
    _openpbs(
        "hybrid.pbs",
        "1 x 2 nodes, 8 CPUs, 8gb, 00:30:00: exit 0",
        says=("layout: 4 ranks, 2 threads", "3/4"),
    ),
    _openpbs(
        "select.pbs",
        "1 x 1 node, 8 CPUs, 16gb, 06:00:00: exit 0",
        says=("slots: 8",),
        ignored=("sends no mail",),
    ),
    _torque(
        "array-torque.pbs",
        "6 x 1 node, 1 CPU, 00:05:00: exit 0",
        says=("alpha=0.1 beta=10", "alpha=0.6 beta=60"),
    ),
    _openpbs(
        "array-openpbs.pbs",
        "3 x 1 node, 1 CPU, 256mb, 00:05:00: exit 0",
        says=("row 1: 10", "row 3: 30", "row 5: 50"),
    ),
    _torque(
        "chain.sh",
        "1 x 1 node, 1 CPU, 00:05:00: exit 0",
        "1 x not started: cancelled",
        "4 x 1 node, 1 CPU, 00:02:00: exit 0",
        says=("prepare", "part-a a\n", "part-c c\n", "collect"),
        silent=("alarm",),
    ),
    _torque(
        "gpu-torque.pbs",
        "1 x 1 node, 4 CPUs, 1 GPU, 16gb, 04:00:00: exit 0",
        says=("GPUs: ",),
    ),
    _openpbs(
        "gpu-openpbs.pbs",
        "1 x 1 node, 4 CPUs, 2 GPUs, 24gb, 12:00:00: exit 0",
        says=("GPUs: ",),
    ),
    _torque(
        "bigmem.pbs",
        "1 x 1 node, 2 CPUs, 40gb, 48:00:00: exit 0",
        says=("on n1",),
        ignored=("vmem",),
    ),
    _torque(
        "conda.pbs",
        "1 x 1 node, 2 CPUs, 4gb, 01:00:00: exit 0",
        says=("modules: anaconda3/2024.2", "environment: analysis"),
    ),
    _torque(
        "venv.pbs",
        "1 x 1 node, 2 CPUs, 00:20:00: exit 0",
        says=("virtual: True threads: 2",),
    ),
    _torque(
        "matlab.pbs",
        "1 x 1 node, 1 CPU, 00:30:00: exit 0",
        says=("simulate(7)",),
        ignored=("-W x", "software"),
    ),
    _openpbs("licence.pbs", "1 x 1 node, 2 CPUs, 02:00:00: exit 0", says=("licensed",)),
    _torque(
        "chemistry.pbs",
        "1 x 1 node, 4 CPUs, 8gb, 100:00:00: exit 0",
        says=("Normal termination", "integrals"),
        ignored=("file",),
    ),
    _torque(
        "checkpoint.pbs",
        "1 x 1 node, 1 CPU, 00:00:30: exit 0",
        "1 x 1 node, 1 CPU, 00:00:30: walltime",
        says=("from step 0", "from step 1\ncomplete"),
    ),
    _torque(
        "cshell.pbs",
        "1 x 1 node, 2 CPUs, 00:10:00: exit 0",
        says=("csh with 2 slots",),
        needs=("csh",),
    ),
    _torque("procs.pbs", "1 x 1 node, 6 CPUs, 1536mb, 00:15:00: exit 0", says=("slots: 6",)),
    _torque(
        "twenty.sh",
        "20 x 1 node, 1 CPU, 100mb, 00:05:00: exit 0",
        says=(*(f"{seed}\n" for seed in range(1, 21)),),
    ),
    _torque(
        "resubmit.pbs",
        "3 x 1 node, 1 CPU, 00:05:00: exit 0",
        says=("lap 3\nlap 2\nlap 1\n",),
    ),
    _torque(
        "rscript.pbs",
        "1 x 1 node, 1 CPU, 00:30:00: exit 0",
        says=("R: --vanilla fit.R linear 7",),
    ),
    _torque(
        "pipeline.sh",
        "1 x 1 node, 1 CPU, 00:01:00: exit 0",
        "1 x 1 node, 1 CPU, 00:02:00: exit 0",
        "1 x 1 node, 1 CPU: exit 3",
        "1 x not started: cancelled",
        says=("from a pipe", "arguments: one two", "held"),
        ignored=("failed with exit code 3", "last lines", "arguments"),
    ),
    _slurm(
        "serial.sh",
        "1 x 1 node, 1 CPU, 500mb, 00:10:00: exit 0",
        says=("in batch\n6\nfinished",),
    ),
    _slurm(
        "openmp.sh",
        "1 x 1 node, 4 CPUs, 2gb, 01:00:00: exit 0",
        says=("threads: 4", "step with 4"),
    ),
    _slurm(
        "mpi.sh",
        "1 x 1 node, 4 CPUs, 2gb, 02:00:00: exit 0",
        says=("tasks: 4", "rank 3", "task 3 of 4"),
        ignored=("sends no mail",),
    ),
    _slurm(
        "hybrid.sh",
        "1 x 2 nodes, 8 CPUs, 00:30:00: exit 0",
        says=("2 nodes, 4 tasks, 2 on each", "task 0 on node 0", "task 3 on node 1"),
    ),
    _slurm(
        "array.sh",
        "6 x 1 node, 1 CPU, 00:05:00: exit 0",
        says=("alpha=0.6 beta=60", "task 6 of 1-6, 6 in all"),
    ),
    _slurm(
        "array-list.sh",
        "4 x 1 node, 1 CPU, 00:05:00: exit 0",
        says=("row 1: 10", "row 6: 60"),
    ),
    _slurm(
        "chain.sh",
        "7 x 1 node, 1 CPU, 00:02:00: exit 0",
        says=("prepare", "part-a a\n", "part-c c\n", "collect", "clean", "last job is"),
    ),
    _slurm(
        "gpu.sh",
        "1 x 1 node, 4 CPUs, 2 GPUs, 16gb, 12:00:00: exit 0",
        says=("on node: 2",),
        ignored=("sends no mail",),
    ),
    _slurm("gpu-tasks.sh", "1 x 1 node, 4 CPUs, 2 GPUs, 8gb, 00:30:00: exit 0", says=("task 1",)),
    _slurm(
        "bigmem.sh",
        "1 x 1 node, 2 CPUs, 40gb, 48:00:00: exit 0",
        says=("memory: 40960 MB",),
        ignored=("--exclude=n2", "--tmp=1G"),
    ),
    _slurm("wholenode.sh", "1 x 1 node, 1 CPU, 01:00:00: exit 0", says=("cpus: 16",)),
    _slurm(
        "conda.sh",
        "1 x 1 node, 2 CPUs, 4gb, 01:00:00: exit 0",
        says=("environment: analysis",),
    ),
    _slurm(
        "venv.sh",
        "1 x 1 node, 2 CPUs, 00:20:00: exit 0",
        says=("virtual: True", "cpus: 2 id: "),
    ),
    _slurm(
        "rscript.sh",
        "3 x 1 node, 1 CPU, 1gb, 00:30:00: exit 0",
        says=("fit.R 2 linear",),
        arguments=("linear",),
    ),
    _slurm("licence.sh", "1 x 1 node, 2 CPUs, 02:00:00: exit 0", says=("simulate(2)",)),
    _slurm(
        "chemistry.sh",
        "1 x 1 node, 4 CPUs, 8gb, 100:00:00: exit 0",
        says=("Normal termination", "integrals"),
    ),
    _slurm(
        "requeue.sh",
        "1 x 1 node, 1 CPU, 00:01:02: exit 0",
        says=("begins\nsaved at restart 0\n", "complete\n"),
    ),
    _slurm(
        "timeout.sh",
        "1 x 1 node, 1 CPU, 00:00:20: exit 0",
        "1 x 1 node, 1 CPU, 00:00:20: walltime",
        says=("from step 0\n",),
    ),
    _slurm(
        "cshell.sh",
        "1 x 1 node, 2 CPUs, 00:10:00: exit 0",
        says=("csh with 2 tasks",),
        needs=("csh",),
    ),
    _slurm(
        "packed.sh",
        "1 x 1 node, 4 CPUs, 400mb, 00:10:00: exit 0",
        says=("step 1\nstep 2\nstep 3\nstep 4",),
    ),
    _slurm(
        "twenty.sh",
        "20 x 1 node, 1 CPU, 100mb, 00:05:00: exit 0",
        says=(*(f"{seed}\n" for seed in range(1, 21)),),
    ),
    _slurm(
        "wrap.sh",
        "1 x 1 node, 1 CPU, 00:02:00: exit 0",
        "1 x 1 node, 1 CPU, 00:05:00: exit 0",
        "1 x 1 node, 1 CPU: exit 3",
        "1 x not started: cancelled",
        says=("wrapped wrap", "status 3", "PENDING JobHeldUser", "CANCELLED"),
        ignored=("failed with exit code 3",),
    ),
    _slurm(
        "clean-environment.sh",
        "1 x 1 node, 1 CPU, 00:05:00: exit 0",
        says=("seed: not exported in /tmp",),
    ),
)
