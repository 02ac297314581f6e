"""The node's agent: what it makes of its spool at a restart, and how it ends."""

from gnode.core import effects as do
from gnode.core.inputs import (
    AlarmRang,
    HeadOrder,
    LauncherDown,
    LauncherUp,
    SpoolEntry,
    SpoolFound,
    StopAllRequested,
    Welcomed,
)
from gnode.core.task import AttemptKey
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol.node import OutputRead, ReadOutput
from tests.support.agent_driver import (
    Driver,
    exits,
    info,
    only,
    order,
    record,
    refusal,
    starts,
)

KEY = AttemptKey(1, 1)


# --- restart ---


def found(**settings: object) -> SpoolEntry:
    values: dict[str, object] = {"key": KEY, "task": None, "info": None, "record": None}
    return SpoolEntry(**{**values, **settings})  # type: ignore[arg-type]  # as the tests state them


def accepted_task() -> object:
    return only(Driver(gpus=2).launch(order(gpus=(1,))), do.AcceptTask)[0].task


def restarted(*lying: SpoolEntry, **settings: object) -> Driver:
    driver = Driver(welcome=False, launcher=False, gpus=2, **settings)  # type: ignore[arg-type] # passed on as they are
    driver.step(SpoolFound(found=lying))
    return driver


def test_c2_accepted_but_never_forked_is_asked_for_when_there_is_a_launcher() -> None:
    driver = restarted(found(task=accepted_task()))

    assert only(driver.done, do.AskLaunch) == []
    assert driver.step(LauncherUp()) == [do.AskLaunch(key=KEY)]


def test_c4_a_running_attempt_keeps_its_gpus_and_is_reported_running() -> None:
    driver = restarted(found(task=accepted_task(), info=info()))
    assert driver.step(LauncherUp()) == [do.LookAtSpool(keys=(KEY,))]
    driver.step(Welcomed(cluster="c", epoch=1))

    assert starts(driver.done)[0].pid == 51
    assert "GPU 1 of node n1 still belongs" in refusal(driver, gpus=(1,))


def test_an_end_between_two_launchers_is_found_in_the_spool() -> None:
    driver = Driver()
    driver.run()
    driver.step(LauncherDown())
    assert only(driver.launch(order(2)), do.AskLaunch) == []

    effects = driver.step(LauncherUp())
    assert effects == [do.LookAtSpool(keys=(KEY,)), do.AskLaunch(key=AttemptKey(2, 1))] or (
        effects == [do.AskLaunch(key=AttemptKey(2, 1)), do.LookAtSpool(keys=(KEY,))]
    )
    effects = driver.step(SpoolFound(found=(found(record=record(code=6)),)))

    assert exits(effects)[0].exit_code == 6
    assert driver.step(SpoolFound(found=(found(record=record(code=6)),))) == []


def test_a_launch_whose_answer_was_lost_is_asked_for_again() -> None:
    driver = Driver()
    driver.launch(order())
    driver.step(LauncherDown())
    assert driver.step(LauncherUp()) == [do.LookAtSpool(keys=(KEY,))]

    effects = driver.step(SpoolFound(found=(found(task=accepted_task()),)))

    assert effects == [do.AskLaunch(key=KEY)]
    driver.forked()
    assert driver.forked() == []


def test_a_record_in_the_spool_is_reported_even_without_a_task() -> None:
    driver = restarted(found(record=record(code=9)))

    assert exits(driver.step(Welcomed(cluster="c", epoch=1)))[0].exit_code == 9


def test_c11_what_cannot_be_read_is_set_aside() -> None:
    driver = restarted(found())

    assert driver.done == [do.SetAside(key=KEY)]


def test_c12_another_boot_id_ends_what_was_there() -> None:
    driver = restarted(found(task=accepted_task(), info=info()), boot_id="boot-2")

    (written,) = only(driver.done, do.WriteExit)
    assert written.record.kind is OutcomeKind.NODE_LOST
    assert written.record.started_s == 100.0
    assert only(driver.step(LauncherUp()), do.AskLaunch) == []


def test_two_attempts_of_a_job_in_the_spool_do_not_run_together() -> None:
    newer = only(Driver().launch(order(1, 2)), do.AcceptTask)[0].task
    driver = restarted(
        SpoolEntry(key=AttemptKey(1, 2), task=newer, info=None, record=None),
        found(task=accepted_task(), info=info()),
    )

    (command,) = only(driver.done, do.CommandSupervisor)
    assert command.key == KEY
    assert only(driver.step(LauncherUp()), do.AskLaunch) == []
    assert only(driver.ended(), do.AskLaunch) == [do.AskLaunch(key=AttemptKey(1, 2))]


