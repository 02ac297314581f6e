"""How fast jobs run on a GPU that they share, by hand."""

import pytest

from gnode.core.task import AttemptKey
from gsched.model.resources import GpuShare
from gsched.model.states import ShareClass
from gschedd.sim.gpu_costs import SharingCosts, queueing_rates, shared_rates
from gschedd.sim.gpu_work import GpuWork
from gschedd.sim.program import Program

#: 1 ms to wait and 2 ms lost of each iteration of 20 ms, nine tenths of gaps are usable.
COSTS = SharingCosts(period_s=0.020, wait_s=0.001, lost_s=0.002, usable=0.9, turn_s=0.0005)


@pytest.mark.parametrize(
    ("uses", "rates"),
    [
        ([0.7], [1.0]),
        ([1.0, 1.0], [0.5, 0.5]),
        ([1.0] * 3, [1 / 3] * 3),
        ([0.5, 0.5], [0.8, 0.8]),
        ([0.25, 0.5], [1 / 1.125, 1 / 1.125]),
        ([0.0, 1.0], [1.0, 1.0]),
    ],
)
def test_jobs_that_are_served_alike_wait_for_each_others_bursts(
    uses: list[float], rates: list[float]
) -> None:
    """Two jobs: each is slower by the product of their duty cycles."""
    assert queueing_rates(uses) == pytest.approx(rates)


def test_three_jobs_by_hand() -> None:
    """Of two jobs of 0.5 each spends 0.75 of 1.25 at the GPU; the third one waits for both."""
    pair = 0.75 / (0.5 + 0.75)
    assert queueing_rates([0.5] * 3) == pytest.approx([1 / (0.5 + 0.5 * (1 + 2 * pair))] * 3)


def test_no_more_of_a_gpu_is_used_than_there_is() -> None:
    for uses in ([0.9, 0.8, 0.7], [1.0, 0.2], [0.6] * 4):
        rates = queueing_rates(uses)
        assert sum(rate * use for rate, use in zip(rates, uses, strict=True)) <= 1.0
        assert all(0 < rate < 1 for rate in rates)


def test_turns_of_the_token_cost_low_jobs_time_and_one_alone_none() -> None:
    assert shared_rates([], [0.5], COSTS) == ([], [1.0])
    (first, second) = shared_rates([], [0.5, 0.5], COSTS)[1]
    assert first == second < 0.8


def test_a_high_job_waits_once_an_iteration_and_a_low_one_gets_its_gaps() -> None:
    """0.9 of 0.4 is usable, less a tenth of the iteration; an endless job gets that."""
    high, low = shared_rates([0.6], [1.0], COSTS)

    assert high == pytest.approx([20 / 21])
    assert low == pytest.approx([(0.9 * 0.4 - 0.1) * 20 / 21])


def test_a_low_job_beside_a_high_one_without_gaps_stands_still() -> None:
    high, low = shared_rates([1.0], [0.5, 0.0], COSTS)

    assert high == pytest.approx([20 / 21])
    assert low == [0.0, 1.0]


def test_beside_a_job_that_never_uses_the_gpu_a_high_one_waits_for_nobody() -> None:
    assert shared_rates([0.5], [0.0], COSTS) == ([1.0], [1.0])


def test_packed_jobs_are_served_alike_whatever_their_class() -> None:
    high, low = shared_rates([0.6], [0.5], SharingCosts(packed=True))

    assert [*high, *low] == pytest.approx([1 / 1.3] * 2)


def test_jobs_of_a_machine_run_at_these_rates() -> None:
    """Two of 0.5 run at 0.8; the second one is alone from 125 s on."""
    work = GpuWork(8, 1.0, SharingCosts())
    part = (GpuShare(index=0, percent=20, memory_bytes=1, share_class=ShareClass.LOW),)
    for number, work_s in ((1, 100.0), (2, 150.0)):
        work.start(AttemptKey(number, 1), Program(work_s=work_s, gpu_use=0.5), 0.0, part)

    assert work.next_end_s() == pytest.approx(125.0)
    work.stop(work.done(125.0)[0], 125.0)
    assert work.next_end_s() == pytest.approx(175.0)
    assert work.done(175.0) == [AttemptKey(2, 1)]
    assert work.busy_s[0] == pytest.approx(125.0)
