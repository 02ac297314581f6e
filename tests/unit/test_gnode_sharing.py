"""The node's agent and GPUs that jobs share: what it refuses and remembers."""

import pytest
from msgspec import structs

from gnode.core import effects as do
from gnode.core.inputs import (
    AlarmRang,
    HeadOrder,
    LauncherDown,
    LauncherUp,
    LaunchFailed,
    ShareAbused,
    SharingChanged,
    SharingStatus,
    SpoolEntry,
    SpoolFound,
    Welcomed,
)
from gnode.core.task import AttemptKey
from gsched.model.gpu_tokens import GpuSharing, TokenUse
from gsched.model.job import LaunchFailure
from gsched.model.resources import GpuShare, Share
from gsched.model.states import LaunchStage, OutcomeKind, ShareClass, StopReason, Subject
from gsched.protocol.node import Heartbeat, Launch, Signal, StopAttempt, TakeCheckpoint
from tests.support.agent_driver import Driver, exits, only, order

GIB = 2**30
HIGH, LOW = ShareClass.HIGH, ShareClass.LOW


def driver(**settings: object) -> Driver:
    """Return an agent with two GPUs of 16 GiB that jobs can share."""
    wanted: dict[str, object] = {"sharing": "colocate", **settings}
    return Driver(gpus=2, gpu_memory_bytes=16 * GIB, **wanted)  # type: ignore[arg-type] # as given


def sharing(
    job: int, percent: int, gib: int = 1, share_class: ShareClass = LOW, *, index: int = 0
) -> Launch:
    """Return the launch of a job with a part of a GPU."""
    part = GpuShare(index=index, percent=percent, memory_bytes=gib * GIB, share_class=share_class)
    return order(job, share=Share(node="n1", cpus=1, gpu_shares=(part,)))


def refused(node: Driver, launch: Launch) -> str:
    """Return why a launch is refused; nothing of it may be on disk."""
    effects = node.launch(launch)
    assert not only(effects, do.AcceptTask)
    (record,) = exits(effects)
    return record.message


def test_jobs_share_a_gpu_as_far_as_it_goes() -> None:
    node = driver()
    for launch in (sharing(1, 60, 8), sharing(2, 39, 8)):
        assert only(node.launch(launch), do.AskLaunch)

    assert refused(node, sharing(3, 2, 0)) == (
        "GPU 0 of node n1 is shared by 1.1, 2.1, and has no room for this job"
    )
    assert "has no room" in refused(node, sharing(4, 1, 1)), "of memory"
    assert only(node.launch(sharing(5, 1, 0)), do.AskLaunch)


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        (sharing(2, 10, 1, HIGH), "has no room"),
        (order(2, gpus=(0,)), "GPU 0 of node n1 is shared by 1.1"),
        (sharing(2, 10, 17, index=1), "GPU 1 of node n1 has no room"),
        (sharing(2, 10, 1, index=2), "has no GPU 2"),
    ],
)
def test_a_launch_that_would_exceed_a_gpu_is_refused(launch: Launch, why: str) -> None:
    """A job of the class high has 30 % of GPU 0."""
    node = driver()
    node.launch(sharing(1, 30, 1, HIGH))

    assert why in refused(node, launch)


def test_a_gpu_of_another_job_is_not_shared() -> None:
    node = driver()
    node.launch(order(1, gpus=(0,)))

    assert "still belongs to attempt 1.1" in refused(node, sharing(2, 10))


def test_a_node_without_a_runtime_refuses_and_says_what_to_do() -> None:
    assert "set runtime in [gpu_share]" in refused(driver(sharing=""), sharing(1, 10))


def test_a_share_is_free_when_nothing_of_its_attempt_is_left() -> None:
    node = driver()
    node.launch(sharing(1, 100))
    node.forked()
    node.seen()
    assert only(node.stop(), do.EndSharing) == []

    (end,) = only(node.ended(), do.EndSharing)

    assert end.key == AttemptKey(1, 1)
    assert [share.percent for share in end.shares] == [100]
    assert only(node.launch(order(2, gpus=(0,))), do.AskLaunch)


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        (StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=30.0), 30.0),
        (StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=1e6), 120.0),
        (Signal(job=1, attempt=1, signal=10), 2.0),
        (TakeCheckpoint(job=1, attempt=1, request=1, signal=10), 120.0),
        (TakeCheckpoint(job=1, attempt=1, request=1), 120.0),
    ],
)
def test_a_job_that_is_sent_something_need_not_wait_for_its_gpu(
    message: StopAttempt | Signal | TakeCheckpoint, seconds: float
) -> None:
    node = driver()
    node.launch(sharing(1, 60))
    node.forked()
    node.seen()

    (attended,) = only(node.step(HeadOrder(message=message)), do.AttendSharing)

    assert (attended.key, attended.seconds) == (AttemptKey(1, 1), seconds)
    assert [share.percent for share in attended.shares] == [60]


def test_a_job_with_whole_gpus_waits_for_none() -> None:
    node = driver()
    node.launch(order(1, gpus=(0,)))
    node.forked()
    node.seen()

    assert only(node.stop(), do.AttendSharing) == []


def test_a_restarted_gnode_knows_what_is_shared() -> None:
    """From the tasks in its spool."""
    before = driver()
    (accepted,) = only(before.launch(sharing(1, 60)), do.AcceptTask)
    node = driver(welcome=False)
    found = SpoolEntry(key=AttemptKey(1, 1), task=accepted.task, info=None, record=None)
    node.step(SpoolFound(found=(found,)))

    assert "shared by 1.1" in refused_after_welcome(node, sharing(2, 41))


