"""Power saving and idle GPUs in the simulator: what they give back, and what they cost."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from baselines.registry import POLICIES
from gsched.config.idle_gpus import IdleGpusConfig
from gsched.config.tables import Config, PowerConfig
from gschedd.sim import cli
from gschedd.sim.cluster import read_cluster
from gschedd.sim.output import SimReport
from gschedd.sim.recorder import JobResult
from gschedd.sim.savings import Savings, used_s
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.traces import read_trace
from gschedd.sim.workload import TraceJob

HOUR_S = 3600.0
POWER = PowerConfig(suspend_program="/sbin/down", resume_program="/sbin/up", suspend_after_s=600.0)
HOLD = IdleGpusConfig(action="hold", warn_s=1800.0, warn_held_s=1800.0, act_s=HOUR_S)
WORKS, PAUSES, ENDS = (
    ((0.0, 0.9),),
    ((0.0, 0.9), (HOUR_S, 0.0), (8 * HOUR_S, 0.9)),
    (
        (0.0, 0.9),
        (HOUR_S, 0.0),
    ),
)


def replay(
    cluster: str, jobs: Sequence[TraceJob], site: Config
) -> tuple[dict[int, JobResult], Savings]:
    results: dict[int, JobResult] = {}
    simulation = Simulation(
        read_cluster(cluster),
        jobs,
        POLICIES["fifo"],
        options=Options(site=site, savings=True, boot_s=180.0),
        on_result=lambda result: results.update({result.job: result}),
    )
    assert not simulation.run(turns=10_000)
    savings = simulation.summary("fifo").savings
    assert savings is not None
    return results, savings


def test_a_job_waits_until_a_node_has_booted_and_nodes_are_off_meanwhile() -> None:
    jobs = [TraceJob(submit_s=0, duration_s=60), TraceJob(submit_s=2 * HOUR_S, duration_s=60)]
    results, savings = replay("2xcpus=2,idle_watts=500", jobs, Config(power=POWER))

    assert [results[job].wait_s for job in (1, 2)] == [0, 180]
    assert savings.power_ups == 1
    # one node has no job and is off from 630 s to the end, 7,440 s; the other from 690 to 7,200 s
    assert savings.off_node_h == pytest.approx((6810 + 6510) / HOUR_S)
    assert savings.energy_kwh == pytest.approx(savings.off_node_h / 2)


def test_gpus_of_jobs_that_idle_are_given_back_and_those_that_only_pause_lose_work() -> None:
    jobs = [
        TraceJob(submit_s=0, duration_s=10 * HOUR_S, gpus=2, gpu_uses=uses, walltime_s=12 * HOUR_S)
        for uses in (WORKS, PAUSES, ENDS)
    ]
    results, savings = replay("3xcpus=4,gpus=2", jobs, Config(idle_gpus=HOLD))

    assert [results[job].outcome for job in (1, 2, 3)] == ["exited", "cancelled", "cancelled"]
    # idle from 1 h on, seen as soon as it counts, a warning, and an hour more
    ended_s = results[3].end_s
    assert HOUR_S + HOLD.warn_s + HOLD.act_s <= ended_s < HOUR_S + HOLD.warn_s + HOLD.act_s + 300
    assert (savings.warned_jobs, savings.ended_jobs) == (2, 2)
    assert savings.returned_gpu_h == pytest.approx(4 * (10 - ended_s / HOUR_S), rel=0.01)
    assert savings.lost_gpu_h == pytest.approx(2 * 0.9 * 2)
    assert savings.idle_gpu_h == pytest.approx(4 * (ended_s / HOUR_S - 1), rel=0.05)


def test_jobs_with_idle_gpus_run_to_their_end_where_the_site_only_warns() -> None:
    warn = msgspec.structs.replace(HOLD, action="warn")
    jobs = [TraceJob(submit_s=0, duration_s=6 * HOUR_S, gpus=1, gpu_uses=ENDS)]
    results, savings = replay("cpus=4,gpus=2", jobs, Config(idle_gpus=warn))

    assert results[1].outcome == "exited"
    assert (savings.warned_jobs, savings.ended_jobs, savings.returned_gpu_h) == (1, 0, 0)


def test_use_over_a_part_of_a_run_is_added_up() -> None:
    assert used_s(PAUSES, 0.0, 9 * HOUR_S) == pytest.approx(0.9 * 2 * HOUR_S)
    assert used_s((), 10.0, 20.0) == 10.0


def test_traces_state_use_over_time_in_pairs(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "submit_s,duration_s,gpus,gpu_uses\n0,10,1,0:0.9 5:0\n0,10,1,0:2\n0,10,1,5:1 0:1\n0,1,1,x\n"
    )
    trace = read_trace(str(path))

    assert [job.gpu_uses for job in trace.jobs] == [((0.0, 0.9), (5.0, 0.0))]
    assert [fault.line for fault in trace.faults] == [3, 4, 5]


def test_the_report_compares_each_policy_with_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, trace = tmp_path / "gsched.toml", tmp_path / "t.csv"
    trace.write_text("submit_s,duration_s\n0,60\n7200,60\n")
    run = ["run", str(trace), "--cluster", "2xcpus=2", "--policy", "fifo", "--savings"]
    site.write_text("[idle_gpus]\naction = 'warn'\n")
    refused = cli.status_of([*run, "--config", str(site)])
    assert (refused, "has no power saving" in capsys.readouterr().err) == (2, True)
    site.write_text("[power]\nsuspend_program = '/bin/true'\nresume_program = '/bin/true'\n")

    assert cli.status_of([*run, "--config", str(site), "--boot-time", "60", "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=SimReport)
    plain, saving = report.results
    assert (plain.policy, plain.savings) == ("fifo", None)
    assert saving.policy == "fifo+savings"
    assert saving.savings is not None
    assert saving.savings.wait_added_s == 30.0
    assert cli.status_of([*run, "--config", str(site)]) == 0
    assert "node-hours powered off" in capsys.readouterr().out