# --- the end of the daemon ---


def test_stopping_all_ends_every_attempt_and_then_the_daemon() -> None:
    driver = Driver()
    driver.run(1)
    driver.run(2)

    commands = only(driver.step(StopAllRequested()), do.CommandSupervisor)
    assert {each.command.reason for each in commands} == {StopReason.NODE_STOP}  # type: ignore[union-attr] # only stops are given
    refused = exits(driver.launch(order(3)))[0]
    assert (refused.kind, refused.stop_reason) == (
        OutcomeKind.LAUNCH_FAILED,
        StopReason.NODE_STOP,
    )
    driver.ended(1)
    driver.ended(2)
    assert only(driver.done, do.Finish) == []  # the head has not heard yet
    driver.ack(1)
    driver.ack(2)
    assert only(driver.ack(3), do.Finish) == [do.Finish()]
    assert only(driver.step(AlarmRang()), do.Finish) == []


def test_a_machine_that_shuts_down_stops_its_jobs_as_lost_ones_and_takes_no_others() -> None:
    driver = Driver()
    driver.run(1)
    driver.launch(order(1, 2))  # waits for the end of the older attempt, which is fenced
    driver.run(2)

    done = driver.step(StopAllRequested(shuts_down=True))

    reasons = {each.key.job: each.command.reason for each in only(done, do.CommandSupervisor)}  # type: ignore[union-attr] # only stops are given
    assert reasons == {1: StopReason.FENCED, 2: StopReason.SHUTDOWN}
    (ended,) = exits(done)
    assert (ended.attempt, ended.kind, ended.stop_reason) == (2, OutcomeKind.NODE_LOST, None)
    refused = exits(driver.launch(order(3)))[0]
    assert (refused.kind, refused.stop_reason) == (OutcomeKind.LAUNCH_FAILED, None)
    assert "shuts down" in refused.message


def test_stopping_all_does_not_wait_long_for_a_head_that_does_not_answer() -> None:
    driver = Driver()
    driver.run(1)
    driver.step(StopAllRequested())
    driver.ended(1)
    assert only(driver.done, do.Finish) == []
    driver.now_s += 10.1

    assert only(driver.step(AlarmRang()), do.Finish) == [do.Finish()]


def test_stopping_an_idle_node_ends_it_at_once() -> None:
    assert Driver().step(StopAllRequested()) == [do.Finish()]


def test_stopping_all_ends_what_waits_for_an_older_attempt() -> None:
    driver = Driver()
    driver.run()
    driver.launch(order(1, 2))

    (ended,) = exits(driver.step(StopAllRequested()))

    assert (ended.attempt, ended.stop_reason) == (2, StopReason.NODE_STOP)


def test_output_of_an_attempt_without_a_readable_task_is_not_read() -> None:
    """Nobody knows its owner, and the paths in its supervisor's record are the user's choice."""
    asked = ReadOutput(request=8, job=1, attempt=1, stream="stdout", offset=0, max_bytes=9)
    for lying in (found(info=info(), record=record()), found(record=record())):
        driver = restarted(lying)
        driver.step(Welcomed(cluster="c", epoch=1))

        effects = driver.step(HeadOrder(message=asked))

        assert only(effects, do.ReadFile) == []
        (sent,) = only(effects, do.SendToHead)
        assert isinstance(sent.message, OutputRead)
        assert sent.message.request == 8
        assert "does not know whose attempt 1.1 is" in sent.message.error


def test_an_attempt_whose_record_cannot_be_read_stays_as_it_is_until_it_can() -> None:
    """Not even another boot, or no sign of a start, says that it has no outcome."""
    for settings in ({}, {"info": info()}):
        for boot in ("boot-1", "boot-2"):
            lying = found(task=accepted_task(), doubt="EIO", **settings)
            driver = restarted(lying, boot_id=boot)
            driver.step(LauncherUp())
            driver.done.clear()
            driver.step(SpoolFound(found=(lying,)))

            assert driver.done == []
            assert driver.agent.attempts[KEY].live

            driver.step(SpoolFound(found=(found(task=accepted_task(), record=record(code=7)),)))
            ended = driver.agent.attempts[KEY].record
            assert ended is not None
            assert ended.exit_code == 7
            assert only(driver.done, do.WriteExit) == []
