"""The model of GPUs that jobs share: rates, ends and utilisation, by hand."""

import pytest

from gnode.core.task import AttemptKey
from gsched.errors import UsageError
from gsched.model.resources import GpuShare
from gsched.model.states import ShareClass
from gschedd.sim.agenda import FOREVER
from gschedd.sim.cluster import read_cluster
from gschedd.sim.gpu_work import GpuWork
from gschedd.sim.program import Program

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
A, B, C = (AttemptKey(number, 1) for number in (1, 2, 3))


def part(share_class: ShareClass = LOW, index: int = 0) -> tuple[GpuShare, ...]:
    return (GpuShare(index=index, percent=20, memory_bytes=1, share_class=share_class),)


def program(work_s: float, use: float) -> Program:
    return Program(work_s=work_s, gpu_use=use)


def end_of_next(work: GpuWork) -> tuple[list[AttemptKey], object]:
    """Let the next jobs end; return them, and when that is."""
    now_s = work.next_end_s()
    done = work.done(now_s)
    for key in done:
        work.stop(key, now_s)
    return done, pytest.approx(now_s)


def test_low_jobs_run_as_alone_while_the_gpu_has_time_and_share_it_evenly_beyond() -> None:
    """Two that want half of it run at full speed; with the third one each gets two thirds."""
    work = GpuWork(8, 1.0)
    for key in (A, B):
        work.start(key, program(100.0, 0.5), 0.0, part())
    work.start(C, program(100.0, 0.5), 40.0, part())

    assert end_of_next(work) == ([A, B], 130.0)
    assert end_of_next(work) == ([C], 170.0)
    assert work.busy_s[0] == pytest.approx(150.0)
    assert work.next_end_s() == FOREVER


def test_a_high_job_runs_as_alone_and_low_ones_get_the_rest() -> None:
    """0.8 of the GPU is used: of the 0.4 that a low job wants there are 0.2."""
    work = GpuWork(8, 1.0)
    work.start(A, program(100.0, 0.8), 0.0, part(HIGH))
    work.start(B, program(100.0, 0.4), 0.0, part())

    assert end_of_next(work) == ([A], 100.0)
    assert end_of_next(work) == ([B], 150.0)


def test_a_low_job_stands_still_beside_a_high_one_that_leaves_nothing() -> None:
    work = GpuWork(8, 1.0)
    work.start(A, program(50.0, 1.0), 0.0, part(HIGH))
    work.start(B, program(10.0, 0.1), 0.0, part())

    assert end_of_next(work) == ([A], 50.0)
    assert end_of_next(work) == ([B], 60.0)


def test_jobs_with_gpus_of_their_own_do_not_slow_each_other() -> None:
    """Nor does a share of another GPU; a node of half the speed takes twice as long."""
    work = GpuWork(8, 0.5)
    work.start(A, program(50.0, 0.9), 0.0, [GpuShare(index=0), GpuShare(index=1)])
    work.start(B, program(50.0, 0.9), 0.0, part(index=2))

    assert end_of_next(work) == ([A, B], 100.0)
    assert list(work.busy_s.values()) == pytest.approx([90.0] * 3)


def test_the_utilisation_is_that_of_the_last_minute() -> None:
    """A GPU that is 60 % busy from 0 to 100 s."""
    work = GpuWork(8, 1.0)
    work.start(A, program(100.0, 0.6), 0.0, part())
    assert work.gpu_percent(0, 0.0) == 0.0
    assert work.gpu_percent(0, 30.0) == pytest.approx(30.0)
    assert work.gpu_percent(0, 80.0) == pytest.approx(60.0)
    work.stop(A, 100.0)

    assert work.gpu_percent(0, 130.0) == pytest.approx(30.0)
    assert work.gpu_percent(0, 300.0) == pytest.approx(0.0)
    assert work.gpu_percent(7, 400.0) == 0.0


def test_a_cluster_with_the_memory_of_its_gpus_can_share_them() -> None:
    (node,) = read_cluster("1xcpus=8,gpus=2,gpu_memory=80gb")

    assert [gpu.memory_bytes for gpu in node.inventory.gpus] == [80 * 2**30] * 2
    with pytest.raises(UsageError, match="much"):
        read_cluster("1xcpus=8,gpus=2,gpu_memory=much")
