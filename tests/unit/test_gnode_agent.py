"""The node's agent: idempotence, tombstones, epochs, acknowledgements, timers."""

import msgspec
import pytest

from gnode.core import effects as do
from gnode.core.agent import MARK_SAVE_S
from gnode.core.inputs import (
    AlarmRang,
    Disconnected,
    HeadOffered,
    HeadOrder,
    InventoryChanged,
    Launched,
    LauncherUp,
    LaunchFailed,
    LeftoverGone,
    Measured,
    SupervisorEnded,
    SupervisorSeen,
    Welcomed,
)
from gnode.core.mark import HeadMark
from gnode.core.task import (
    Account,
    AttemptKey,
    RetimeCommand,
    SignalCommand,
    StopCommand,
    parse_key,
)
from gnode.core.transitions import LIVE, MOVES, Happening, Phase, next_phase
from gsched.errors import InvalidRequestError
from gsched.model.job import Owner
from gsched.model.resources import Gpu, Inventory, Load, Share, Usage
from gsched.model.states import Join, OutcomeKind, PartState, StopReason
from gsched.protocol.node import (
    Heartbeat,
    OutputRead,
    ReadOutput,
    Retime,
    Signal,
    UnknownAttempt,
)
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


# --- the table ---


def test_every_phase_leads_to_acknowledged_and_only_listed_moves_happen() -> None:
    reached: dict[Phase, set[Phase]] = {
        phase: {MOVES[phase, h] for h in Happening if (phase, h) in MOVES} for phase in Phase
    }
    for phase in Phase:
        ends: set[Phase] = {phase}
        while True:
            more = ends.union(*(reached[end] for end in ends))
            if more == ends:
                break
            ends = more
        assert Phase.ACKED in ends
    assert next_phase(Phase.ENDED, Happening.LAUNCHED) is None
    assert next_phase(Phase.ACKED, Happening.RECORDED) is None
    assert frozenset({Phase.ENDED, Phase.ACKED}) == frozenset(Phase) - LIVE


def test_the_name_of_an_attempt_is_read_back() -> None:
    assert parse_key(AttemptKey(12, 3).name) == AttemptKey(12, 3)
    for text in ("12", "12.", ".3", "a.b", "1.2.3", "-1.2", "²1.1"):
        with pytest.raises(InvalidRequestError):
            parse_key(text)


# --- launching ---


def test_a_launch_is_accepted_before_the_launcher_is_asked() -> None:
    driver = Driver()

    effects = driver.launch(order())

    assert [type(effect) for effect in effects] == [do.AcceptTask, do.AskLaunch]


def test_a_launch_waits_for_a_launcher_and_is_asked_for_once() -> None:
    driver = Driver(launcher=False)
    assert only(driver.launch(order()), do.AskLaunch) == []

    assert driver.step(LauncherUp()) == [do.AskLaunch(key=KEY)]


def test_a_repeated_launch_says_where_the_attempt_is() -> None:
    driver = Driver()
    driver.launch(order())
    assert driver.launch(order()) == []
    driver.forked()
    assert driver.launch(order()) == []
    driver.seen()
    assert len(starts(driver.launch(order()))) == 1
    driver.ended(code=3)
    assert exits(driver.launch(order()))[0].exit_code == 3
    driver.ack()
    assert exits(driver.launch(order()))[0].exit_code == 3
    assert len(only(driver.done, do.AskLaunch)) == 1
    assert len(only(driver.done, do.AcceptTask)) == 1


def test_the_next_attempt_of_a_job_is_launched() -> None:
    driver = Driver()
    driver.run()
    driver.ended()

    assert only(driver.launch(order(1, 2)), do.AskLaunch) == [do.AskLaunch(key=AttemptKey(1, 2))]


def test_a_newer_attempt_is_launched_only_when_the_older_one_has_ended() -> None:
    driver = Driver()
    driver.run()

    effects = driver.launch(order(1, 2))

    (command,) = only(effects, do.CommandSupervisor)
    assert command.command == StopCommand(reason=StopReason.FENCED, grace_s=0.0)
    assert only(effects, do.AskLaunch) == []
    assert only(driver.step(LauncherUp()), do.AskLaunch) == []
    assert only(driver.ended(), do.AskLaunch) == [do.AskLaunch(key=AttemptKey(1, 2))]


