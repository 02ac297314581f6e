"""The node's agent: attempts that are prepared, launched as prepared, and ended."""

from typing import Any

import pytest

from gnode.core import effects as do
from gnode.core.inputs import (
    Disconnected,
    HeadOffered,
    HeadOrder,
    LauncherUp,
    LaunchOrder,
    ProblemChanged,
    SpoolEntry,
    SpoolFound,
    SupervisorEnded,
    SurveyReceived,
    TrainingMessage,
    Welcomed,
)
from gnode.core.task import AcceptedTask, AttemptKey, LaunchCommand, StopCommand
from gsched.model.job import ExitRecord
from gsched.model.states import LaunchKind, OutcomeKind, StopReason
from gsched.protocol.node import Launch, Prepared, StopAttempt, SurveyAttempts
from tests.support.agent_driver import ALICE, Driver, exits, info, only, order, record, starts

KEY = AttemptKey(1, 2)
SHUT = ExitRecord(
    job=1, attempt=2, kind=OutcomeKind.LAUNCH_FAILED, message="its prepared processes ended"
)


def next_attempt(**settings: Any) -> Launch:
    """Return the launch of attempt 2 of alice's training on GPU 1."""
    return order(
        1,
        2,
        gpus=(1,),
        launch=LaunchKind.TORCHRUN,
        arguments=("train.py",),
        checkpoint_dir="/home/alice/c",
        **settings,
    )


def prepare(driver: Driver, launch: Launch | None = None) -> list[do.Effect]:
    asked = launch or next_attempt()
    return driver.step(LaunchOrder(launch=asked, account=ALICE, prepare=True))


def waiting(**settings: object) -> Driver:
    """Return a node on which attempt 2 waits at its gate."""
    driver = Driver(gpus=2, **settings)  # type: ignore[arg-type] # as the driver takes them
    prepare(driver)
    driver.forked(1, 2)
    driver.seen(1, 2)
    driver.step(TrainingMessage(message=Prepared(job=1, attempt=2)))
    return driver


def commands(effects: list[do.Effect]) -> list[object]:
    return [effect.command for effect in only(effects, do.CommandSupervisor)]


def is_killed(effects: list[do.Effect]) -> bool:
    return commands(effects) == [StopCommand(reason=StopReason.FENCED, grace_s=0.0)]


def ended(driver: Driver, why: ExitRecord = SHUT) -> list[do.Effect]:
    return driver.step(SupervisorEnded(key=KEY, record=why, info=None))


def test_a_prepared_attempt_owns_no_gpu_has_no_port_and_is_no_start() -> None:
    driver = Driver(gpus=2)
    (accepted,) = only(prepare(driver), do.AcceptTask)
    task = accepted.task

    assert task.gate
    assert task.gpu_indices == ()
    assert task.env["CUDA_VISIBLE_DEVICES"] == ""
    assert task.env["GSCHED_GATE"] == "stdin"
    assert "MASTER_PORT" not in task.env
    assert task.walltime_s == 900.0
    driver.forked(1, 2)
    assert starts(driver.seen(1, 2)) == []
    other = driver.launch(order(7, gpus=(1,)))  # the GPU is free for others until the launch
    assert only(other, do.AcceptTask) != []


def test_the_head_hears_when_all_wait() -> None:
    driver = waiting()

    assert do.SendToHead(message=Prepared(job=1, attempt=2)) in driver.done


def test_the_launch_opens_the_gate_and_is_the_start() -> None:
    driver = waiting()
    driver.now_s = 1010.0
    effects = driver.launch(next_attempt(master_port=20_001))

    (kept,) = only(effects, do.KeepLaunched)
    assert kept.task.gate
    assert kept.task.gpu_indices == (1,)
    assert kept.task.env["MASTER_PORT"] == "20001"
    assert kept.task.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert "GSCHED_GATE" not in kept.task.env
    assert commands(effects) == [LaunchCommand(at_s=1010.0, walltime_s=None)]
    assert effects.index(kept) < effects.index(only(effects, do.CommandSupervisor)[0])
    (started,) = starts(effects)
    assert started.warm
    assert started.started_s == 6010.0
    (same,) = starts(driver.launch(next_attempt()))  # idempotent
    assert same.warm
    refused = driver.launch(order(7, gpus=(1,)))
    assert "still belongs to attempt 1.2" in exits(refused)[0].message


