"""A node's leases: what is renewed by what, and what a supervisor makes of it."""

import os
from pathlib import Path

import pytest

from gnode.core import effects as do
from gnode.core.inputs import (
    AlarmRang,
    Disconnected,
    LeaseRenewed,
    SpoolEntry,
    SpoolFound,
    SurveyReceived,
    Welcomed,
)
from gnode.supervisor import lease
from gnode.supervisor.ending import Do, Ending
from gnode.task import Task
from gsched.protocol.node import Renew, SurveyAttempts
from tests.support.agent_driver import Driver, only, order
from tests.support.records import a_task

LEASE_S = 60.0


def asked(effects: list[do.Effect]) -> list[int]:
    """Return the numbers that the head is asked to send back."""
    sent = only(effects, do.SendToHead)
    return [each.message.number for each in sent if isinstance(each.message, Renew)]


def node(**settings: object) -> Driver:
    """Return a node whose head renews leases."""
    driver = Driver(welcome=False, **settings)  # type: ignore[arg-type] # as the driver takes them
    driver.step(Welcomed(cluster="c", epoch=1))
    return driver


def renew(driver: Driver, number: int) -> list[do.Effect]:
    return driver.step(LeaseRenewed(number=number))


def running(**settings: object) -> tuple[Driver, int]:
    """Return a node that runs a job with a lease from 1000 s on, and the last number it sent."""
    driver = node(**settings)
    (number,) = asked(driver.launch(order(1, lease_s=LEASE_S, lease_grace_s=5.0)))
    renew(driver, number)
    driver.forked()
    driver.seen()
    driver.done.clear()
    return driver, number


def next_number(driver: Driver, at_s: float) -> int:
    """Turn the clock; return the number that is requested then."""
    driver.now_s = at_s
    (number,) = asked(driver.step(AlarmRang()))
    return number


def test_a_launch_with_a_lease_waits_until_the_head_was_reached() -> None:
    driver = node()
    effects = driver.launch(order(1, lease_s=LEASE_S))
    assert not only(effects, do.AcceptTask)

    driver.now_s += 2.0
    (accepted,) = only(renew(driver, asked(effects)[0]), do.AcceptTask)

    assert (accepted.task.lease_s, accepted.task.lease_from_s) == (LEASE_S, 1000.0)


def test_a_launch_soon_after_a_renewal_begins_at_once_and_counts_from_there() -> None:
    driver, _ = running()
    driver.now_s += 20.0

    (accepted,) = only(driver.launch(order(2, lease_s=LEASE_S)), do.AcceptTask)

    assert accepted.task.lease_from_s == 1000.0


def test_a_job_without_a_lease_asks_for_nothing() -> None:
    driver = node()
    effects = driver.launch(order(1))

    assert only(effects, do.AcceptTask)
    driver.now_s += 20.0
    driver.step(AlarmRang())
    assert not asked(driver.done)


def test_a_lease_is_renewed_from_when_the_number_was_sent_however_late_it_comes_back() -> None:
    driver, _ = running()
    number = next_number(driver, 1010.0)

    driver.now_s = 1055.0
    (kept,) = only(renew(driver, number), do.KeepRenewal)

    assert kept.renewed_s == 1010.0


def test_a_number_is_asked_for_often_enough_for_the_shortest_lease() -> None:
    driver, _ = running()
    driver.now_s = 1009.9
    assert not asked(driver.step(AlarmRang()))
    next_number(driver, 1010.0)

    driver.launch(order(2, lease_s=30.0))

    next_number(driver, 1015.0)


def test_a_lease_that_was_over_when_the_number_was_sent_stays_over() -> None:
    """The head may have started the job elsewhere."""
    driver, _ = running()
    driver.step(Disconnected())
    driver.now_s = 1000.0 + LEASE_S + 0.5
    (number,) = asked(driver.step(Welcomed(cluster="c", epoch=1)))

    assert not only(renew(driver, number), do.KeepRenewal)


def test_numbers_of_a_connection_that_is_gone_renew_nothing() -> None:
    driver, _ = running()
    number = next_number(driver, 1010.0)
    driver.step(Disconnected())
    driver.step(Welcomed(cluster="c", epoch=1))

    assert not only(renew(driver, number), do.KeepRenewal)
    assert not only(renew(driver, 4711), do.KeepRenewal)


def test_a_held_launch_is_dropped_with_the_connection() -> None:
    """The head sends it again."""
    driver = node()
    driver.launch(order(1, lease_s=LEASE_S))
    driver.step(Disconnected())
    driver.step(Welcomed(cluster="c", epoch=1))
    effects = driver.launch(order(1, lease_s=LEASE_S))

    accepted = only(renew(driver, asked(effects)[0]), do.AcceptTask)

    assert len(accepted) == 1


def test_a_launch_that_was_stopped_while_it_waited_does_not_begin() -> None:
    driver = node()
    (number,) = asked(driver.launch(order(1, lease_s=LEASE_S)))
    driver.stop()

    assert not only(renew(driver, number), do.AcceptTask)