def test_a_stop_ends_an_attempt_that_waits_for_an_older_one() -> None:
    driver = Driver()
    driver.run()
    driver.launch(order(1, 2))

    effects = driver.stop(1, 2)

    (ended,) = exits(effects)
    assert only(effects, do.WriteExit) == [do.WriteExit(record=ended)]  # or a restart starts it
    assert (ended.attempt, ended.kind) == (2, OutcomeKind.CANCELLED)
    assert only(driver.ended(), do.AskLaunch) == []


def test_a_third_attempt_replaces_the_one_that_waits() -> None:
    driver = Driver()
    driver.run()
    driver.launch(order(1, 2))

    (ended,) = exits(driver.launch(order(1, 3)))

    assert (ended.attempt, ended.stop_reason) == (2, StopReason.FENCED)
    assert only(driver.ended(), do.AskLaunch) == [do.AskLaunch(key=AttemptKey(1, 3))]


def test_a_launch_that_this_node_cannot_carry_out_is_refused_with_the_reason() -> None:
    root = Account(user="root", uid=0, gid=0, home="/root", shell="/bin/sh")
    other = Account(user="alice", uid=1001, gid=1000, home="/", shell="/bin/sh")

    assert "for node n2, but this is n1" in refusal(Driver(), share=Share(node="n2", cpus=1))
    assert "knows no user alice" in refusal(Driver(), account=None)
    assert "make them equal" in refusal(Driver(), account=other)
    assert "without root" in refusal(Driver(uid=77))
    root_owner = Owner(user="root", uid=0, gid=0)
    assert "no jobs of root" in refusal(Driver(), account=root, owner=root_owner)
    assert "has no GPU 2" in refusal(Driver(gpus=2), gpus=(2,))


def test_root_jobs_run_where_they_are_allowed() -> None:
    root = Account(user="root", uid=0, gid=0, home="/root", shell="/bin/sh")
    driver = Driver(root_jobs=True)

    effects = driver.launch(order(owner=Owner(user="root", uid=0, gid=0)), root)

    assert only(effects, do.AcceptTask)[0].task.switch_user is False


def test_a_gpu_has_one_owner_until_its_attempt_has_ended() -> None:
    driver = Driver(gpus=2)
    driver.run(gpus=(0, 1))
    assert "GPU 1 of node n1 still belongs to attempt 1.1" in refusal(driver, gpus=(1,))

    driver.ended()

    assert only(driver.launch(order(2, gpus=(1,))), do.AskLaunch)


def test_a_new_inventory_counts_for_the_launches_that_follow() -> None:
    driver = Driver(gpus=1)
    driver.step(InventoryChanged(inventory=Inventory(cpus=1, memory_bytes=1, gpus=())))
    assert "has no GPU 0" in refusal(driver, gpus=(0,))
    driver.step(InventoryChanged(inventory=Inventory(cpus=1, memory_bytes=1, gpus=(Gpu(index=0),))))
    assert only(driver.launch(order(gpus=(0,))), do.AskLaunch)


def test_a_launcher_that_cannot_fork_makes_a_failed_launch_that_is_kept() -> None:
    driver = Driver()
    driver.launch(order())

    effects = driver.step(LaunchFailed(key=KEY, message="cannot fork"))

    (written,) = only(effects, do.WriteExit)
    assert written.record.kind is OutcomeKind.LAUNCH_FAILED
    assert exits(effects) == [written.record]
    assert exits(driver.step(LaunchFailed(key=KEY, message="again"))) == []


def test_answers_about_unknown_attempts_are_dropped() -> None:
    driver = Driver()
    driver.step(Launched(key=KEY, pid=1, start_ticks=1))
    driver.step(SupervisorSeen(key=KEY, info=info()))
    driver.step(SupervisorEnded(key=KEY, record=record(), info=None))
    driver.step(LeftoverGone(key=KEY))

    assert only(driver.done, do.SendToHead) == []
    assert driver.agent.dropped == {"a supervisor of an unknown attempt": 1}


# --- the start ---


def test_the_start_is_told_with_the_real_files() -> None:
    driver = Driver()
    driver.launch(order())
    assert driver.forked() == [do.AwaitStart(key=KEY)]

    (started,) = starts(driver.seen())

    assert (started.pid, started.stdout_path) == (51, "/home/alice/runs/train.o1")
    assert driver.seen() == []


def test_a_start_that_was_too_quick_to_be_seen_is_told_before_the_end() -> None:
    driver = Driver()
    driver.launch(order())
    driver.forked()

    effects = driver.step(SupervisorEnded(key=KEY, record=record(code=2), info=info()))

    sent = [type(effect.message).__name__ for effect in only(effects, do.SendToHead)]
    assert sent == ["Started", "Exited"]


