"""The node's own probe: a start of nothing, whatever befalls it."""

import errno

import pytest

from gnode.core import effects as do
from gnode.core import probe
from gnode.core.inputs import (
    AlarmRang,
    Disconnected,
    HeadOrder,
    Launched,
    LauncherDown,
    LauncherUp,
    LaunchFailed,
    LeftoverGone,
    SpoolEntry,
    SpoolFound,
    SupervisorEnded,
)
from gnode.core.task import Account, AttemptKey
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.states import LaunchStage, OutcomeKind, Subject
from gsched.protocol.node import Probe, Probed
from tests.support.agent_driver import Driver, info, only

NOBODY = Account(user="nobody", uid=65534, gid=65534, home="/", shell="/usr/sbin/nologin")
KEY = AttemptKey(0, 1)
FAILURE = LaunchFailure(stage=LaunchStage.GROUP, subject=Subject.NODE, errno=errno.EROFS)


def driver(**settings: object) -> Driver:
    return Driver(probe_account=NOBODY, **settings)  # type: ignore[arg-type]  # as `Driver`


def answers(effects: list[do.Effect]) -> list[Probed]:
    sent = only(effects, do.SendToHead)
    return [each.message for each in sent if isinstance(each.message, Probed)]


def ended(key: AttemptKey = KEY, **changes: object) -> SupervisorEnded:
    fields: dict[str, object] = {"kind": OutcomeKind.EXITED, "exit_code": 0, **changes}
    record = ExitRecord(job=key.job, attempt=key.attempt, **fields)  # type: ignore[arg-type]  # as its fields
    return SupervisorEnded(key=key, record=record, info=None)


def test_a_probe_takes_the_way_of_jobs_as_an_ordinary_user() -> None:
    node = driver(cgroup_root="/cg", memory_root=(1, "/mem"))

    effects = node.step(HeadOrder(message=Probe(request=7)))

    (accepted,) = only(effects, do.AcceptTask)
    task = accepted.task
    assert (task.uid, task.switch_user, task.key) == (65534, True, KEY)
    assert (task.cgroup, task.user_dir, len(task.files)) == ("/cg/0.1", "/s/user/0.1", 1)
    assert task.memory_cgroup is not None
    assert only(effects, do.AskLaunch) == [do.AskLaunch(key=KEY)]
    node.step(Launched(key=KEY, pid=5, start_ticks=50))
    effects = node.step(ended())
    assert answers(effects) == [Probed(request=7, passed=True)]
    assert only(effects, do.RemoveSpool) == [do.RemoveSpool(key=KEY)]
    assert only(effects, do.RemoveFiles) == [do.RemoveFiles(user_dir="/s/user/0.1")]
    assert node.agent.next_alarm_s() == node.now_s + 300.0  # the heartbeat alone


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (LaunchFailed(key=KEY, message="cannot fork", failure=FAILURE), "cannot fork"),
        (ended(kind=OutcomeKind.LAUNCH_FAILED, message="no group", failure=FAILURE), "no group"),
        (ended(exit_code=3), "a program that does nothing exited (exit code 3)"),
        (
            ended(kind=OutcomeKind.SIGNALLED, exit_code=None, signal=9),
            "a program that does nothing signalled",
        ),
        (SupervisorEnded(key=KEY, record=None, info=None), "the supervisor of the probe was lost"),
    ],
)
def test_a_probe_that_fails_says_why(event: LaunchFailed | SupervisorEnded, message: str) -> None:
    node = driver()
    node.step(HeadOrder(message=Probe(request=7)))

    effects = node.step(event)

    (said,) = answers(effects)
    assert (said.request, said.passed, said.message) == (7, False, message)
    assert only(effects, do.RemoveSpool) == [do.RemoveSpool(key=KEY)]


def test_a_probe_that_hangs_has_failed_and_is_killed() -> None:
    node = driver()
    node.step(HeadOrder(message=Probe(request=7)))
    node.step(Launched(key=KEY, pid=5, start_ticks=50))

    node.now_s += probe.LIMIT_S
    effects = node.step(AlarmRang())

    (said,) = answers(effects)
    assert said.message == "a program that does nothing did not end within 60 s"
    (kill,) = only(effects, do.KillLeftover)
    assert (kill.key, kill.supervisor_pid) == (KEY, 5)
    assert only(node.step(LeftoverGone(key=KEY)), do.RemoveSpool) == [do.RemoveSpool(key=KEY)]
    second = node.step(HeadOrder(message=Probe(request=8)))
    assert only(second, do.AcceptTask)[0].task.key == AttemptKey(0, 2)


def test_one_probe_at_a_time_answers_the_newest_request() -> None:
    node = driver()
    node.step(HeadOrder(message=Probe(request=7)))

    assert node.step(HeadOrder(message=Probe(request=8))) == []
    assert answers(node.step(ended())) == [Probed(request=8, passed=True)]


def test_the_launcher_is_asked_when_there_is_one() -> None:
    node = driver(launcher=False)
    assert only(node.step(HeadOrder(message=Probe(request=7))), do.AskLaunch) == []

    assert only(node.step(LauncherUp()), do.AskLaunch) == [do.AskLaunch(key=KEY)]
    assert only(node.step(LauncherDown()), do.AskLaunch) == []
    assert only(node.step(LauncherUp()), do.AskLaunch) == [do.AskLaunch(key=KEY)]


def test_nobody_is_told_while_no_head_listens() -> None:
    node = driver()
    node.step(HeadOrder(message=Probe(request=7)))
    node.step(Disconnected())

    assert answers(node.step(ended())) == []


def test_what_an_earlier_gnode_left_of_a_probe_is_cleared_away_and_its_number_not_used() -> None:
    over = SpoolEntry(key=AttemptKey(0, 4), task=None, info=None, record=ended().record)
    runs = SpoolEntry(key=AttemptKey(0, 5), task=None, info=info(), record=None)
    node = driver()

    effects = node.step(SpoolFound(found=(over, runs)))

    assert only(effects, do.RemoveSpool) == [do.RemoveSpool(key=AttemptKey(0, 4))]
    assert [each.key for each in only(effects, do.KillLeftover)] == [AttemptKey(0, 5)]
    assert node.agent.attempts == {}
    started = node.step(HeadOrder(message=Probe(request=1)))
    assert only(started, do.AcceptTask)[0].task.key == AttemptKey(0, 6)


def test_a_node_without_a_user_for_probes_does_nothing() -> None:
    node = Driver()

    effects = node.step(HeadOrder(message=Probe(request=7)))

    assert [type(each) for each in effects] == [do.Warn]
