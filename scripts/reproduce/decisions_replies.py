"""What all commands print with ``--json`` in a world that is the same each time."""

import asyncio
from collections.abc import Callable
from typing import Final

from gsched.model.resources import Gpu, Inventory
from gsched.protocol import node as n
from scripts.reproduce.still_world import Said, StillWorld

GB: Final = 2**30
GPU_BYTES: Final = 80 * GB
SCRIPT: Final = "#!/bin/sh\necho hello\n"
#: What gsub is told of the training's size.
SIZE: Final = (
    *("--params", "138M", "--samples", "1000000", "--batch", "64", "--epochs", "20"),
    *("--step-time", "400ms"),
)


def gpu_node(gpus: int) -> Inventory:
    """Return what a node with so many GPUs has."""
    has = (Gpu(index=i, type="a100", memory_bytes=GPU_BYTES) for i in range(gpus))
    return Inventory(cpus=16, memory_bytes=128 * GB, gpus=tuple(has), features=("fast",))


def replies(tell: Callable[[str], None]) -> dict[str, Said]:
    """Return what each command says, by its command line, in the order in which they are given.

    Args:
        tell: is told each command line.

    Raises:
        StuckError: the head has not done what the script waits for.
    """
    return asyncio.run(_replies(tell))


class Script:
    """Runs commands and keeps what they say."""

    def __init__(self, world: StillWorld, tell: Callable[[str], None]) -> None:
        self._world = world
        self._tell = tell
        self.said: dict[str, Said] = {}

    async def do(self, line: str, *more: str) -> None:
        """Run a command line with ``--json``, and keep its reply."""
        name, *words = line.split()
        title = " ".join((line, *more))
        self._tell(title)
        while title in self.said:
            title += ", again"
        arguments = (*words, "--json") if name == "gsched" else ("--json", *words, *more)
        self.said[title] = await self._world.command(name, *arguments)


async def _replies(tell: Callable[[str], None]) -> dict[str, Said]:
    async with StillWorld() as world:
        script = Script(world, tell)
        (world.directory / "job.sh").write_text(SCRIPT, encoding="utf-8")
        (world.directory / "train.py").write_text("import gsched.elastic\n", encoding="utf-8")
        await world.connect("gpu1", gpu_node(4))
        await world.connect("gpu2", gpu_node(2))
        await world.connect("old1", Inventory(cpus=8, memory_bytes=32 * GB))
        await _past_jobs(world, script)
        await _a_training(world, script)
        await _jobs(world, script)
        await _questions(script)
        return script.said


async def _past_jobs(world: StillWorld, script: Script) -> None:
    """One job ends well and one badly, of the same kind; a third is predicted by them."""
    for exit_code, ran_s in ((0, 90.0), (3, 40.0)):
        await script.do("gsub -N hello -l nodes=1:ppn=2,walltime=1:00:00 job.sh")
        launch = await world.starts()
        await world.pass_time(ran_s)
        await world.ends(launch, ran_s, exit_code=exit_code)


async def _a_training(world: StillWorld, script: Script) -> None:
    """It starts, says how far it is, migrates, and goes on."""
    options = "--elastic --deadline 2d --gpus 1..2"
    await script.do(f"gsub --dry-run {options}", *SIZE, "--torchrun", "train.py")
    said = await world.command("gsub", *options.split(), *SIZE, "--torchrun", "train.py")
    assert said.status == 0, said.stderr
    launch = await world.starts()
    job, attempt, gpus = launch.job, launch.attempt, len(launch.share.gpu_indices)
    await world.pass_time(60.0)
    far = n.TrainingProgress(
        job=job, attempt=attempt, step=100, work_done=12_800.0, work_total=2e7,
        at_s=world.now_s, step_s=0.5, communication_s=0.1, gpus=gpus, gradient_bytes=5.5e8,
    )  # fmt: skip
    await world.tell(launch.share.node, far)
    await world.until(job, lambda story: story.progress is not None, "to say how far it is")
    other = "gpu2" if launch.share.node == "gpu1" else "gpu1"
    await script.do(f"gmigrate --to {other} --dry-run {job}")
    await script.do(f"gmigrate --to {other} -m balance {job}")
    node, order = await world.hears(n.TakeCheckpoint)
    await script.do(f"gstat -f {job}")
    await world.pass_time(5.0)
    saved = n.Checkpointed(
        job=job, attempt=attempt, request=order.request, step=120, work_done=15_360.0,
        work_total=2e7, path="/data/checkpoints/step-120", size_bytes=GB, wall_s=4.0, waits=True,
    )  # fmt: skip
    await world.tell(node, saved)
    await world.obeys_stop(launch, 66.0)
    launch = await world.starts()
    await world.pass_time(10.0)
    again = n.TrainingProgress(
        job=job, attempt=launch.attempt, step=121, work_done=15_488.0, work_total=2e7,
        at_s=world.now_s, step_s=0.5, gpus=gpus, restored_step=120, restore_s=2.0,
    )  # fmt: skip
    await world.tell(launch.share.node, again)
    await world.until(job, lambda story: story.row.moves == 1, "to have migrated")


