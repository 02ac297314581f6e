"""Tasks that share a GPU and the runtime that isolates them: told once, forgotten at the end."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import pytest

from gnode.core.binding import bind
from gnode.core.effects import AttendSharing, EndSharing
from gnode.core.task import AcceptedTask, AttemptKey
from gnode.daemon.sharing import Sharing
from gnode.gpushare import Runtime, SharedTask, ShareRefusedError
from gnode.gpushare.tokens import Tokens
from gsched.model.gpu_tokens import GpuSharing, TokenGpu, TokenUse
from gsched.model.resources import Gpu, GpuShare, Inventory, Share
from gsched.model.states import ShareClass
from tests.support.agent_driver import ALICE, order, site

PART = GpuShare(index=1, percent=40, memory_bytes=2**34, share_class=ShareClass.HIGH)
GPUS = (Gpu(index=0, uuid="GPU-0"), Gpu(index=1, uuid="GPU-1"))


class Noted(Runtime):
    """A runtime that notes what it is told."""

    def __init__(
        self, *, missing: str | None = None, broken: str = "", refuses: bool = False
    ) -> None:
        self.told: list[tuple[str, SharedTask | None]] = []
        self.kept: list[str] = []
        self.tokens: Tokens | None = None
        self.largest: dict[str, int] | None = None
        self._missing = missing
        self._broken = broken
        self._refuses = refuses

    def missing(self) -> str | None:
        return self._missing

    def prepare(self, busy: Collection[int] = ()) -> None:
        if self._broken:
            raise ShareRefusedError(self._broken)

    def largest_shares(self) -> Mapping[str, int] | None:
        return self.largest

    def keep(self, tasks: Iterable[SharedTask]) -> None:
        self.kept.extend(f"{task.job}.{task.attempt}" for task in tasks)

    def attend(self, task: SharedTask, seconds: float) -> None:
        self.kept.append(f"{task.job}.{task.attempt} for {seconds:g} s")

    def look(self) -> Tokens | None:
        return self.tokens

    def notify(self, call: Callable[[str, str], None]) -> None:
        call("7.2", "a reason")

    def punish(self, tokens: Tokens) -> None:
        self.kept.extend(f"killed {group}" for group, _ in tokens.demoted())

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        if self._refuses:
            raise ShareRefusedError("no room")
        self.told.append(("admit", task))
        return {
            "CUDA_VISIBLE_DEVICES": task.gpu_name,
            "LD_PRELOAD": "/a.so",
            "LD_LIBRARY_PATH": "/a",
        }

    def release(self, task: SharedTask) -> None:
        self.told.append(("release", task))

    def held_s(self) -> Mapping[str, float]:
        return {"7.2": 1.5}

    def close(self) -> None:
        self.told.append(("close", None))


def task(**environment: str) -> AcceptedTask:
    launch = order(
        7, 2, share=Share(node="n1", cpus=1, gpu_shares=(PART,)), environment=environment
    )
    return bind(launch, ALICE, site())


def test_a_task_is_admitted_with_its_gpu_and_gets_the_runtimes_environment() -> None:
    """What the runtime preloads comes before what the job has preloaded itself."""
    runtime = Noted()
    sharing = Sharing("interception", runtime, GPUS)
    admitted = sharing.admitted(task(LD_PRELOAD="/mine.so", MINE="kept"))

    assert sharing.offered == "interception"
    assert admitted.env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert admitted.env["LD_PRELOAD"] == "/a.so:/mine.so"
    assert (admitted.env["LD_LIBRARY_PATH"], admitted.env["MINE"]) == ("/a", "kept")
    known = SharedTask(
        job="7",
        attempt=2,
        gpu_index=1,
        gpu_uuid="GPU-1",
        percent=40,
        memory_bytes=2**34,
        share_class=ShareClass.HIGH,
    )
    assert runtime.told == [("admit", replace(known, directory=admitted.user_dir))]
    sharing.attend(AttendSharing(key=AttemptKey(7, 2), shares=(PART,), seconds=30.0))
    assert runtime.kept == ["7.2 for 30 s"]
    sharing.ended(EndSharing(key=AttemptKey(7, 2), shares=(PART,)))
    sharing.close()
    assert runtime.told[1:] == [("release", known), ("close", None)]


def test_a_task_with_whole_gpus_is_none_of_the_runtimes_business() -> None:
    runtime = Noted()
    whole = bind(order(gpus=(1,)), ALICE, site())

    assert Sharing("mps", runtime, GPUS).admitted(whole) == whole
    assert runtime.told == []


def test_a_refusal_of_the_runtime_is_passed_on() -> None:
    sharing = Sharing("mps", Noted(refuses=True), GPUS)

    with pytest.raises(ShareRefusedError, match="no room"):
        sharing.admitted(task())
    sharing.admit_again(task())  # it runs already: that is for the log only


@pytest.mark.parametrize(
    ("runtime", "gpus"), [(None, GPUS), (Noted(missing="no daemon"), GPUS), (Noted(), ())]
)
def test_without_runtime_or_gpus_nothing_is_offered(
    runtime: Noted | None, gpus: tuple[Gpu, ...]
) -> None:
    assert Sharing("mps", runtime, gpus).offered == ""


def test_without_a_runtime_no_task_is_admitted() -> None:
    with pytest.raises(ShareRefusedError, match="no runtime"):
        Sharing("none", None, GPUS).admitted(task())


def test_what_an_earlier_gnode_admitted_is_kept_with_its_device() -> None:
    """The task says which device it has: a MIG instance must not be chosen again."""
    runtime = Noted()
    sharing = Sharing("mig", runtime, GPUS)
    assert sharing.words == "mig: it is being prepared"

    before = task()
    sharing.prepare([replace(before, env={**before.env, "CUDA_VISIBLE_DEVICES": "MIG-3"})])

    assert (sharing.offered, sharing.words) == ("mig", "mig")
    assert runtime.kept == ["7.2"]
    (told,) = runtime.told
    assert told[1] is not None
    assert told[1].visible == "MIG-3"


def test_a_runtime_that_cannot_be_prepared_is_offered_no_longer() -> None:
    sharing = Sharing("interception", Noted(broken="cc fails:\n  no stdio.h"), GPUS)
    assert sharing.offered == "interception"

    sharing.prepare()

    assert (sharing.offered, sharing.words) == ("", "none: cc fails: no stdio.h")


def test_the_head_is_told_the_largest_share_of_each_gpu() -> None:
    """As far as that is known: of MIG instances when they have been made."""
    inventory = Inventory(cpus=1, memory_bytes=1, gpus=GPUS)
    runtime = Noted()
    sharing = Sharing("mig", runtime, GPUS)
    assert sharing.shareable(inventory) == inventory

    runtime.largest = {"GPU-1": 5}
    sharing.prepare()
    told = {gpu.uuid: gpu.share_bytes_max for gpu in sharing.shareable(inventory).gpus}
    assert told == {gpu.uuid: 5 if gpu.uuid == "GPU-1" else 0 for gpu in GPUS}


GPU_ROW = {
    "holder": "7.2",
    "grants": 9,
    "preemptions": 2,
    "drains": 4,
    "drain_s_max": 0.5,
    "drain_s_sum": 0.6,
    "overlaps": 3,
}
JOB_ROW = {
    "gpu": "GPU-1",
    "pids": [10, 11],
    "held_s": 1.5,
    "launches": 100,
    "overlaps": 3,
    "used_bytes": 64,
    "refused_allocations": 1,
    "demoted": True,
}


def test_the_head_is_told_how_jobs_take_turns() -> None:
    """By the indices of the GPUs; what the daemon says of a GPU that is gone is left out."""
    runtime = Noted()
    sharing = Sharing("interception", runtime, GPUS)
    sharing.prepare()
    assert sharing.look() == GpuSharing(words="interception")
    gone = {**JOB_ROW, "gpu": "GPU-9"}
    runtime.tokens = Tokens(
        {
            "unhooked_symbols": 5,
            "gpus": {"GPU-1": GPU_ROW, "GPU-9": GPU_ROW},
            "groups": {"7.2": JOB_ROW, "8.1": gone},
        },
        restarts=2,
    )

    told = sharing.look()

    gpu = TokenGpu(
        index=1,
        holder=7,
        switches=9,
        preemptions=2,
        drains=4,
        drain_s_max=0.5,
        drain_s_sum=0.6,
        overlaps=3,
    )
    use = TokenUse(
        job=7,
        attempt=2,
        index=1,
        held_s=1.5,
        launches=100,
        overlaps=3,
        memory_bytes=64,
        refused=1,
        demoted=True,
    )
    assert told == GpuSharing(
        words="interception",
        gpus=(gpu,),
        jobs=(use,),
        unhooked_symbols=5,
        restarts=2,
    )
    assert "killed 7.2" in runtime.kept
    assert Sharing("none", None, GPUS).look() is None
