"""What is worked out for questions is kept while questions use it, and no longer."""

from gschedd.core.forecast.recent import QUESTIONS_KEPT, RESULTS_KEPT, ResultCache


def test_results_are_kept_while_questions_use_them() -> None:
    """A kind that is asked about again and again is worked out once."""
    recent, worked = ResultCache(), []

    @recent.keep
    def squared(number: int) -> int:
        worked.append(number)
        return number * number

    for _ in range(10 * QUESTIONS_KEPT):
        assert squared(7) == 49
        recent.question_answered()

    assert worked == [7]


def test_what_no_question_uses_any_more_is_dropped() -> None:
    """Each question has a new fit of the same kind, as while it runs again and again."""
    recent, alive = ResultCache(), set()

    class Result:
        def __init__(self, number: int) -> None:
            self.number = number
            alive.add(number)

        def __del__(self) -> None:
            alive.discard(self.number)

    @recent.keep
    def fitted(number: int) -> Result:
        return Result(number)

    for number in range(100 * QUESTIONS_KEPT):
        fitted(number)
        recent.question_answered()

    assert len(alive) <= 2 * QUESTIONS_KEPT


def test_results_are_bounded_where_no_question_is_counted() -> None:
    """As where a submission is forecast within the head."""
    recent, worked = ResultCache(), []

    @recent.keep
    def squared(number: int) -> int:
        worked.append(number)
        return number * number

    for number in range(3 * RESULTS_KEPT):
        squared(number)
    worked.clear()
    for number in range(3 * RESULTS_KEPT - 1, -1, -1):
        squared(number)

    assert len(worked) >= RESULTS_KEPT
    assert 3 * RESULTS_KEPT - 1 not in worked