def test_a_head_in_safe_mode_renews_too() -> None:
    driver, _ = running()
    driver.step(Disconnected())
    driver.now_s = 1030.0
    survey = SurveyAttempts(first_unknown=1, unfinished=())
    (number,) = asked(driver.step(SurveyReceived(survey=survey)))

    (kept,) = only(renew(driver, number), do.KeepRenewal)

    assert kept.renewed_s == 1030.0


def test_a_restarted_gnode_goes_on_from_the_renewal_in_the_spool() -> None:
    first, number = running()
    (accepted,) = only(first.launch(order(2, lease_s=LEASE_S)), do.AcceptTask)
    del number
    driver = Driver(welcome=False)
    driver.now_s = 1095.0
    found = SpoolEntry(key=accepted.task.key, task=accepted.task, info=None, record=None)

    for renewed_s, again in ((None, 0), (1050.0, 1)):
        driver = Driver(welcome=False)
        driver.now_s = 1095.0
        told = SpoolEntry(
            key=found.key, task=found.task, info=None, record=None, renewed_s=renewed_s
        )
        driver.step(SpoolFound(found=(told,)))
        (sent,) = asked(driver.step(Welcomed(cluster="c", epoch=1)))
        assert len(only(renew(driver, sent), do.KeepRenewal)) == again


def test_gnode_kills_what_outlives_lease_and_grace_of_a_supervisor_that_hangs() -> None:
    driver, _ = running()
    driver.step(Disconnected())
    driver.now_s = 1000.0 + LEASE_S + 5.0 + 9.0
    assert not only(driver.step(AlarmRang()), do.KillLeftover)

    driver.now_s += 1.0
    (kill,) = only(driver.step(AlarmRang()), do.KillLeftover)

    assert kill.supervisor_pid == 50


# --- the supervisor ---


def task() -> Task:
    return a_task(lease_s=LEASE_S, lease_from_s=100.0, lease_grace_s=5.0)


def ending() -> Ending:
    made = Ending(
        walltime_s=None, grace_s=30.0, lease_until_s=lease.until_s(task()), lease_grace_s=5.0
    )
    made.started(100.0)
    return made


def test_a_job_ends_at_its_lease_and_not_before(tmp_path: Path) -> None:
    lease.prepare(str(tmp_path), 100.0)
    its = ending()
    assert its.deadline_s() == 160.0

    lease.look(str(tmp_path), task(), its, 159.9)
    assert its.step(159.9) is Do.NOTHING
    lease.look(str(tmp_path), task(), its, 160.0)

    assert its.step(160.0) is Do.TERM
    assert its.reason == "lease"
    assert its.step(165.0) is Do.KILL


def test_a_renewal_lets_it_run_on(tmp_path: Path) -> None:
    lease.prepare(str(tmp_path), 100.0)
    lease.write(str(tmp_path), 150.0)
    its = ending()

    lease.look(str(tmp_path), task(), its, 161.0)

    assert its.step(161.0) is Do.NOTHING
    assert its.deadline_s() == 210.0


def test_a_renewal_after_it_was_over_comes_too_late(tmp_path: Path) -> None:
    lease.prepare(str(tmp_path), 100.0)
    its = ending()
    lease.look(str(tmp_path), task(), its, 160.0)
    lease.write(str(tmp_path), 159.0)

    lease.look(str(tmp_path), task(), its, 161.0)

    assert its.reason == "lease"
    assert its.step(161.0) is Do.TERM


def test_who_wakes_up_long_after_it_kills_at_once(tmp_path: Path) -> None:
    """A suspended machine must not give its jobs a grace that the head knows nothing of."""
    lease.prepare(str(tmp_path), 100.0)
    its = ending()

    lease.look(str(tmp_path), task(), its, 1000.0)

    assert its.step(1000.0) is Do.KILL


def test_a_lease_shortens_the_grace_of_a_stop() -> None:
    its = ending()
    its.stop("delete", 3600.0, 110.0)

    assert its.step(110.0) is Do.TERM
    assert its.step(160.0) is Do.NOTHING
    assert its.step(165.0) is Do.KILL
    assert its.reason == "delete"


@pytest.mark.parametrize("content", [b"", b"0000000000150.000000", b"\0" * 30, b"150 00000000\n"])
def test_a_renewal_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes) -> None:
    lease.prepare(str(tmp_path), 100.0)
    (tmp_path / lease.LEASE).write_bytes(content)
    its = ending()

    lease.look(str(tmp_path), task(), its, 160.0)

    assert its.reason == "lease"
    os.unlink(tmp_path / lease.LEASE)
    assert lease.read(str(tmp_path)) is None


def test_a_renewal_is_written_in_place(tmp_path: Path) -> None:
    """So that it needs no space."""
    lease.prepare(str(tmp_path), 1.5)
    before = (tmp_path / lease.LEASE).stat()

    lease.write(str(tmp_path), 123456789.25)

    after = (tmp_path / lease.LEASE).stat()
    assert lease.read(str(tmp_path)) == 123456789.25
    assert (after.st_ino, after.st_size, after.st_blocks) == (
        before.st_ino,
        before.st_size,
        before.st_blocks,
    )


def test_a_task_of_an_older_gnode_has_no_lease() -> None:
    assert lease.until_s(a_task()) is None
