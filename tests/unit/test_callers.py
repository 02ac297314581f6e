"""Who a caller is: names are looked up again, and a uid alone makes nobody an operator."""

import errno
import threading
from pathlib import Path

import pytest

from gsched.config.tables import QueueConfig
from gsched.errors import NotPermittedError
from gsched.model.job import Owner
from gschedd.core.requests.access import check_queue_access
from gschedd.core.state.settings import Privileged, Settings
from gschedd.http.callers import (
    KEPT_S,
    KEPT_TO_ACT_S,
    KEPT_UNKNOWN_S,
    Callers,
    UserNames,
    accounts_version,
)


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


class Directory:
    """A name service of which each question is counted."""

    def __init__(self, **users: int) -> None:
        self.users = {uid: name for name, uid in users.items()}
        self.asked = 0
        self.hangs: threading.Event | None = None

    def name(self, uid: int) -> str:
        self.asked += 1
        if self.hangs is not None:
            self.hangs.wait(20)
        return self.users.get(uid, str(uid))


def test_t25_a_uid_that_was_given_to_another_user_gets_the_new_name() -> None:
    clock, directory = HandClock(), Directory(alice=1001)
    names = UserNames(clock, directory.name)

    assert [names.name(1001) for _ in range(5)] == ["alice"] * 5
    assert directory.asked == 1
    directory.users = {1001: "mallory"}
    clock.now_s += KEPT_S

    assert names.name(1001) == "mallory"


def test_a_uid_with_a_new_account_acts_at_once_under_its_new_name() -> None:
    """Else whoever gets the number of a deleted user could change that user's jobs meanwhile."""
    clock, directory, version = HandClock(), Directory(alice=1001), [1]
    names = UserNames(clock, directory.name, lambda: version[0])
    callers = Callers(settings=lambda: Settings(server="s", queues={}), names=names)
    owner = Owner(user="alice", uid=1001, gid=1)
    assert callers.caller(1001, 1, acts=True).owns(owner)

    directory.users, version[0] = {1001: "mallory"}, 2

    assert not callers.caller(1001, 1).owns(owner)
    assert not callers.caller(1001, 1, acts=True).owns(owner)
    assert directory.asked == 2


def test_who_acts_needs_a_newer_answer_of_a_network_directory_than_who_reads() -> None:
    clock, directory = HandClock(), Directory(alice=1001)
    names = UserNames(clock, directory.name, lambda: 1)
    assert names.name(1001) == "alice"
    directory.users = {1001: "mallory"}
    clock.now_s += KEPT_TO_ACT_S

    assert names.name(1001) == "alice"
    assert names.name(1001, acts=True) == "mallory"
    assert names.name(1001) == "mallory"


def test_the_version_of_the_accounts_changes_with_their_file(tmp_path: Path) -> None:
    assert accounts_version() == accounts_version()
    assert accounts_version() != 0
    copies = [tmp_path / name for name in "ab"]
    for copy in copies:
        copy.write_text("root:x:0:0::/:/bin/sh\n")
    first, second = (accounts_version(str(copy)) for copy in copies)
    assert first != second
    assert accounts_version(str(tmp_path / "gone")) == errno.ENOENT


def test_an_unknown_user_is_soon_asked_for_again() -> None:
    clock, directory = HandClock(), Directory()
    names = UserNames(clock, directory.name)

    assert names.name(1001) == "1001"
    directory.users = {1001: "alice"}
    clock.now_s += KEPT_UNKNOWN_S

    assert names.name(1001) == "alice"


def test_a_name_service_that_hangs_is_waited_for_once() -> None:
    """The last answers hold; no second question is put while the first has no answer."""
    clock, directory = HandClock(), Directory(alice=1001)
    names = UserNames(clock, directory.name)
    names.name(1001)
    clock.now_s += KEPT_S
    directory.hangs = threading.Event()

    assert names.name(1001) == "alice"
    assert [names.name(1002), names.name(1001)] == ["1002", "alice"]
    assert directory.asked == 2
    directory.hangs.set()


def test_an_unexpected_error_of_the_name_service_does_not_stop_later_lookups() -> None:
    clock, directory = HandClock(), Directory(alice=1001)

    def look_up(uid: int) -> str:
        if uid == 1002:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return directory.name(uid)

    names = UserNames(clock, look_up)

    assert names.name(1002) == "1002"
    assert names.name(1001) == "alice"


def test_an_operators_uid_that_another_user_has_now_is_no_operator() -> None:
    directory = Directory(root=0, gsched=990, olga=1005, mallory=1007)
    config = Settings(
        server="head",
        queues={},
        operators=Privileged(uids=frozenset({0, 990, 1005}), names={1005: "olga"}),
    )
    clock = HandClock()
    callers = Callers(
        settings=lambda: config,
        names=UserNames(clock, directory.name),
        groups=UserNames(clock, directory.name),
    )

    assert [callers.caller(uid, 1).operator for uid in (0, 990, 1005, 1007)] == [
        *(True, True, True, False)
    ]
    directory.users = {1005: "mallory"}
    clock.now_s += KEPT_S

    assert not callers.caller(1005, 1).operator
    assert callers.caller(0, 0).operator, "root is one whatever its name"


def test_t68_groups_that_cannot_be_read_let_nobody_into_a_queue_for_some() -> None:
    """Neither a name service that fails nor one that hangs: who is not known to be in it is out."""

    def fails(_uid: int) -> str:
        raise OSError("the directory is away")

    queue = QueueConfig(name="gpu", allow_groups=("staff",))
    config = Settings(server="head", queues={"gpu": queue}, operators=Privileged())
    clock = HandClock()
    names = UserNames(clock, Directory(alice=1001).name)
    callers = Callers(settings=lambda: config, names=names, groups=UserNames(clock, fails))

    caller = callers.caller(1001, 1001, acts=True)

    with pytest.raises(NotPermittedError, match="may not use queue gpu"):
        check_queue_access("gpu", caller, config)


def test_t68_an_operator_whose_name_cannot_be_read_is_none() -> None:
    def fails(_uid: int) -> str:
        raise OSError("the directory is away")

    config = Settings(
        server="head",
        queues={},
        operators=Privileged(uids=frozenset({0, 1005}), names={1005: "olga"}),
    )
    callers = Callers(settings=lambda: config, names=UserNames(HandClock(), fails))

    assert not callers.caller(1005, 1, acts=True).operator
