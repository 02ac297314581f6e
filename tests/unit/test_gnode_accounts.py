"""Who a user is here, where the name service answers, hangs or fails; and launches that wait."""

import asyncio
import errno
import os
import pwd
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from gnode.core.inputs import LaunchOrder
from gnode.core.task import Account
from gnode.daemon.accounts import (
    FAILED,
    KEPT_S,
    KEPT_UNKNOWN_S,
    MAX_THREADS,
    AccountLookup,
    Accounts,
    Arrivals,
)
from gnode.daemon.accounts import look_up as really_look_up
from gnode.supervisor import kernel
from gsched.model.job import Owner
from gsched.protocol.node import Launch
from tests.support.agent_driver import order

ALICE = Account(user="alice", uid=1, gid=1, home="/", shell="/bin/sh")
T = TypeVar("T")


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


class Service:
    """A name service that answers when it is let."""

    def __init__(self, found: AccountLookup) -> None:
        self.found = found
        self.asked: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def look_up(self, user: str) -> AccountLookup:
        self.asked.append(user)
        self.go.wait(20)
        return self.found


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it has not happened within 20 s")


def test_the_real_service_knows_us_and_nobody_of_that_name() -> None:
    own = pwd.getpwuid(os.geteuid())

    found = really_look_up(own.pw_name)

    assert found.account is not None
    assert (found.account.uid, found.account.home) == (own.pw_uid, own.pw_dir)
    assert really_look_up("no-such-user-here") == AccountLookup()
    assert really_look_up("a\0b") == AccountLookup()
    assert kernel.name_service_error("no-such-user-here") == 0
    assert kernel.name_service_error(own.pw_name) == errno.EAGAIN


def test_answers_are_kept_for_a_while_and_unknown_users_shorter() -> None:
    clock, service = Clock(), Service(AccountLookup(account=ALICE))
    accounts = Accounts(clock, service.look_up)

    async def story() -> None:
        assert accounts.known("alice") is None
        assert (await accounts.ask("alice")).account == ALICE
        assert accounts.known("alice") == AccountLookup(account=ALICE)
        clock.now_s += KEPT_S
        assert accounts.known("alice") is None
        service.found = AccountLookup()
        assert await accounts.ask("alice") == AccountLookup()
        clock.now_s += KEPT_UNKNOWN_S
        service.found = AccountLookup(account=ALICE)
        assert (await accounts.ask("alice")).account == ALICE

    run(story)
    assert service.asked == ["alice"] * 3


def test_d22_a_service_that_hangs_is_a_failure_and_no_unknown_user() -> None:
    """When it answers after all, that is known at once."""
    service = Service(AccountLookup(account=ALICE))
    service.go.clear()
    accounts = Accounts(Clock(), service.look_up, timeout_s=0.05)

    async def story() -> None:
        assert await accounts.ask("alice") == FAILED
        assert await accounts.ask("alice") == FAILED
        service.go.set()
        await until(lambda: accounts.known("alice") is not None)
        assert (await accounts.ask("alice")).account == ALICE

    run(story)
    assert service.asked == ["alice"], "one thread may hang for a user"


def test_d22_few_threads_hang() -> None:
    service = Service(AccountLookup(account=ALICE))
    service.go.clear()
    accounts = Accounts(Clock(), service.look_up, timeout_s=0.05)

    async def story() -> None:
        for number in range(3 * MAX_THREADS):
            assert await accounts.ask(f"user{number}") == FAILED
        service.go.set()

    run(story)
    assert len(service.asked) == MAX_THREADS


def test_a_service_that_cannot_be_asked_is_a_failure() -> None:
    def broken(user: str) -> AccountLookup:
        raise OSError(5, user)

    accounts = Accounts(Clock(), broken)

    assert run(lambda: accounts.ask("alice")) == FAILED


def launch(job: int, user: str) -> Launch:
    return order(job, owner=Owner(user=user, uid=1, gid=1))


def test_launches_of_one_user_wait_and_nothing_else_does() -> None:
    service = Service(AccountLookup(account=ALICE))
    accounts = Accounts(Clock(), service.look_up)
    told: list[LaunchOrder] = []
    arrivals = Arrivals(accounts, told.append)

    async def story() -> None:
        await accounts.ask("bob")
        service.go.clear()
        arrivals.take(launch(1, "alice"))
        arrivals.take(launch(2, "alice"))
        arrivals.take(launch(3, "bob"))
        await asyncio.sleep(0.05)
        assert [asked.launch.job for asked in told] == [3]
        service.go.set()
        await until(lambda: len(told) == 3)

    run(story)
    assert [asked.launch.job for asked in told] == [3, 1, 2]
    assert [asked.lookup_failed for asked in told] == [False] * 3


def test_launches_that_wait_go_with_their_connection() -> None:
    service = Service(AccountLookup(account=ALICE))
    service.go.clear()
    accounts = Accounts(Clock(), service.look_up)
    told: list[LaunchOrder] = []
    arrivals = Arrivals(accounts, told.append)

    async def story() -> None:
        arrivals.take(launch(1, "alice"))
        await asyncio.sleep(0.05)
        arrivals.forget()
        arrivals.take(launch(1, "alice"))
        service.go.set()
        await until(lambda: bool(told))
        await asyncio.sleep(0.05)

    run(story)
    assert [asked.launch.job for asked in told] == [1]


def test_a_user_is_asked_for_again_after_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(AccountLookup(account=ALICE))
    accounts = Accounts(Clock(), service.look_up)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask_twice() -> tuple[AccountLookup, AccountLookup]:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            first = await accounts.ask("alice")
        return first, await accounts.ask("alice")

    assert run(ask_twice) == (FAILED, AccountLookup(account=ALICE))