def refused_after_welcome(node: Driver, launch: Launch) -> str:
    node.step(Welcomed(cluster="c", epoch=1))
    return refused(node, launch)


def test_the_load_is_told_each_minute_while_a_gpu_is_shared() -> None:
    """The head chooses GPUs by it; otherwise the next report would be minutes away."""
    node = driver()
    node.now_s += 100.0
    node.launch(sharing(1, 60))

    assert node.agent.next_alarm_s() == pytest.approx(node.now_s - 40.0), "a minute is over"
    assert beats(node)
    node.now_s += 59.0
    assert not beats(node)
    node.now_s += 1.0
    assert beats(node)
    node.forked()
    node.seen()
    node.ended()
    node.now_s += 299.0
    assert not beats(node)
    node.now_s += 1.0
    assert beats(node)


def beats(node: Driver) -> bool:
    """Return whether the load is sent when the alarm rings."""
    sent = only(node.step(AlarmRang()), do.SendToHead)
    return any(isinstance(each.message, Heartbeat) for each in sent)


# ---- admission, which takes a while ----


def admitting(**settings: object) -> tuple[Driver, do.AdmitSharing]:
    """Return an agent whose runtime is about to admit attempt 1.1."""
    node = driver(**settings)
    node.admits = False
    effects = node.launch(sharing(1, 60))
    assert not only(effects, do.AcceptTask)
    assert not only(effects, do.AskLaunch)
    (asked,) = only(effects, do.AdmitSharing)
    return node, asked


def test_nothing_is_accepted_before_it_is_admitted_and_its_share_is_taken_at_once() -> None:
    node, asked = admitting()
    assert "shared by 1.1" in refused(node, sharing(2, 41))
    assert not only(node.step(LauncherDown()) + node.step(LauncherUp()), do.AskLaunch)

    effects = node.admitted(asked)

    assert [type(effect) for effect in effects] == [do.AcceptTask, do.AskLaunch]
    assert not node.admitted(asked)[:-1], "a second answer only ends the right that is left over"


def test_a_job_that_is_stopped_while_it_is_admitted_never_starts() -> None:
    """The right that it gets afterwards is given back."""
    node, asked = admitting()

    (record,) = exits(node.stop(1))
    assert record.kind is OutcomeKind.CANCELLED
    late = node.admitted(asked)

    assert [type(effect) for effect in late] == [do.EndSharing]
    assert only(node.launch(order(2, gpus=(0,))), do.AskLaunch)


def test_a_job_that_is_not_admitted_has_failed_to_launch() -> None:
    node, asked = admitting()
    failure = LaunchFailure(stage=LaunchStage.DEVICE, subject=Subject.NODE)

    effects = node.step(LaunchFailed(key=asked.task.key, message="no daemon", failure=failure))

    (record,) = exits(effects)
    assert (record.kind, record.message) == (OutcomeKind.LAUNCH_FAILED, "no daemon")
    assert only(effects, do.EndSharing)
    assert only(node.launch(order(2, gpus=(0,))), do.AskLaunch)


def test_a_later_attempt_waits_for_the_end_of_an_earlier_one_and_for_its_admission() -> None:
    node = driver()
    node.launch(sharing(1, 60))
    node.forked()
    node.seen()
    node.admits = False
    launch = order(1, 2, share=sharing(1, 60).share)
    (asked,) = only(node.launch(launch), do.AdmitSharing)

    assert not only(node.admitted(asked), do.AskLaunch)
    assert only(node.ended(), do.AskLaunch) == [do.AskLaunch(key=AttemptKey(1, 2))]


def test_without_its_runtime_a_node_launches_no_further_job_that_shares() -> None:
    node = driver()

    node.step(SharingChanged(sharing=""))

    assert "set runtime in [gpu_share]" in refused(node, sharing(1, 10))


# ---- what the head hears ----


def sharing_told(node: Driver, sharing: GpuSharing) -> list[Heartbeat]:
    """Let the node look at its token daemon; return what it tells the head at once."""
    sent = only(node.step(SharingStatus(sharing=sharing)), do.SendToHead)
    return [each.message for each in sent if isinstance(each.message, Heartbeat)]


def test_a_demoted_job_is_told_at_once_and_counts_with_the_next_heartbeat() -> None:
    node = driver()
    use = TokenUse(job=1, attempt=1, index=0)
    first = GpuSharing(words="interception", jobs=(use,))
    assert [beat.gpu_sharing for beat in sharing_told(node, first)] == [first]

    counted = structs.replace(first, jobs=(structs.replace(use, held_s=5.0, overlaps=2),))
    assert sharing_told(node, counted) == []
    demoted = structs.replace(first, jobs=(structs.replace(use, demoted=True),))
    assert [beat.gpu_sharing for beat in sharing_told(node, demoted)] == [demoted]


def test_a_job_that_is_killed_for_its_turns_ends_with_the_reason() -> None:
    """It is the message of its outcome, which gstat -f shows."""
    node = driver()
    node.launch(sharing(1, 60))
    node.forked()
    node.seen()
    why = "job 1.1 has not left the shared GPU to others"

    effects = node.step(ShareAbused(key=AttemptKey(1, 1), why=why))

    assert [each.text for each in only(effects, do.Warn)] == [why]
    assert node.step(ShareAbused(key=AttemptKey(1, 1), why="again")) == []
    (record,) = exits(node.ended(code=137))
    assert (record.exit_code, record.message) == (137, why)
    assert node.step(ShareAbused(key=AttemptKey(1, 1), why="too late")) == []