def test_what_has_ended_keeps_neither_its_script_nor_its_environment_in_memory() -> None:
    """There may be thousands before the head has acknowledged them and their records go."""
    driver = Driver()
    driver.launch(order(environment={"V": "x" * 10_000}))
    driver.forked()
    driver.seen()
    attempt = driver.agent.attempts[KEY]
    assert attempt.task is not None
    assert len(attempt.task.env["V"]) == 10_000

    driver.ended()

    assert (attempt.task.argv, attempt.task.env, attempt.task.files) == ((), {}, ())
    assert attempt.task.uid == 1000


# --- stopping and commands ---


def test_commands_wait_for_a_supervisor_and_keep_their_order() -> None:
    driver = Driver()
    driver.launch(order())
    assert driver.step(HeadOrder(message=Signal(job=1, attempt=1, signal=10))) == []
    driver.step(HeadOrder(message=Retime(job=1, attempt=1, walltime_s=5.0)))
    driver.stop()

    commands = only(driver.forked(), do.CommandSupervisor)

    assert [each.command for each in commands] == [
        SignalCommand(signal=10),
        RetimeCommand(walltime_s=5.0),
        StopCommand(reason=StopReason.DELETE, grace_s=30.0),
    ]
    assert {(each.pid, each.start_ticks) for each in commands} == {(50, 500)}


def test_asking_twice_to_stop_hands_on_both() -> None:
    driver = Driver()
    driver.run()

    assert len(only(driver.stop() + driver.stop(), do.CommandSupervisor)) == 2


def test_e9_a_stop_of_an_unknown_attempt_makes_a_tombstone() -> None:
    driver = Driver()

    (ended,) = exits(driver.stop())
    assert (ended.kind, ended.stop_reason) == (OutcomeKind.CANCELLED, StopReason.DELETE)

    effects = driver.launch(order())
    assert exits(effects) == [ended]
    assert only(effects, do.AskLaunch) == []
    driver.ack()
    driver.now_s += 61
    assert only(driver.step(AlarmRang()), do.RemoveSpool) == []  # nothing of it is on disk
    assert KEY not in driver.agent.attempts


def test_a_stop_of_an_attempt_that_is_over_repeats_its_exit() -> None:
    driver = Driver()
    driver.run()
    driver.ended(code=4)

    assert exits(driver.stop())[0].exit_code == 4


def test_a_stop_of_a_replaced_attempt_is_dropped() -> None:
    driver = Driver()
    driver.run(1, 2)

    assert only(driver.stop(1, 1), do.SendToHead) == []
    assert only(driver.stop(1, 1), do.CommandSupervisor) == []


def test_a_supervisor_that_does_not_obey_is_killed_after_grace_and_margin() -> None:
    driver = Driver(cgroup_root="/cg")
    driver.run()
    driver.stop()
    driver.now_s += MARK_SAVE_S
    driver.step(AlarmRang())  # keeps the mark
    assert driver.agent.next_alarm_s() == pytest.approx(1060.0)

    driver.now_s = 1059.9
    assert only(driver.step(AlarmRang()), do.KillLeftover) == []
    driver.now_s = 1060.1
    (kill,) = only(driver.step(AlarmRang()), do.KillLeftover)

    assert (kill.cgroup, kill.supervisor_pid) == ("/cg/1.1", 50)
    assert only(driver.step(AlarmRang()), do.KillLeftover) == []
    assert driver.step(LeftoverGone(key=KEY)) == []  # the launcher tells the end


def test_a_stop_of_what_waits_for_the_launcher_kills_nothing_and_is_handed_on() -> None:
    driver = Driver()
    driver.launch(order())
    driver.stop()
    driver.now_s += 61

    assert only(driver.step(AlarmRang()), do.KillLeftover) == []
    assert driver.agent.next_alarm_s() == pytest.approx(driver.now_s + 30)
    (command,) = only(driver.forked(), do.CommandSupervisor)
    assert isinstance(command.command, StopCommand)


def test_signals_and_limits_of_unknown_or_ended_attempts_are_answered() -> None:
    driver = Driver()
    (effect,) = only(
        driver.step(HeadOrder(message=Signal(job=1, attempt=1, signal=9))), do.SendToHead
    )
    assert effect.message == UnknownAttempt(job=1, attempt=1)
    driver.run()
    driver.ended()

    assert exits(driver.step(HeadOrder(message=Retime(job=1, attempt=1, walltime_s=1.0))))


# --- the end ---