async def _jobs(world: StillWorld, script: Script) -> None:
    """Jobs in all states, and what changes them."""
    for number in range(4):
        await script.do("gsub -N large -l nodes=1:ppn=12:gpus=2,walltime=2:00:00 job.sh")
        if number < 2:  # the others wait
            await world.starts()
    await script.do("gsub -N held -h -q urgent -p 7 -l walltime=1:00:00 job.sh")
    await script.do("gsub -N later -a 202801011200 -l nodes=2:ppn=4 job.sh")
    later = "9"
    await script.do(f"ghold {later}")
    await script.do(f"grls {later}")
    await script.do(f"galter -N renamed -p 3 -l walltime=0:30:00 {later}")
    await script.do(f"gmove batch {later}")
    await script.do("gselect -s H -p .ge.3")
    await script.do("gseff 1 2")
    await script.do("gprio")
    await script.do("gshare")
    await script.do("glimits")
    await script.do("gres create course --start @1900000000 --duration 4h --nodes 1 --users root")
    await script.do("gres list")
    await script.do("gres delete course")
    await script.do("gmsg hello 99")
    await script.do("gsub -N signalled job.sh")
    signalled = await world.starts()
    await script.do(f"gsig -s USR1 {signalled.job}")
    await world.hears(n.Signal)
    await script.do(f"gdel -m enough {signalled.job}")
    await world.obeys_stop(signalled, 1.0)
    await script.do("gsub -N again job.sh")
    again = await world.starts()
    await script.do(f"grerun {again.job}")
    await world.obeys_stop(again, 1.0)
    again = await world.starts()
    await _peek(world, script, again.job)


async def _peek(world: StillWorld, script: Script, job: int) -> None:
    """A node reads what a job has written."""
    peeking = asyncio.create_task(script.do(f"gpeek {job}"))
    text = b"hello\n"
    while not peeking.done():
        hearing = asyncio.create_task(world.hears(n.ReadOutput))
        await asyncio.wait({hearing, peeking}, return_when=asyncio.FIRST_COMPLETED)
        if not hearing.done():
            hearing.cancel()
            break
        node, asked = hearing.result()
        data = text[asked.offset :] if asked.offset >= 0 else text
        read = n.OutputRead(
            request=asked.request, path="/data/again.o", size_bytes=len(text), data=data,
            offset=max(0, asked.offset),
        )  # fmt: skip
        await world.tell(node, read)
    await peeking


async def _questions(script: Script) -> None:
    """Everything that only asks, and what is refused."""
    for line in (
        "gnodes drain old1 -m broken-fan",
        "gnodes resume nowhere",
        "gstat",
        "gstat -x",
        "gmgr list",
        "gmgr export",
        "gstat --why",
        "gstat -f -a",
        "gstat 1 77",
        "gwait 1 2",
        "ghist",
        "ghist 1 77",
        "ghist --predictions",
        "gnodes",
        "gnodes gpu2",
        "gnodes --predictions",
        "gsched version",
        "gsched recover",
        "gsched config check",
        "gsched init --dir new",
        "gdel 1",
        "gdel --dry-run all",
        "gsub -l nodes=1:gpus=64 job.sh",
        "gsub -l nodes=1:nonsense=1 job.sh",
        f"gsub --reject-if-late --deadline 1m --gpus 1 {' '.join(SIZE)} --torchrun train.py",
        "gmigrate 1",
        "grerun --failed --dry-run 2",
        "grerun --failed 1 77",
        "gstat --nonsense",
    ):
        await script.do(line)
