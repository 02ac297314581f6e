"""How many messages of a job are read."""

from gnode.gpushare.budgets import MESSAGES_AT_ONCE, MESSAGES_PER_S, READ_AGAIN, Budget


def spend(budget: Budget, now_s: float) -> int:
    count = 0
    while budget.take(now_s):
        count += 1
    return count


def test_after_a_burst_a_job_is_read_at_a_rate() -> None:
    budget = Budget(5.0)

    assert spend(budget, 5.0) == MESSAGES_AT_ONCE
    assert spend(budget, 6.0) == MESSAGES_PER_S
    assert spend(budget, 1000.0) == MESSAGES_AT_ONCE, "it saves no more than that"


def test_a_job_that_has_spent_all_is_read_again_when_it_has_a_few() -> None:
    budget = Budget(5.0)
    spend(budget, 5.0)

    assert budget.next_s() == 5.0 + READ_AGAIN / MESSAGES_PER_S
    budget.fill(budget.next_s())
    assert round(budget.left) == READ_AGAIN
    assert budget.next_s() <= 5.0 + READ_AGAIN / MESSAGES_PER_S


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    budget = Budget(5.0, left=7.0)

    budget.fill(4.0)

    assert budget.left == 7.0