def test_a_launch_before_the_supervisor_is_seen_waits_for_it() -> None:
    driver = Driver(gpus=2)
    prepare(driver)
    effects = driver.launch(next_attempt())
    assert [type(effect) for effect in effects] == [do.KeepLaunched]

    assert commands(driver.forked(1, 2)) == [LaunchCommand(at_s=1000.0, walltime_s=None)]
    (started,) = starts(driver.seen(1, 2))
    assert started.warm


def test_the_gate_opens_only_when_an_older_attempt_here_has_ended() -> None:
    driver = Driver(gpus=2)
    driver.run(1, 1)
    prepare(driver)
    driver.forked(1, 2)
    driver.seen(1, 2)

    effects = driver.launch(next_attempt())
    assert only(effects, do.KeepLaunched) == []
    assert is_killed(effects)  # the older one
    assert only(effects, do.CommandSupervisor)[0].key == AttemptKey(1, 1)

    effects = driver.ended(1, 1)
    assert [kept.task.key for kept in only(effects, do.KeepLaunched)] == [KEY]
    assert starts(effects)[0].warm


def test_to_prepare_does_not_touch_the_attempt_that_trains() -> None:
    driver = Driver(gpus=2)
    driver.run(1, 1)

    assert [type(effect) for effect in prepare(driver)] == [do.AcceptTask, do.AskLaunch]


@pytest.mark.parametrize("older", [2, 3])
def test_an_attempt_that_is_known_or_overtaken_is_not_prepared(older: int) -> None:
    driver = Driver(gpus=2)
    driver.run(1, older)

    effects = prepare(driver)

    assert only(effects, do.AcceptTask) == []
    assert exits(effects) == []


def test_the_loss_of_the_connection_ends_it() -> None:
    driver = waiting()

    assert is_killed(driver.step(Disconnected()))
    ended(driver)
    driver.step(Welcomed(cluster="c", epoch=1))
    (told,) = exits(driver.launch(next_attempt()))  # of which the head hears nothing else
    assert told.kind is OutcomeKind.LAUNCH_FAILED
    assert told.stop_reason is None


def test_a_launch_of_one_that_is_ending_is_answered_by_its_end() -> None:
    driver = waiting()
    driver.step(Disconnected())
    driver.step(Welcomed(cluster="c", epoch=1))

    assert driver.launch(next_attempt()) == []
    assert exits(ended(driver)) == [SHUT]


def test_neither_a_registration_nor_a_survey_tells_of_it() -> None:
    driver = waiting()
    (registered,) = only(driver.step(HeadOffered(cluster="c", epoch=1)), do.SendRegister)
    assert registered.attempts == ()

    survey = SurveyAttempts(first_unknown=1, unfinished=())
    (known,) = only(driver.step(SurveyReceived(survey=survey)), do.TellKnown)
    assert known.attempts == ()
    ended(driver)
    (known,) = only(driver.step(SurveyReceived(survey=survey)), do.TellKnown)
    assert known.attempts == ()  # nor when it is over: it has never been an attempt
    assert only(driver.ack(1, 2), do.Bury) == []


def test_a_stop_ends_it_and_no_launch_of_its_number_starts_anything() -> None:
    driver = waiting()
    stop = StopAttempt(job=1, attempt=2, reason=StopReason.FENCED, grace_s=0.0)
    driver.done.clear()
    assert is_killed(driver.step(HeadOrder(message=stop)))
    ended(driver)
    driver.ack(1, 2)

    effects = driver.launch(next_attempt())
    assert [type(effect) for effect in effects] == [do.RecallEnded]
    assert only(prepare(driver), do.AcceptTask) == []


