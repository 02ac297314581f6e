"""Who uses a shared GPU next, step by step."""

from typing import Any

import pytest

from gnode.gpushare.memory_book import MemoryBook
from gnode.gpushare.token_model import (
    AskIdle,
    ClosedReason,
    CloseGate,
    OpenGate,
    SetWindow,
    TokenSettings,
)
from gnode.gpushare.token_policy import TokenPolicy
from gsched.model.states import ShareClass

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW


def policy(*low: str, high: str = "", **settings: float | None) -> TokenPolicy:
    """Return a policy with these jobs attached at time 0; low ones have no rate unless asked."""
    given: dict[str, Any] = {"opportunistic_fraction": 0.0, **settings}
    made = TokenPolicy(TokenSettings(**given))
    for name in low:
        made.attach(name, LOW, 0.0)
    if high:
        made.attach(high, HIGH, 0.0)
    return made


def test_a_lone_low_job_is_never_interrupted() -> None:
    token = policy("a")

    assert token.request("a", 1.0) == [OpenGate("a", 1)]
    assert token.next_tick_s() is None
    assert token.tick(1000.0) == []


def test_a_high_job_preempts_a_low_one_and_starts_when_it_has_drained() -> None:
    token = policy("a", high="h")
    token.request("a", 0.0)

    assert token.request("h", 0.01) == [CloseGate("a", 1, ClosedReason.PREEMPTED)]
    assert token.released("a", 1, 0.012, drain_s=0.0007) == [OpenGate("h", 2)]
    assert token.counters.preemptions == 1


def test_a_low_job_waits_until_the_high_one_is_idle() -> None:
    token = policy("a", high="h")
    token.request("h", 0.0)

    assert token.request("a", 1.0) == [AskIdle("h")]
    assert token.tick(100.0) == []
    assert token.idle("h", 100.0) == [CloseGate("h", 1, ClosedReason.IDLE)]
    assert token.released("h", 1, 100.001) == [OpenGate("a", 2)]


def test_a_high_job_that_launches_during_its_drain_gets_its_gate_back() -> None:
    token = policy("a", high="h")
    token.request("h", 0.0)
    token.request("a", 0.0)
    token.idle("h", 1.0)

    assert token.request("h", 1.0001) == [OpenGate("h", 2), AskIdle("h")]
    assert token.released("h", 1, 1.0002) == []


def test_a_holder_that_is_busy_again_is_asked_again() -> None:
    """Or its processes would watch no longer, and the other job would wait forever."""
    token = policy("a", high="h")
    token.request("h", 0.0)
    token.request("a", 0.0)

    assert token.request("h", 1.0) == [OpenGate("h", 1), AskIdle("h")]


def test_an_idle_time_of_before_does_not_count_for_the_next_job_that_waits() -> None:
    """The one that waited has gone; the holder may be busy again, and is asked."""
    token = policy("a", "b", high="h")
    token.request("h", 0.0)
    token.request("a", 0.0)
    token.detach("a", 1.0)

    assert token.idle("h", 1.1) == []
    assert token.request("b", 2.0) == [AskIdle("h")]
    assert token.idle("h", 2.1) == [CloseGate("h", 1, ClosedReason.IDLE)]


def test_low_jobs_take_turns_in_slices_that_grow() -> None:
    token = policy("a", "b", slice_first_s=0.1, slice_max_s=0.3)
    token.request("a", 0.0)
    token.request("b", 0.0)
    slices: list[float] = []
    now_s, holder = 0.0, "a"
    for _ in range(5):
        due_s = token.next_tick_s()
        assert due_s is not None
        slices.append(round(due_s - now_s, 3))
        now_s = due_s
        assert token.tick(now_s) == [
            CloseGate(holder, token.epoch_of(holder), ClosedReason.SLICE_END)
        ]
        token.request(holder, now_s)
        token.released(holder, token.epoch_of(holder), now_s)
        holder = "b" if holder == "a" else "a"

    assert slices == [0.1, 0.2, 0.3, 0.3, 0.3]


def test_slices_are_short_beside_a_high_job() -> None:
    token = policy("a", "b", high="h", slice_beside_high_s=0.05)
    token.request("a", 0.0)
    token.request("b", 0.0)

    assert token.next_tick_s() == pytest.approx(0.05)


