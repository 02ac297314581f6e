"""Which of several heads rules, where some are silent."""

import threading
from collections.abc import Callable, Iterator

import pytest

from gsched import several_heads
from gsched.errors import HeadUnreachableError, InternalError
from gsched.head_address import HeadAddress, parse_address
from gsched.several_heads import SLOW_S

A = HeadAddress("/a", source="test", path="/a")
B = HeadAddress("/b", source="test", path="/b")
TIMEOUT_S = 20.0


def find(
    heads: list[HeadAddress], health: Callable[[HeadAddress], str], *, reads: bool
) -> tuple[HeadAddress | None, HeadAddress | None, list[several_heads.Failure]]:
    return several_heads.find(heads, health, reads=reads, may_prompt=lambda head: head.ssh)


class Heads:
    """Heads that answer as a test wants."""

    def __init__(self) -> None:
        self.asked: list[HeadAddress] = []
        self.second_is_asked = threading.Event()
        self.over = threading.Event()

    def note(self, head: HeadAddress) -> None:
        self.asked.append(head)
        if len(self.asked) > 1:
            self.second_is_asked.set()

    def silent(self, head: HeadAddress) -> str:
        """The first one is silent until the test is over, the other one stands by."""
        self.note(head)
        if head is A:
            self.over.wait(TIMEOUT_S)
            raise HeadUnreachableError("silent")
        return "a"

    def slow(self, head: HeadAddress) -> str:
        """The first one rules, and answers when the other one has been asked."""
        self.note(head)
        if head is A:
            assert self.second_is_asked.wait(TIMEOUT_S)
            return ""
        return "a"


@pytest.fixture
def heads() -> Iterator[Heads]:
    made = Heads()
    yield made
    made.over.set()


def test_the_next_head_is_queried_while_one_is_slow(heads: Heads) -> None:
    ruler, _, failures = find([A, B], heads.slow, reads=False)
    assert (ruler, failures) == (A, [])
    assert heads.asked == [A, B]


def test_what_only_reads_does_not_wait_for_a_head_that_is_silent(heads: Heads) -> None:
    assert find([A, B], heads.silent, reads=True) == (None, B, [])
    assert not heads.over.is_set()


def test_a_change_waits_until_the_silent_head_has_failed(heads: Heads) -> None:
    threading.Timer(2 * SLOW_S, heads.over.set).start()
    ruler, standby, failures = find([A, B], heads.silent, reads=False)
    assert (ruler, standby) == (None, B)
    assert [str(each) for each in failures] == ["silent"]


def test_the_second_rules_where_the_first_does_not_answer() -> None:
    def health(head: HeadAddress) -> str:
        if head is A:
            raise HeadUnreachableError("no socket")
        return ""

    assert find([A, B], health, reads=False)[0] is B


def test_no_other_head_is_queried_if_the_first_one_rules(heads: Heads) -> None:
    def health(head: HeadAddress) -> str:
        heads.note(head)
        return ""

    assert find([A, B], health, reads=True) == (A, None, [])
    assert heads.asked == [A]


def test_while_ssh_may_ask_for_a_password_no_other_head_is_asked(heads: Heads) -> None:
    by_ssh = parse_address("ssh://login", source="test")

    def health(head: HeadAddress) -> str:
        heads.note(head)
        assert not heads.second_is_asked.wait(2 * SLOW_S)
        return ""

    assert find([by_ssh, B], health, reads=True)[0] is by_ssh
    assert heads.asked == [by_ssh]


def test_an_answer_that_no_head_gives_is_an_error() -> None:
    def health(head: HeadAddress) -> str:
        raise InternalError(f"{head.text} speaks no HTTP")

    with pytest.raises(InternalError, match="/a speaks no HTTP"):
        find([A, B], health, reads=True)