def test_the_launch_of_a_later_attempt_fences_it() -> None:
    driver = waiting()

    effects = driver.launch(order(1, 3))

    assert is_killed(effects)
    assert only(effects, do.AskLaunch) == []
    assert [ask.key for ask in only(ended(driver), do.AskLaunch)] == [AttemptKey(1, 3)]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OutcomeKind.EXITED, None),
        (OutcomeKind.SIGNALLED, StopReason.WALLTIME),
        (OutcomeKind.SUPERVISOR_LOST, StopReason.FENCED),
    ],
)
def test_whatever_ends_it_it_has_not_run(kind: OutcomeKind, reason: StopReason | None) -> None:
    driver = waiting()
    raw = ExitRecord(job=1, attempt=2, kind=kind, stop_reason=reason, message="why")

    (told,) = exits(ended(driver, raw))

    assert told.kind is OutcomeKind.LAUNCH_FAILED
    assert told.failure is None
    assert told.stop_reason is None
    assert told.message.endswith("why")


def test_what_was_asked_for_stays_in_its_record() -> None:
    driver = waiting()
    raw = record(1, 2)
    raw = ExitRecord(job=1, attempt=2, kind=raw.kind, stop_reason=StopReason.DELETE)

    assert exits(ended(driver, raw))[0].stop_reason is StopReason.DELETE


def prepared_task() -> AcceptedTask:
    return only(prepare(Driver(gpus=2)), do.AcceptTask)[0].task


def launched_task() -> AcceptedTask:
    return only(waiting().launch(next_attempt()), do.KeepLaunched)[0].task


def test_a_new_gnode_ends_what_was_prepared_before_it_registers() -> None:
    driver = Driver(gpus=2, welcome=False, launcher=False)
    found = SpoolEntry(key=KEY, task=prepared_task(), info=info(), record=None)

    assert is_killed(driver.step(SpoolFound(found=(found,))))
    (registered,) = only(driver.step(HeadOffered(cluster="c", epoch=1)), do.SendRegister)
    assert registered.attempts == ()


def test_a_new_gnode_ends_a_preparation_whose_supervisor_is_on_its_way() -> None:
    driver = Driver(gpus=2, welcome=False, launcher=False)
    found = SpoolEntry(key=KEY, task=prepared_task(), info=None, record=None)
    driver.step(SpoolFound(found=(found,)))
    driver.step(LauncherUp())

    assert is_killed(driver.forked(1, 2))


def test_a_new_gnode_opens_the_gate_of_what_was_launched() -> None:
    driver = Driver(gpus=2, welcome=False, launcher=False)
    found = SpoolEntry(
        key=KEY, task=prepared_task(), info=info(), record=None, launched=launched_task()
    )

    effects = driver.step(SpoolFound(found=(found,)))

    assert [type(command) for command in commands(effects)] == [LaunchCommand]
    (registered,) = only(driver.step(HeadOffered(cluster="c", epoch=1)), do.SendRegister)
    assert [report.attempt for report in registered.attempts] == [2]
    driver.step(Welcomed(cluster="c", epoch=1))
    refused = driver.launch(order(7, gpus=(1,)))
    assert "still belongs to attempt 1.2" in exits(refused)[0].message


def test_another_history_launches_nothing_of_it() -> None:
    asked = next_attempt(token="old")
    driver = Driver(gpus=2)
    prepare(driver, asked)

    (refused,) = exits(driver.launch(next_attempt(token="new")))

    assert refused.kind is OutcomeKind.LAUNCH_FAILED
    assert only(driver.done, do.KeepLaunched) == []


def test_a_node_without_space_prepares_nothing_and_starts_cold() -> None:
    driver = Driver(gpus=2)
    driver.step(ProblemChanged(problem="the disk is full"))
    assert only(prepare(driver), do.AcceptTask) == []

    effects = driver.launch(next_attempt())
    assert not only(effects, do.AcceptTask)[0].task.gate
    driver.forked(1, 2)
    assert not starts(driver.seen(1, 2))[0].warm