def test_the_job_that_has_used_less_is_next_and_use_is_forgotten() -> None:
    token = policy("a", "b", "c", slice_first_s=1.0, slice_max_s=1.0, half_life_s=10.0)
    token.request("a", 0.0)
    token.request("b", 0.5)
    token.request("c", 0.5)
    token.tick(1.0)
    token.request("a", 1.0)
    token.released("a", 1, 1.0)

    assert token.holder == "b"
    assert token.usage_s("a", 1.0) == pytest.approx(1.0)
    assert token.usage_s("a", 11.0) == pytest.approx(0.5)


def test_a_job_that_does_not_drain_is_overtaken_and_counted() -> None:
    token = policy("a", high="h", drain_max_s=0.5)
    token.request("a", 0.0)
    token.request("h", 1.0)

    assert token.next_tick_s() == 1.5
    assert token.tick(1.4) == []
    effects = token.tick(1.5)

    assert OpenGate("h", 2) in effects
    assert (token.counters.overlaps, token.groups["a"].overlaps) == (1, 1)
    assert token.released("a", 1, 1.8) == []
    assert token.request("a", 1.9) == [AskIdle("h")]
    assert token.idle("h", 2.0) == [CloseGate("h", 2, ClosedReason.IDLE)]


def test_an_overtaken_job_goes_on_when_nobody_else_waits() -> None:
    """Its work may wait for its next launch, and would never end otherwise."""
    token = policy("a", high="h", drain_max_s=0.5)
    token.request("a", 0.0)
    token.request("h", 1.0)
    token.tick(1.5)
    assert token.request("a", 1.6) == [AskIdle("h")]
    token.idle("h", 1.7)

    assert token.released("h", 2, 1.8) == [OpenGate("a", 3)]
    assert token.released("a", 1, 1.9) == [], "an old drain changes nothing"
    assert token.holder == "a"


def test_an_overtaken_job_comes_after_others_of_its_class() -> None:
    token = policy("a", "b", high="h", drain_max_s=0.5)
    token.request("b", 0.0)
    token.released("b", 1, 0.0)
    token.detach("b", 0.1)
    token.request("a", 0.2)
    token.request("h", 1.0)
    token.tick(1.5)
    token.attach("b", LOW, 1.5)
    token.request("a", 1.6)
    token.request("b", 1.7)
    token.idle("h", 1.8)

    assert OpenGate("b", 4) in token.released("h", 3, 1.9)


def test_a_low_job_has_a_rate_beside_a_high_one_that_is_never_idle() -> None:
    """Two of them share it; the high job keeps its gate."""
    token = policy("a", "b", high="h", opportunistic_fraction=0.02, opportunistic_period_s=1.0)
    token.request("h", 0.0)
    token.request("a", 0.0)
    token.request("b", 0.0)
    opened: list[tuple[float, str]] = []
    closed: list[tuple[float, str]] = []
    now_s: float | None = 0.0
    while (now_s := token.next_tick_s()) is not None and now_s < 5.0:
        for effect in token.tick(now_s):
            match effect:
                case OpenGate(group):
                    opened.append((round(now_s, 3), group))
                case CloseGate(group, epoch):
                    closed.append((round(now_s, 3), group))
                    token.request(group, now_s)
                    token.released(group, epoch, now_s)
                case _:
                    pass
        assert token.holder == "h"

    assert opened == [(1.0, "a"), (2.0, "b"), (3.0, "a"), (4.0, "b")]
    assert closed == [(1.02, "a"), (2.02, "b"), (3.02, "a"), (4.02, "b")]
    assert token.counters.opportunistic_slices == 4
    assert token.held_s("a", 5.0) == pytest.approx(0.04)


def test_without_a_rate_a_low_job_waits_for_an_idle_moment() -> None:
    token = policy("a", high="h", opportunistic_fraction=0.0)
    token.request("h", 0.0)
    token.request("a", 0.0)

    assert token.next_tick_s() is None
    assert token.tick(100.0) == []


def test_a_low_job_in_its_slice_keeps_its_gate_when_the_high_one_is_idle() -> None:
    token = policy("a", high="h", opportunistic_fraction=0.02)
    token.request("h", 0.0)
    token.request("a", 0.0)
    assert token.tick(1.0) == [OpenGate("a", 2)]
    assert token.detach("h", 1.01) == [CloseGate("h", 1, ClosedReason.LEFT), SetWindow("a", 0)]

    assert token.holder == "a"
    assert token.tick(2.0) == []


