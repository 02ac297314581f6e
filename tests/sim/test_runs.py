"""Runs of traces: what comes out, that it is the same each time, and that a stopped one is kept."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import pytest

from baselines.registry import POLICIES
from gschedd.sim import cli
from gschedd.sim.cluster import read_cluster
from gschedd.sim.output import SimReport
from gschedd.sim.recorder import JobResult, Summary
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from tests.docs.test_manpages import described, options_of, page_of, sections_of

ROOT = Path(__file__).resolve().parents[2]


def replay(
    cluster: str, jobs: Sequence[TraceJob], work: str = "fixed"
) -> tuple[dict[int, JobResult], Summary]:
    """Run jobs to their end under fifo; return the results by number, and the summary."""
    results: dict[int, JobResult] = {}
    simulation = Simulation(
        read_cluster(cluster),
        jobs,
        POLICIES["fifo"],
        options=Options(work=work),
        on_result=lambda result: results.update({result.job: result}),
    )
    assert not simulation.run()
    return results, simulation.summary("fifo")


def job(submit_s: float, duration_s: float, **fields: object) -> TraceJob:
    """Return a job of one CPU, with changes."""
    return TraceJob(submit_s=submit_s, duration_s=duration_s, **fields)  # type: ignore[arg-type] # as the tests state them


def test_one_node_takes_one_job_after_the_other() -> None:
    """Waiting, completion and slowdown as anybody counts them."""
    results, summary = replay("cpus=1", [job(0, 100), job(10, 20, user="bob"), job(10, 5)])

    assert [(r.start_s, r.end_s) for _, r in sorted(results.items())] == [
        (0, 100), (100, 120), (120, 125),
    ]  # fmt: skip
    assert [r.slowdown for _, r in sorted(results.items())] == [1.0, 110 / 20, 115 / 10]
    assert summary.makespan_s == 125
    assert summary.waiting_s.mean == pytest.approx((0 + 90 + 110) / 3, abs=1e-6)
    assert summary.completion_s.maximum == 115
    assert (summary.cpu.utilisation, summary.cpu.imbalance) == (1.0, 0.0)
    assert summary.outcomes == {"exited": 3}
    assert (summary.unfinished, summary.users) == (0, 2)


def test_a_walltime_ends_a_job() -> None:
    """By the real rules; and a deadline is missed that way."""
    results, summary = replay(
        "cpus=2", [job(0, 100, walltime_s=30.0, deadline_s=500.0), job(0, 40, deadline_s=40.0)]
    )

    assert (results[1].outcome, results[1].end_s, results[1].deadline_met) == ("walltime", 30, 0)
    assert (results[2].outcome, results[2].deadline_met) == ("exited", 1)
    assert summary.deadline_rate == 0.5


def test_what_can_never_run_is_refused_and_counted() -> None:
    """In the head's own words; the others run."""
    _, summary = replay("2xcpus=2", [job(0, 1, cpus=64), job(0, 1, gpus=1), job(0, 1)])

    assert summary.done == 1
    assert sum(summary.refused.values()) == 2
    assert any("no node can provide that" in text for text in summary.refused)


def test_over_used_nodes_are_slow() -> None:
    """Jobs that use more than they requested hurt each other under `shared`, not under `fixed`."""
    jobs = [job(0, 100, cpus_used=4.0), job(0, 100, cpus_used=4.0)]

    fixed, _ = replay("cpus=4", jobs)
    shared, summary = replay("cpus=4", jobs, work="shared")

    assert [fixed[1].end_s, fixed[2].end_s] == [100, 100]
    assert [shared[1].end_s, shared[2].end_s] == [200, 200]
    assert summary.cpu.utilisation == 1.0


def test_jobs_on_several_nodes_run_on_all_of_them() -> None:
    """They end with their slowest part; idle nodes are imbalance."""
    results, summary = replay("cpus=2+cpus=2,speed=0.5+cpus=2", [job(0, 100, cpus=4)], "shared")

    nodes = results[1].nodes.split()
    assert len(nodes) == 2
    assert results[1].end_s == (200 if "n2" in nodes else 100)
    assert summary.cpu.imbalance > 0.5


