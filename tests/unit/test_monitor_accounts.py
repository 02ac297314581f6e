"""The accounts that the monitor knows, and a name service that hangs."""

import asyncio
import pwd
import threading

import pytest

from gsched.clock import SystemClock
from gsched.errors import TryAgainError
from gschedd.monitor.accounts import LOOKUPS_MOST, KnownAccounts


def account(name: str, uid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))


class NameService:
    """Knows a user of each number below 100, until it hangs."""

    def __init__(self) -> None:
        self.requests = 0
        self.version = 0
        self.answers = threading.Event()
        self.answers.set()

    def look_up(self, uid: int) -> pwd.struct_passwd:
        self.requests += 1
        self.answers.wait(60)
        if uid >= 100:
            raise KeyError(uid)
        return account(f"user{uid}", uid)

    def accounts(self) -> KnownAccounts:
        return KnownAccounts(SystemClock(), self.look_up, lambda: self.version, patience_s=0.05)


def test_accounts_are_kept_and_looked_up_again_when_the_machine_has_others() -> None:
    service = NameService()

    async def run() -> None:
        accounts = service.accounts()
        for _ in range(3):
            found = await accounts.of(7, acts=False)
            assert found is not None
            assert found.pw_name == "user7"
        assert service.requests == 1
        assert await accounts.of(100, acts=False) is None
        service.version = 1
        await accounts.of(7, acts=False)
        assert service.requests == 3

    asyncio.run(run())


def test_while_the_name_service_hangs_the_last_answer_holds_and_the_loop_goes_on() -> None:
    service = NameService()

    async def run() -> None:
        accounts = service.accounts()
        await accounts.of(7, acts=True)
        service.answers.clear()
        service.version = 1
        found, unknown = await asyncio.gather(
            accounts.of(7, acts=True), accounts.of(8, acts=True), return_exceptions=True
        )
        assert isinstance(found, pwd.struct_passwd)
        assert found.pw_name == "user7"
        assert isinstance(unknown, TryAgainError)
        for uid in range(50):
            with pytest.raises(TryAgainError):
                await accounts.of(20 + uid, acts=False)
        assert service.requests <= 1 + LOOKUPS_MOST
        service.answers.set()
        while (again := await accounts.of(8, acts=False)) is None:
            pass
        assert again.pw_name == "user8"

    asyncio.run(run())