def test_a_demotion_ends_and_the_next_one_is_longer() -> None:
    token = policy("a", high="h", drain_max_s=0.5, overlaps_max=1, demotion_s=60.0)
    overtaken(token, "h", 0.0)
    assert token.groups["a"].demoted

    assert token.next_tick_s() == pytest.approx(60.7)
    token.tick(60.7)
    assert token.groups["a"].demoted_until_s is None
    token.idle("h", 60.8)
    token.released("h", token.epoch_of("h"), 60.9)
    overtaken(token, "h", 61.0)
    until_s = token.groups["a"].demoted_until_s
    assert until_s == pytest.approx(61.7 + 120.0)


def test_a_drain_that_waits_for_code_is_not_held_against_the_job() -> None:
    """Up to a time in all: a job may lie."""
    token = policy("a", high="h", drain_max_s=0.5, overlaps_max=1, loading_max_s=1.0)
    for round_s in (0.0, 10.0):
        token.request("a", round_s)
        epoch = token.epoch_of("a")
        token.request("h", round_s + 0.1)
        token.loading("a", epoch)
        token.tick(round_s + 0.6)
        assert token.holder == "h"
        token.released("a", epoch, round_s + 5)
        token.request("a", round_s + 5)
        token.idle("h", round_s + 6)
        token.released("h", token.epoch_of("h"), round_s + 6)
        token.idle("a", round_s + 7)
        assert (token.groups["a"].overlaps, token.groups["a"].demoted) == (0, False)
    assert token.counters.loads == 2

    token.request("h", 20.1)
    token.loading("a", token.epoch_of("a"))
    token.tick(20.6)

    assert token.groups["a"].demoted


def test_a_job_that_was_sent_a_signal_launches_beside_the_others() -> None:
    token = policy("a", "b", high="h")
    token.request("h", 0.0)
    token.request("a", 0.0)

    assert token.attend("a", 5.0, 0.1) == [OpenGate("a", 2)]
    assert (token.holder, token.concurrent) == ("h", ["a"])
    assert token.tick(5.0) == [CloseGate("a", 2, ClosedReason.ATTENDED)]
    assert token.released("a", 2, 5.1) == []
    assert token.request("a", 5.2) == [AskIdle("h")] or token.holder == "h"


def test_a_holder_that_was_sent_a_signal_loses_the_token_and_goes_on() -> None:
    token = policy("a", high="h")
    token.request("a", 0.0)
    assert token.attend("a", 5.0, 0.1) == []

    assert token.request("h", 0.2) == [OpenGate("h", 2)]
    assert (token.holder, token.concurrent) == ("h", ["a"])
    assert token.tick(5.0) == [CloseGate("a", 1, ClosedReason.ATTENDED)]


def overtaken(token: TokenPolicy, by: str, at_s: float) -> None:
    """Let low job a be overtaken by another job, and drain much later."""
    token.request("a", at_s)
    epoch = token.epoch_of("a")
    assert epoch, "it holds the token"
    token.request(by, at_s + 0.1)
    token.tick(at_s + 0.7)
    assert token.holder == by
    token.released("a", epoch, at_s + 1.0)
    token.request("a", at_s + 1.1)
    token.idle(by, at_s + 1.2)
    token.released(by, token.epoch_of(by), at_s + 1.3)


def test_a_low_job_that_does_not_drain_again_and_again_runs_beside_no_high_job() -> None:
    """It keeps what was counted when its last process ends, and runs when the high job has left."""
    token = policy("a", "b", high="h", drain_max_s=0.5, overlaps_max=2)
    overtaken(token, "h", 0.0)
    assert (token.groups["a"].demoted, token.holder) == (False, "a")
    overtaken(token, "h", 2.0)

    assert token.groups["a"].demoted
    assert (token.counters.demotions, token.groups["a"].overlaps_in_row) == (1, 2)
    assert token.holder == "h", "nobody waits that may run beside it"
    token.request("b", 4.0)
    token.idle("h", 4.1)
    token.released("h", token.epoch_of("h"), 4.2)
    assert token.holder == "b"
    token.detach("a", 5.0)
    token.attach("a", LOW, 5.1)
    assert token.groups["a"].demoted
    token.request("a", 5.2)
    token.detach("b", 5.3)
    assert token.epoch_of("a") == 0
    token.detach("h", 6.0)
    assert token.epoch_of("a") > 0
    token.forget("h")
    assert set(token.gone) == {"b"}