def write_trace(path: Path, count: int = 300) -> Path:
    """Write a trace with waiting, several users, GPUs and limits."""
    rows = [
        f"{i * 7},{20 + i * 37 % 400},u{i % 5},{1 + i % 4},{i % 3 % 2},{300 + i % 200}"
        for i in range(count)
    ]
    text = "submit_s,duration_s,user,cpus,gpus,walltime_s\n" + "\n".join(rows) + "\n"
    path.write_text(text, encoding="utf-8")
    return path


def gsim(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "gschedd.sim.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """In another process with other hashes; another seed gives others."""
    trace = str(write_trace(tmp_path / "t.csv"))
    outputs: list[tuple[bytes, ...]] = []
    for number, seed in enumerate((7, 7, 8)):
        out = tmp_path / str(number)
        done = gsim(
            *("run", trace, "--cluster", "6xcpus=4,gpus=1", "--policy", "fifo"),
            *("--seed", str(seed), "--jitter", "20", "--work", "shared"),
            *("--json-file", str(tmp_path / "report.json"), "--csv", str(out)),
            hash_seed=str(number),
        )
        assert done.returncode == 0, done.stderr
        report = (tmp_path / "report.json").read_bytes()
        files = [path.read_bytes() for path in sorted(out.iterdir())]
        outputs.append((report, done.stdout.encode(), *files))

    assert outputs[0] == outputs[1]
    assert outputs[0][2] != outputs[2][2]
    assert len(outputs[0]) == 4
    assert outputs[0][2].count(b"\n") == 301
    decoded = msgspec.json.decode(outputs[0][0], type=SimReport)
    assert decoded.results[0].done == 300


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    """Lines of jobs that were done, a report that says so, and exit status 130."""
    trace = write_trace(tmp_path / "t.csv", count=60_000)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gschedd.sim.cli", "run", str(trace), "--policy", "fifo"),
            *("--cluster", "200xcpus=4,gpus=1", "--csv", str(tmp_path / "out")),
            *("--json-file", str(tmp_path / "report.json")),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    results = tmp_path / "out" / "results-fifo.csv"
    while process.poll() is None and not (results.exists() and results.stat().st_size > 4096):
        signal.sigtimedwait((), 0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()

    assert process.returncode == 130, errors
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=SimReport)
    assert report.interrupted
    assert 0 < report.results[0].done < 60_000
    assert results.read_text().count("\n") == report.results[0].done + 1
    assert f"{report.results[0].done} of 60000 jobs were done" in errors
    assert str(tmp_path / "out") in errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--cluster", "0xcpus=1", "--policy", "fifo"), "count is 0"),
        (("--cluster", "cpus=1", "--policy", "lottery"), "valid: "),
        (("--cluster", "cpus=1", "--policy", "torqe"), "did you mean 'torque'? valid: "),
        (("--cluster", "cpus=1", "--policy", ","), "no policy is named"),
        (("--cluster", "cpus=1", "--policy", "fifo", "--parquet"), "--parquet goes with --csv"),
        (("--cluster", "cpus=1", "--policy", "fifo", "--limit", "0"), "--limit"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    """With exit status 2, and without a traceback."""
    trace = write_trace(tmp_path / "t.csv", count=3)

    assert cli.status_of(["run", str(trace), *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert "Traceback" not in error


def test_malformed_lines_are_shown(tmp_path: Path) -> None:
    """With file and line; the report counts them."""
    trace = tmp_path / "t.csv"
    trace.write_text("submit_s,duration_s\n0,5\nsoon,5\n")
    done = gsim("run", str(trace), "--cluster", "cpus=1", "--policy", "fifo", "--json-file",
                str(tmp_path / "r.json"))  # fmt: skip

    assert done.returncode == 0
    assert f"{trace}:3: " in done.stderr
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=SimReport).malformed == 1


def test_a_strict_run_refuses_a_malformed_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named all the same, and nothing is replayed; without such a line all is well."""
    bad, good = tmp_path / "bad.csv", tmp_path / "good.csv"
    good.write_text("submit_s,duration_s\n0,5\n")
    bad.write_text("submit_s,duration_s\n0,5\nsoon,5\n")
    common = ("--cluster", "cpus=1", "--policy", "fifo", "--strict")

    assert cli.status_of(["run", str(bad), *common]) == 2
    said = capsys.readouterr()
    assert f"{bad}:3: " in said.err
    assert "bad.csv has 1 malformed line" in said.err
    assert said.out == ""
    assert cli.status_of(["run", str(good), *common]) == 0


def test_a_trace_of_which_nothing_fits_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the head's words; the report is written, and holds no averages of nothing."""
    trace = tmp_path / "t.csv"
    trace.write_text("submit_s,duration_s,gpus\n0,5,1\n1,5,1\n")
    report = tmp_path / "r.json"
    arguments = ("run", str(trace), "--cluster", "2xcpus=4", "--policy", "fifo,torque")

    assert cli.status_of([*arguments, "--json-file", str(report)]) == 2
    said = capsys.readouterr()
    assert "none of the 2 jobs could ever run on this cluster: needs 1 GPU" in said.err
    assert "waiting" not in said.out
    decoded = msgspec.json.decode(report.read_bytes(), type=SimReport)
    assert [sum(each.refused.values()) for each in decoded.results] == [2, 2]


def test_a_site_s_own_settings_decide(tmp_path: Path) -> None:
    """Without a reservation small jobs go past a large one as long as they come."""
    trace, out = tmp_path / "t.csv", tmp_path / "results"
    small = [f"{submit_s},10,1,10" for submit_s in (0, 5, 9, 14, 19)]
    lines = ["submit_s,duration_s,cpus,walltime_s", *small[:2], "6,10,2,10", *small[2:]]
    trace.write_text("\n".join(lines) + "\n")
    config = tmp_path / "gsched.toml"
    config.write_text("[balance]\nreserve = false\n")
    arguments = ("run", str(trace), "--cluster", "cpus=2", "--policy", "balance", "--csv", str(out))

    started_s = []
    for more in ((), ("--config", str(config))):
        assert cli.status_of([*arguments, *more]) == 0
        with (out / "results-balance.csv").open(encoding="utf-8", newline="") as file:
            large = next(row for row in csv.DictReader(file) if row["cpus"] == "2")
        started_s.append(float(large["start_s"]))
    assert started_s == [15, 30]


def test_limits_of_a_site_and_its_queues_hold_in_a_replay(tmp_path: Path) -> None:
    """Jobs of a user at a limit wait, and those of others start; a job above it is refused."""
    trace, out = tmp_path / "t.csv", tmp_path / "results"
    lines = ["submit_s,duration_s,cpus,user,queue", *(f"0,10,1,ann,{q}" for q in "aab")]
    trace.write_text("\n".join([*lines, "1,10,1,bob,a", "2,10,3,bob,a"]) + "\n")
    config = tmp_path / "gsched.toml"
    config.write_text(
        "[limits]\neach_user = { max_running = 2 }\n"
        '[[queue]]\nname = "a"\neach_user = { max_running = 1, max_cpus = 2 }\n'
    )
    arguments = ("run", str(trace), "--cluster", "cpus=8", "--policy", "balance", "--csv", str(out))

    assert cli.status_of([*arguments, "--config", str(config)]) == 0
    with (out / "results-balance.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["start_s"]) for row in rows if row["start_s"]) == [0, 0, 1, 10]


def test_a_configuration_that_cannot_be_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is replayed."""
    trace, config = write_trace(tmp_path / "t.csv", count=3), tmp_path / "gsched.toml"
    config.write_text('[fabric]\nbetween = "fast"\n')
    arguments = ("run", str(trace), "--cluster", "cpus=1", "--policy", "fifo")

    assert cli.status_of([*arguments, "--config", str(config)]) != 0
    said = capsys.readouterr()
    assert "[fabric] between" in said.err
    assert said.out == ""


def test_results_as_parquet_are_those_of_the_csv(tmp_path: Path) -> None:
    """With types that do not depend on what happens to be in a column."""
    parquet = pytest.importorskip("pyarrow.parquet")
    trace = write_trace(tmp_path / "t.csv", count=20)
    arguments = ("run", str(trace), "--cluster", "6xcpus=4,gpus=1", "--policy", "fifo")

    assert cli.status_of([*arguments, "--csv", str(tmp_path), "--parquet"]) == 0
    table = parquet.read_table(tmp_path / "results-fifo.parquet")
    assert table.column_names == list(JobResult.__struct_fields__)
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert (types["kind"], types["deadline_met"], types["start_s"]) == ("string", "int64", "double")
    with (tmp_path / "results-fifo.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    assert [row["user"] for row in rows] == table["user"].to_pylist()
    assert [float(row["end_s"]) for row in rows] == table["end_s"].to_pylist()
    assert table["deadline_met"].to_pylist() == [None] * 20


def test_figures_are_drawn_and_are_the_same_each_time(tmp_path: Path) -> None:
    """A panel for what there is, a name for each policy, none for what was never used."""
    pytest.importorskip("matplotlib")
    trace = write_trace(tmp_path / "t.csv", count=40)
    drawn: list[tuple[bytes, bytes]] = []
    for name in ("first", "second"):
        out = tmp_path / name
        arguments = ("run", str(trace), "--cluster", "6xcpus=4,gpus=1", "--policy", "fifo,torque")
        assert cli.status_of([*arguments, "--figures", str(out)]) == 0
        drawn.append(((out / "over-time.png").read_bytes(), (out / "over-time.svg").read_bytes()))

    assert drawn[0] == drawn[1]
    assert drawn[0][0].startswith(b"\x89PNG")
    words = drawn[0][1].decode()
    for label in ("CPUs used (%)", "GPUs used (%)", "fifo", "torque", "(hours)"):
        assert f"<!-- {label} -->" in words or label in words
    assert "memory used" not in words


def test_a_narrow_terminal_cuts_no_number(tmp_path: Path) -> None:
    """A table that is too wide is still whole: it may be read in a file or a pager."""
    trace = write_trace(tmp_path / "t.csv", count=20)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gschedd.sim.cli", "run", str(trace)),
            *("--cluster", "6xcpus=4,gpus=1", "--policy", "fifo,torque,fewest,roundrobin"),
        ],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "40"},
        capture_output=True,
        text=True,
        check=True,
    )

    lines = done.stdout.splitlines()
    assert all(name in lines[0] for name in ("fifo", "torque", "fewest", "roundrobin"))
    (makespan,) = [line for line in lines if line.startswith("makespan")]
    assert makespan.count(" min") == 4


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Before anything is simulated."""
    trace = write_trace(tmp_path / "t.csv", count=3)
    done = gsim("run", str(trace), "--cluster", "cpus=1", "--policy", "fifo", "--csv",
                f"{trace}/below")  # fmt: skip

    assert done.returncode == 73
    assert f"{trace}/below" in done.stderr


def test_the_page_and_the_parser_have_the_same_options() -> None:
    """None left out, none invented."""
    known: set[str] = set()
    for command in (cli.gsim, *cli.gsim.commands.values()):
        assert isinstance(command, click.Command)
        known |= options_of(command)

    assert described(sections_of(page_of("gsim"))["OPTIONS"]) == known


def test_looking_only_at_what_has_changed_changes_nothing() -> None:
    """A head that looks at everything in every cycle makes the same of a crowded trace."""
    jobs = [
        job(
            i * 3.0,
            20.0 + i * 37 % 400,
            cpus=1 + i % 4 * (i % 3),
            gpus=i % 5 % 2,
            walltime_s=float(100 + i % 7 * 100),
        )
        for i in range(400)
    ]
    changed, summary = replay("6xcpus=8,gpus=2", jobs)
    simulation = Simulation(read_cluster("6xcpus=8,gpus=2"), jobs, POLICIES["fifo"])
    while simulation.run(turns=1):
        simulation.head.state.dirty.every = True
    everything = simulation.summary("fifo")

    assert summary.waiting_s.mean > 100
    assert everything.waiting_s == summary.waiting_s
    assert everything.completion_s == summary.completion_s
    assert summary.cycles < everything.cycles
    assert len(changed) == 400
