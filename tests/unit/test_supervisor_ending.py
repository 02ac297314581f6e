"""When a job is asked to end and when it is killed, under a hand-turned clock."""

from hypothesis import given
from hypothesis import strategies as st

from gnode.supervisor.asking import Asking
from gnode.supervisor.ending import Do, Ending
from gnode.supervisor.orders import obey


def started(walltime_s: float | None = None, grace_s: float = 30.0) -> Ending:
    ending = Ending(walltime_s=walltime_s, grace_s=grace_s)
    ending.started(1000.0)
    return ending


def test_the_early_signal_is_due_once_before_the_walltime_ends() -> None:
    """It moves with the walltime, and a job that is being stopped is not told any more."""
    ending = Ending(walltime_s=100, grace_s=10, early_s=30)
    ending.started(1000)

    assert ending.deadline_s() == 1070
    ending.retime(200)
    assert (ending.deadline_s(), ending.step(1070)) == (1170, Do.NOTHING)
    assert [ending.step(1170), ending.step(1171)] == [Do.EARLY, Do.NOTHING]
    assert (ending.deadline_s(), ending.step(1200)) == (1200, Do.TERM)

    stopped = Ending(walltime_s=100, grace_s=10, early_s=30)
    stopped.started(1000)
    stopped.stop("delete", 100, 1001)
    assert stopped.step(1001) is Do.TERM
    assert (stopped.step(1070), stopped.deadline_s()) == (Do.NOTHING, 1101)
    assert Ending(walltime_s=None, grace_s=10, early_s=30).deadline_s() is None


def test_without_limit_and_orders_nothing_is_ever_due() -> None:
    ending = started()

    assert ending.deadline_s() is None
    assert ending.step(1e9) is Do.NOTHING


def test_walltime_gives_term_once_then_kill_after_the_grace() -> None:
    ending = started(walltime_s=60)

    assert ending.deadline_s() == 1060
    assert ending.step(1059.9) is Do.NOTHING
    assert ending.step(1060) is Do.TERM
    assert ending.step(1061) is Do.NOTHING
    assert ending.deadline_s() == 1090
    assert ending.step(1089.9) is Do.NOTHING
    assert ending.step(1090) is Do.KILL
    assert ending.reason == "walltime"


def test_the_limit_counts_from_the_start_not_from_the_launch() -> None:
    ending = Ending(walltime_s=60, grace_s=1)

    assert ending.deadline_s() is None
    assert ending.step(5000) is Do.NOTHING
    ending.started(5000)
    assert ending.deadline_s() == 5060


def test_kill_is_repeated_ever_more_slowly_but_never_given_up() -> None:
    ending = started(grace_s=0)
    ending.stop("delete", 0, 1000)
    gaps = []
    now_s = 1000.0
    for _ in range(20):
        assert ending.step(now_s) is Do.KILL
        deadline_s = ending.deadline_s()
        assert deadline_s is not None
        gaps.append(deadline_s - now_s)
        now_s = deadline_s

    assert gaps == sorted(gaps)
    assert 0 < gaps[0] < 0.1
    assert gaps[-1] < 1.1


def test_the_first_reason_stays_and_a_second_stop_only_shortens() -> None:
    ending = started()
    ending.stop("delete", 30, 1000)
    ending.stop("fenced", 500, 1001)
    assert ending.deadline_s() == 1030

    ending.stop("node_stop", 5, 1002)

    assert ending.deadline_s() == 1007
    assert ending.reason == "delete"
    assert ending.stopped_s == 1000


def test_a_stop_after_the_job_s_own_end_changes_no_outcome() -> None:
    ending = started()
    ending.main_exited(1000)
    assert ending.step(1000) is Do.TERM

    ending.stop("delete", 0.5, 1000.2)

    assert ending.reason is None
    assert ending.deadline_s() == 1000.7


def test_leftovers_get_the_short_grace_and_a_stop_the_long_one() -> None:
    left, stopped = started(), started()
    left.main_exited(1000)
    stopped.stop("delete", 30, 1000)
    stopped.main_exited(1001)

    assert left.step(1000) is Do.TERM
    assert left.deadline_s() == 1002
    assert left.reason is None
    assert stopped.deadline_s() == 1030


def test_the_grace_bounds_what_leftovers_get() -> None:
    ending = started(grace_s=0.5)
    ending.main_exited(1000)

    assert ending.deadline_s() == 1000.5


def test_the_walltime_of_a_job_that_has_ended_is_no_reason() -> None:
    ending = started(walltime_s=10)
    ending.main_exited(1009)

    assert ending.step(1020) is Do.KILL
    assert ending.reason is None


def test_orders_change_the_limit_and_hand_signals_back() -> None:
    ending = started(walltime_s=10)

    signals = obey(
        [
            {"do": "retime", "walltime_s": 100},
            {"do": "signal", "signal": 12},
            {"do": "stop", "reason": "nonsense", "grace_s": 1},
            {"do": "stop", "reason": "delete", "grace_s": -1},
            {"do": "retime", "walltime_s": "long"},
            "stop",
            {"do": "signal", "signal": 9},
        ],
        ending,
        Asking(),
        1000,
    )

    assert signals == [12, 9]
    assert ending.deadline_s() == 1100
    assert ending.reason is None


_events = st.lists(
    st.tuples(
        st.floats(0, 50),
        st.sampled_from(["stop", "exit", "retime", "wait"]),
        st.floats(0, 20),
    ),
    max_size=12,
)


@given(_events, st.one_of(st.none(), st.floats(0, 100)))
def test_whatever_happens_term_comes_at_most_once_and_never_after_kill(
    events: list[tuple[float, str, float]], walltime_s: float | None
) -> None:
    ending = started(walltime_s=walltime_s, grace_s=5)
    now_s = 1000.0
    done: list[Do] = []
    for after_s, event, value in events:
        now_s += after_s
        if event == "stop":
            ending.stop("delete", value, now_s)
        elif event == "exit":
            ending.main_exited(now_s)
        elif event == "retime":
            ending.retime(value)
        done.append(ending.step(now_s))

    steps = [what for what in done if what is not Do.NOTHING]
    assert steps.count(Do.TERM) <= 1
    assert Do.TERM not in steps[1:]


def test_a_shutdown_lets_a_job_save_its_state_before_term() -> None:
    ending = started()
    ending.notice_s = 20
    ending.stop("shutdown", 30, 1000)

    assert ending.step(1000) is Do.NOTICE
    assert ending.step(1000) is Do.NOTHING
    assert ending.deadline_s() == 1020
    assert ending.step(1020) is Do.TERM
    assert ending.deadline_s() == 1050
    assert ending.step(1050) is Do.KILL


def test_a_shutdown_sends_term_at_once_where_no_process_handles_the_notice() -> None:
    ending, without = started(), started()
    ending.notice_s = 20
    ending.stop("shutdown", 30, 1000)
    assert ending.step(1000) is Do.NOTICE

    ending.skip_notice(1001)
    without.stop("shutdown", 30, 1000)

    assert ending.step(1001) is Do.TERM
    assert ending.deadline_s() == 1031
    assert without.step(1000) is Do.TERM


def test_only_a_shutdown_gives_notice() -> None:
    ending = started()
    ending.notice_s = 20
    ending.stop("delete", 30, 1000)

    assert ending.step(1000) is Do.TERM