def test_an_exit_is_repeated_at_every_welcome_until_it_is_acknowledged() -> None:
    driver = Driver()
    driver.run()
    driver.step(Disconnected())
    assert exits(driver.ended(code=5)) == []  # nobody listens

    assert exits(driver.step(Welcomed(cluster="c", epoch=1)))[0].exit_code == 5
    driver.step(Disconnected())
    assert len(exits(driver.step(Welcomed(cluster="c", epoch=2)))) == 1
    driver.ack()
    driver.step(Disconnected())
    assert exits(driver.step(Welcomed(cluster="c", epoch=2))) == []


def test_a_spool_is_removed_once_a_minute_after_the_first_acknowledgement() -> None:
    driver = Driver()
    driver.run()
    driver.ended()
    driver.ack()
    driver.now_s += 30
    driver.ack()
    driver.now_s += 29
    assert only(driver.step(AlarmRang()), do.RemoveSpool) == []
    driver.now_s += 2

    assert only(driver.step(AlarmRang()), do.RemoveSpool) == [do.RemoveSpool(key=KEY)]
    driver.now_s += 100
    assert only(driver.step(AlarmRang()), do.RemoveSpool) == []


def test_an_acknowledgement_before_the_end_is_dropped() -> None:
    driver = Driver()
    driver.run()

    driver.ack()

    assert driver.agent.attempts[KEY].phase is Phase.RUNNING
    assert driver.agent.dropped == {"acked while running": 1}


def test_an_end_without_a_record_kills_what_is_left_and_then_says_lost() -> None:
    driver = Driver(cgroup_root="/cg")
    driver.run()

    effects = driver.step(SupervisorEnded(key=KEY, record=None, info=None))
    (kill,) = only(effects, do.KillLeftover)
    assert (kill.cgroup, kill.user_dir, kill.supervisor_pid) == ("/cg/1.1", "/s/user/1.1", 0)
    assert exits(effects) == []  # resources stay owned until nothing is left
    assert driver.step(SupervisorEnded(key=KEY, record=None, info=None)) == []

    effects = driver.step(LeftoverGone(key=KEY))
    assert exits(effects)[0].kind is OutcomeKind.SUPERVISOR_LOST
    assert len(only(effects, do.WriteExit)) == 1


def test_the_exit_carries_the_larger_of_sampled_and_recorded_use() -> None:
    driver = Driver()
    driver.run()
    sampled = Usage(
        wall_s=8.0,
        cpu_s=7.0,
        cpu_peak_cores=2.5,
        memory_peak_bytes=10,
        memory_mean_bytes=5,
        gpu_memory_mean_bytes=4,
        samples=3,
    )
    load = Load(load1=2.5)
    driver.step(Measured(load=load, usage={KEY: sampled, AttemptKey(9, 9): sampled}))
    ended = msgspec.structs.replace(record(), cpu_s=6.0, memory_peak_bytes=20, wall_s=9.0)

    effects = driver.step(SupervisorEnded(key=KEY, record=ended, info=None))

    (sent,) = only(effects, do.SendToHead)
    assert sent.message.usage == Usage(  # type: ignore[union-attr]  # it is the Exited
        wall_s=9.0,
        cpu_s=7.0,
        cpu_peak_cores=2.5,
        memory_peak_bytes=20,
        memory_mean_bytes=5,
        gpu_memory_mean_bytes=4,
        samples=3,
    )
    assert sent.message.load == load  # type: ignore[union-attr]  # it is the Exited


# --- the head ---


def test_the_registration_lists_all_that_is_not_acknowledged() -> None:
    driver = Driver(mark=HeadMark(cluster="c", epoch=3, highest_job=77))
    driver.launch(order(80))
    driver.run(81)
    driver.run(82)
    driver.ended(82)
    driver.run(83)
    driver.ended(83)
    driver.ack(83)
    driver.step(Disconnected())

    (register,) = only(driver.step(HeadOffered(cluster="c", epoch=4)), do.SendRegister)

    assert [(report.job, report.state) for report in register.attempts] == [
        (80, PartState.PENDING),
        (81, PartState.RUNNING),
        (82, PartState.ENDED),
    ]
    assert register.attempts[2].exit == record(82)
    assert (register.mark.epoch, register.mark.highest_job) == (3, 83)


