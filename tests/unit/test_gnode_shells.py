"""The orders to start shells are kept in root's spool: how much of it they may take."""

import secrets

from gnode.core import effects as do
from gnode.core.inputs import HeadOrder, SpoolEntry, SpoolFound
from gsched.model.limits import MAX_SHELLS_BYTES, MAX_USER_SHELLS_BYTES, MIB
from gsched.protocol.sessions import OpenSession, SessionFailed
from tests.support.agent_driver import Driver, info, only
from tests.support.agent_driver import order as launch_order

LONG = {"LONG": "x" * (MIB // 2)}


def refused(driver: Driver, job: int) -> str:
    """Have a shell started in a job; return why that is refused, empty if it is not."""
    order = OpenSession(
        session=secrets.token_hex(16),
        job=job,
        attempt=1,
        terminal=secrets.token_hex(16),
        start=True,
        variables=LONG,
    )
    effects = driver.step(HeadOrder(message=order))
    sent = [each.message for each in only(effects, do.SendToHead)]
    why = "".join(each.message for each in sent if isinstance(each, SessionFailed))
    assert bool(why) != bool(only(effects, do.CommandSupervisor))
    return why


def test_shells_of_one_attempt_have_room_for_so_many_records() -> None:
    driver = Driver()
    driver.run()
    room = MAX_SHELLS_BYTES // (MIB // 2) - 1

    assert [refused(driver, 1) for _ in range(room)] == [""] * room
    assert "their records take 4mb, the limit" in refused(driver, 1)


def test_the_room_of_a_user_is_that_of_all_attempts() -> None:
    driver = Driver()
    jobs = MAX_USER_SHELLS_BYTES // MAX_SHELLS_BYTES + 3
    for job in range(1, jobs + 1):
        driver.run(job)

    started = sum(not refused(driver, job) for job in range(1, jobs + 1) for _ in range(7))

    assert MAX_USER_SHELLS_BYTES - MIB < started * MIB // 2 <= MAX_USER_SHELLS_BYTES
    assert "jobs of alice have started so many shells" in refused(driver, jobs)


def test_a_restarted_gnode_counts_what_lies_there() -> None:
    (accepted,) = only(Driver().launch(launch_order()), do.AcceptTask)
    task = accepted.task
    driver = Driver()
    found = SpoolEntry(
        key=task.key, task=task, info=info(), record=None, journal_bytes=MAX_SHELLS_BYTES
    )
    driver.step(SpoolFound(found=(found,)))

    assert "their records take 4mb" in refused(driver, 1)