def test_a_drain_in_time_is_forgiven() -> None:
    token = policy("a", high="h", drain_max_s=0.5, overlaps_max=2)
    overtaken(token, "h", 0.0)
    token.request("h", 2.0)
    token.released("a", token.epoch_of("a"), 2.1, drain_s=0.1)
    token.idle("h", 2.3)
    token.released("h", token.epoch_of("h"), 2.4)

    assert token.groups["a"].overlaps_in_row == 0
    token.detach("h", 3.0)
    assert token.groups["a"].overlaps == 1


def test_a_high_job_that_does_not_drain_becomes_a_low_one() -> None:
    """So windows end as well: nobody else is high."""
    token = policy("a", "b", high="h", drain_max_s=0.5, overlaps_max=1)
    token.request("h", 0.0)
    token.request("a", 0.1)
    token.idle("h", 0.2)
    effects = token.tick(0.8)

    assert token.groups["h"].demoted
    assert SetWindow("a", 0) in effects
    assert token.holder == "a"
    token.request("h", 0.85)
    assert token.holder == "a", "it does not preempt any more"


def test_the_end_of_a_holder_frees_the_token_at_once() -> None:
    token = policy("a", "b")
    token.request("a", 0.0)
    token.request("b", 0.0)

    effects = token.detach("a", 0.01)

    assert (effects[0], effects[-1]) == (CloseGate("a", 1, ClosedReason.LEFT), OpenGate("b", 2))


def test_after_a_restart_only_claims_are_granted_until_the_quiet_time_ends() -> None:
    token = TokenPolicy(TokenSettings(), quiet_until_s=10.0)
    for name in ("a", "b"):
        token.attach(name, LOW, 9.0)

    assert token.request("a", 9.0) == []
    assert token.next_tick_s() == 10.0
    assert token.claim("b", 9.5) == [OpenGate("b", 1), AskIdle("b")]


def test_the_window_follows_the_measured_drain() -> None:
    token = policy("a", high="h", window_first=4, drain_target_s=0.001)
    windows = []
    for number, drain_s in enumerate([0.004, 0.004, 0.004, 0.0007, 0.0001, 0.0001]):
        token.request("a", float(number))
        token.request("h", number + 0.1)
        effects = token.released("a", token.epoch_of("a"), number + 0.2, drain_s=drain_s)
        windows.append(token.groups["a"].window)
        assert (SetWindow("a", windows[-1]) in effects) == (
            windows[-2:][0] != windows[-1] or number == 0
        )
        token.request("a", number + 0.3)
        token.idle("h", number + 0.4)
        token.released("h", token.epoch_of("h"), number + 0.5)
        token.idle("a", number + 0.6)

    assert windows == [2, 1, 1, 1, 2, 4]


def test_windows_end_with_the_high_job() -> None:
    token = policy("a")

    assert SetWindow("a", 4) in token.attach("h", HIGH, 0.0)
    assert SetWindow("a", 0) in token.detach("h", 1.0)


def test_memory_of_all_processes_counts_and_a_dead_one_gives_back() -> None:
    book = MemoryBook()
    book.set_limit("a", 100)

    assert book.reserve("a", 1, 60)
    assert not book.reserve("a", 2, 41)
    assert book.reserve("a", 2, 40)
    book.drop("a", 1)
    assert book.used_bytes("a") == 40
    assert book.refused == {"a": 1}


def test_memory_in_use_already_counts_beyond_the_limit() -> None:
    book = MemoryBook()
    book.set_limit("a", 100)

    assert book.reserve("a", 1, 150, forced=True)
    assert not book.reserve("a", 1, 1)
    book.free("a", 1, 1000)
    assert book.used_bytes("a") == 0


def test_contexts_of_processes_are_part_of_the_limit() -> None:
    """So the sum of all limits on a card counts them as well."""
    book = MemoryBook(context_bytes=10)
    book.set_limit("a", 100)

    assert book.reserve("a", 1, 0, forced=True)  # a process says hello
    assert book.used_bytes("a") == 10
    assert not book.reserve("a", 1, 91)
    assert book.reserve("a", 1, 70)
    assert not book.reserve("a", 2, 11), "with its context that is one byte too much"
    assert book.reserve("a", 2, 10)
    book.free("a", 3, 50)
    book.drop("a", 1)
    assert book.used_bytes("a") == 20