def test_a_lower_epoch_and_another_cluster_are_refused() -> None:
    driver = Driver(mark=HeadMark(cluster="c", epoch=5), welcome=False)

    warned, told = driver.step(HeadOffered(cluster="c", epoch=4))
    assert isinstance(warned, do.Warn)
    assert isinstance(told, do.SendRegister)  # so that the old head hears of the newer one
    assert told.mark.epoch == 5
    (refused,) = driver.step(Welcomed(cluster="c", epoch=4))
    assert isinstance(refused, do.RefuseHead)
    assert "epoch is 4, but this node has obeyed epoch 5" in refused.message
    (refused,) = driver.step(HeadOffered(cluster="d", epoch=9))
    assert isinstance(refused, do.RefuseHead)
    (refused,) = driver.step(Welcomed(cluster="d", epoch=9))
    assert isinstance(refused, do.RefuseHead)
    assert "cluster d, but this node has obeyed c" in refused.message
    assert not driver.agent.welcomed


def test_a_new_epoch_is_kept_and_the_same_one_is_not_written_again() -> None:
    driver = Driver(welcome=False)

    assert driver.step(Welcomed(cluster="c", epoch=3)) == [
        do.SaveMark(mark=HeadMark(cluster="c", epoch=3))
    ]
    driver.step(Disconnected())
    assert driver.step(Welcomed(cluster="c", epoch=3)) == []


def test_orders_before_the_welcome_are_dropped() -> None:
    driver = Driver(welcome=False)

    assert only(driver.launch(order()), do.AcceptTask) == []
    driver.stop()
    driver.step(HeadOrder(message=Signal(job=1, attempt=1, signal=9)))

    assert driver.agent.dropped == {"an order from a head that has not welcomed this node": 3}
    assert driver.agent.attempts == {}


def test_heartbeats_come_at_their_interval_while_a_head_listens() -> None:
    driver = Driver()
    driver.run()
    usage = Usage(cpu_s=1.0, samples=1)
    driver.step(Measured(load=Load(load1=1.0), usage={KEY: usage}))
    driver.now_s += 299
    assert only(driver.step(AlarmRang()), do.SendToHead) == []
    driver.now_s += 2

    (sent,) = only(driver.step(AlarmRang()), do.SendToHead)

    assert sent.message == Heartbeat(load=Load(load1=1.0), usage=((1, 1, usage),))
    assert driver.agent.next_alarm_s() == pytest.approx(driver.now_s + 300)
    driver.step(Disconnected())
    assert driver.agent.next_alarm_s() is None


def test_the_use_of_a_young_attempt_is_told_before_the_first_heartbeat() -> None:
    """After 10, 20, 40, 80 and 160 s, where it is sampled every 10 s; only what is young."""
    driver = Driver()
    driver.run()
    told: list[float] = []

    for wall_s in range(10, 400, 10):
        usage = Usage(wall_s=float(wall_s), cpu_s=float(wall_s), samples=1)
        driver.now_s += 10
        sent = only(driver.step(Measured(load=Load(load1=1.0), usage={KEY: usage})), do.SendToHead)
        beats = [each.message for each in sent if isinstance(each.message, Heartbeat)]
        told += [used.wall_s for beat in beats for _, _, used in beat.usage]
        driver.step(AlarmRang())

    assert told == [10, 20, 40, 80, 160]
    driver.step(Disconnected())
    usage = Usage(wall_s=5.0)
    assert only(driver.step(Measured(load=Load(), usage={KEY: usage})), do.SendToHead) == []


# --- output ---


def read(stream: str = "stdout", attempt: int = 1) -> HeadOrder:
    return HeadOrder(
        message=ReadOutput(request=8, job=1, attempt=attempt, stream=stream, offset=3, max_bytes=9)
    )


def test_output_is_read_as_the_owner_from_the_real_file() -> None:
    driver = Driver()
    driver.run()

    (reading,) = only(driver.step(read()), do.ReadFile)
    assert reading == do.ReadFile(
        request=8,
        path="/home/alice/runs/train.o1",
        user="alice",
        uid=1000,
        gid=1000,
        switch_user=True,
        offset=3,
        max_bytes=9,
    )
    assert only(driver.step(read("stderr")), do.ReadFile)[0].path == "/home/alice/runs/train.e1"


def test_joined_output_of_a_job_that_has_not_started_is_planned_in_one_file() -> None:
    driver = Driver()
    driver.launch(order(join=Join.INTO_OUT))

    assert only(driver.step(read("stderr")), do.ReadFile)[0].path.endswith("train.o1")


def test_output_of_an_attempt_that_is_gone_is_answered_with_words() -> None:
    driver = Driver()

    (sent,) = only(driver.step(read()), do.SendToHead)

    assert isinstance(sent.message, OutputRead)
    assert sent.message.request == 8
    assert "keeps nothing" in sent.message.error
