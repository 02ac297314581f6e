"""Traces: every form is read, a malformed line is named and passed over, nonsense is refused."""

import gzip
import os
from pathlib import Path

import pytest

from gsched.errors import UsageError
from gschedd.sim.cluster import read_cluster
from gschedd.sim.traces import read_trace
from gschedd.sim.workload import Classifier, TraceJob

SWF = """; Version: 2.2
; Computer: a made-up one
1 100 5 60 4 30 1024 4 120 2048 1 7 1 3 1 1 -1 -1
2 90 0 10 -1 -1 -1 2 -1 -1 1 8 1 -1 1 1 -1 -1
3 95 0 0 1 -1 -1 1 60 -1 5 8 1 -1 1 1 -1 -1
4 96 0 10 -1 -1 -1 -1 60 -1 1 8 1 -1 1 1 -1 -1
5 97 0 ten 1 -1 -1 1 60 -1 1 8 1 -1 1 1 -1 -1
6 98 0 10 1
"""


def write(path: Path, text: str) -> str:
    """Write a trace and return its path."""
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_standard_workload_format(tmp_path: Path) -> None:
    """In order of submission; memory is for each processor; what never ran is left out."""
    trace = read_trace(write(tmp_path / "log.swf", SWF))

    assert [job.submit_s for job in trace.jobs] == [0, 10]
    second, first = trace.jobs
    assert (first.duration_s, first.cpus, first.walltime_s, first.user) == (60, 4, 120, "user7")
    assert (first.memory_bytes, first.memory_used_bytes) == (4 * 2048 * 1024, 4 * 1024 * 1024)
    assert (first.cpus_used, first.kind) == (2.0, "application3")
    assert (second.cpus, second.walltime_s, second.memory_bytes, second.cpus_used) == (
        2, None, 0, None,
    )  # fmt: skip
    assert sum(trace.skipped.values()) == 2
    assert trace.malformed == 2
    assert [str(fault).partition(": ")[0] for fault in trace.faults] == [
        f"{tmp_path}/log.swf:7",
        f"{tmp_path}/log.swf:8",
    ]


def test_packed_traces_are_unpacked(tmp_path: Path) -> None:
    """As the archive publishes them."""
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(SWF.encode()))

    assert len(read_trace(str(path)).jobs) == 2


def test_own_forms_say_the_same(tmp_path: Path) -> None:
    """CSV and JSONL of one job; an empty cell is not said."""
    table = write(tmp_path / "a.csv", "submit_s,duration_s,user,cpus,walltime_s\n5,2.5,alice,4,\n")
    lines = write(
        tmp_path / "a.jsonl", '{"submit_s":5,"duration_s":2.5,"user":"alice","cpus":4}\n\n'
    )

    expected = [TraceJob(submit_s=0, duration_s=2.5, user="alice", cpus=4)]
    assert read_trace(table).jobs == expected
    assert read_trace(lines).jobs == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1,-2,1,0", "duration_s is -2.0"),
        ("1,2,0,0", "cpus is 0"),
        ("1,2,1,-1", "gpus is -1"),
        ("1,nan,1,0", "duration_s is nan"),
        ("1,2,1", "3 fields instead of 4"),
        ("1,2,many,0", "Expected `int`"),
        ("1,2,1,0,9", "5 fields instead of 4"),
        ("-1,2,1,0", "submit_s is -1.0"),
        ("inf,2,1,0", "submit_s is inf"),
        ("1,1e300,1,0", "duration_s is 1e+300"),
        ("1,2,123456789012345678901234567890,0", "cpus"),
        ("1,2,1,99999999", "gpus is 99999999: it can be 0 to 1e+06"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    """With its file and line; the others are read."""
    text = f"submit_s,duration_s,cpus,gpus\n0,1,1,0\n{line}\n9,1,1,0\n"
    trace = read_trace(write(tmp_path / "t.csv", text))

    assert len(trace.jobs) == 2
    assert trace.malformed == 1
    assert str(trace.faults[0]).startswith(f"{tmp_path}/t.csv:3: ")
    assert complaint in str(trace.faults[0])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({1: "nan"}, "not a finite number"),
        ({1: "-5"}, "submit_s is -5.0"),
        ({3: "inf"}, "not a finite number"),
        ({7: "1e300"}, "cpus is"),
        ({9: "1e300"}, "memory_bytes is"),
        ({17: ""}, "17 fields instead of 18"),
    ],
)
def test_a_malformed_line_of_the_archive_is_named(
    tmp_path: Path, change: dict[int, str], complaint: str
) -> None:
    """Whatever a field holds."""
    good = "1 100 5 60 4 30 1024 4 120 2048 1 7 1 3 1 1 -1 -1"
    fields = [change.get(place, word) for place, word in enumerate(good.split())]
    trace = read_trace(write(tmp_path / "t.swf", f"{good}\n{' '.join(fields)}\n"))

    assert len(trace.jobs) == 1
    assert (trace.malformed, trace.faults[0].line) == (1, 2)
    assert complaint in trace.faults[0].message


@pytest.mark.parametrize(
    "line",
    [
        '{"submit_s":NaN,"duration_s":1}',
        '{"submit_s":1}',
        "[]",
        '{"submit_s":-1,"duration_s":1}',
        '{"submit_s":1,"duration_s":1,"colour":"red"}',
    ],
)
def test_a_malformed_line_of_json_is_named(tmp_path: Path, line: str) -> None:
    """And the others are read."""
    good = '{"submit_s":0,"duration_s":1}'
    trace = read_trace(write(tmp_path / "t.jsonl", f"{good}\n{line}\n{good}\n"))

    assert (len(trace.jobs), trace.malformed, trace.faults[0].line) == (2, 1, 2)


def test_many_malformed_lines_are_counted(tmp_path: Path) -> None:
    """Not all are kept in words."""
    text = "submit_s,duration_s\n0,1\n" + "x,1\n" * 100
    trace = read_trace(write(tmp_path / "t.csv", text))

    assert trace.malformed == 100
    assert len(trace.faults) == 20


def test_the_philly_log(tmp_path: Path) -> None:
    """GPUs, times of day, virtual clusters for users."""
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:01:55,60.5,8,484.0,6214e9\n"
        "2017-13-09 06:01:55,60.5,8,484.0,6214e9\n\n"
    )
    trace = read_trace(write(tmp_path / "philly.csv", text))

    assert trace.form == "philly"
    assert trace.jobs == [
        TraceJob(submit_s=0, duration_s=60.5, user="6214e9", cpus=8, gpus=8),
        TraceJob(submit_s=3600, duration_s=66, user="11cb48", cpus=1, gpus=1),
    ]
    assert trace.malformed == 1


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("t.csv", "", "holds no job"),
        ("t.csv", "submit_s,duration_s\nx,y\n", "t.csv:2"),
        ("t.swf", "no trace at all\n", "t.swf:1"),
    ],
)
def test_a_trace_without_jobs_is_refused(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    """The message names the first line that cannot be read, and the forms that are known."""
    with pytest.raises(UsageError, match=complaint) as caught:
        read_trace(write(tmp_path / name, text))
    assert "philly" in caught.value.hint


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """And one that is no packed file though it is called so."""
    with pytest.raises(UsageError, match="no such file"):
        read_trace(str(tmp_path / "nothing.csv"))
    with pytest.raises(UsageError, match="cannot be unpacked"):
        read_trace(write(tmp_path / "plain.csv.gz", "submit_s,duration_s\n0,1\n"))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_trace(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_trace_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    """With the system's word for it."""
    path = write(tmp_path / "t.csv", "submit_s,duration_s\n0,1\n")
    Path(path).chmod(0)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        read_trace(path)


def test_limit_keeps_the_first(tmp_path: Path) -> None:
    """By submission, not by line."""
    text = "submit_s,duration_s,name\n9,1,late\n1,1,early\n5,1,middle\n"
    trace = read_trace(write(tmp_path / "t.csv", text), limit=2)

    assert [(job.name, job.submit_s) for job in trace.jobs] == [("early", 0), ("middle", 4)]


# --- clusters, and jobs in their words ---


def test_a_cluster_in_a_text() -> None:
    """Counts, kinds, units; memory by default with the CPUs."""
    nodes = read_cluster("2xcpus=4+cpus=8,gpus=2,gpu_type=a100,memory=1gb,speed=0.5,features=a/b")

    assert [node.name for node in nodes] == ["n1", "n2", "n3"]
    assert nodes[0].inventory.memory_bytes == 16 * 1024**3
    assert [gpu.type for gpu in nodes[2].inventory.gpus] == ["a100", "a100"]
    assert (nodes[2].speed, nodes[2].inventory.features) == (0.5, ("a", "b"))


def test_a_cluster_in_a_file(tmp_path: Path) -> None:
    """The same keys, and counted resources; names are as wide as they must be."""
    path = tmp_path / "c.toml"
    path.write_text('[[node]]\ncount = 10\nname = "big"\ncpus = 2\nresources = {licence = 1}\n')

    nodes = read_cluster(str(path))

    assert [node.name for node in nodes][::9] == ["big01", "big10"]
    assert nodes[0].inventory.generic == (("licence", 1),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0xcpus=4", "count is 0"),
        ("3xcpus=0", "cpus is 0"),
        ("cpus=4,gpus=-1", "gpus is -1"),
        ("cpus=4,colour=red", "'colour=red' in cluster"),
        ("cpus=four", "Expected `int`"),
        ("cpus=4,memory=much", "invalid size 'much'"),
        ("cpus=4,speed=0", "speed is 0"),
        ("", "describes no nodes"),
        ("200000xcpus=1", "count is 200000"),
        ("nowhere.toml", "no such file"),
    ],
)
def test_an_impossible_cluster_is_refused(text: str, complaint: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(UsageError, match=complaint):
        read_cluster(text)


@pytest.mark.parametrize("text", ["node = 3", "[[node]]\ncolour = 1", "[[node", ""])
def test_an_impossible_cluster_file_is_refused(tmp_path: Path, text: str) -> None:
    """Broken TOML, unknown keys, wrong types, no nodes."""
    path = tmp_path / "c.toml"
    path.write_text(text)

    with pytest.raises(UsageError):
        read_cluster(str(path))


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ({"cpus": 4}, "nodes=1:ppn=4"),
        ({"cpus": 9}, "nodes=2:ppn=5"),
        ({"cpus": 1, "gpus": 5}, "nodes=3:ppn=1:gpus=2"),
        ({"cpus": 4, "nodes": 2, "walltime_s": 90.0}, "nodes=2:ppn=2,walltime=90"),
        ({"memory_bytes": 7, "walltime_s": 0.25}, "nodes=1:ppn=1,mem=7b,walltime=0.25"),
        ({"resources": "procs=3"}, "procs=3"),
    ],
)
def test_jobs_are_spread_as_the_nodes_demand(job: dict[str, object], text: str) -> None:
    """Over as few nodes as can be; never less than was requested."""
    classifier = Classifier(read_cluster("4xcpus=8,gpus=2"))
    traced = TraceJob(submit_s=0, duration_s=1, **job)  # type: ignore[arg-type] # as parametrised

    assert classifier.submission(traced).resources == (text,)


ADAPTIVE = '"adaptive":{"batch":32,"batch_max":256}'
BEHAVIOUR = '"behaviour":{"work":1000,"batch":32,"models":{"":{"compute_s":0.01}}}'


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (f"{ADAPTIVE},{BEHAVIOUR}", ""),
        (ADAPTIVE, "adaptive and behaviour go together"),
        (BEHAVIOUR, "adaptive and behaviour go together"),
        (f"{ADAPTIVE},{BEHAVIOUR.replace('1000', '0')}", "work must be above 0"),
        (f'{ADAPTIVE},"behaviour":{{"work":1,"batch":1,"models":{{}}}}', "has no models"),
        (
            f'{ADAPTIVE},{BEHAVIOUR[:-1]},"noise_scales":[[0.5,1],[0.5,2]]}}',
            "noise_scales must be pairs",
        ),
    ],
)
def test_an_adaptive_job_needs_its_behaviour(tmp_path: Path, fields: str, fault: str) -> None:
    """Without it the job would take its duration on any number of GPUs."""
    plain = '{"submit_s":0,"duration_s":1}'
    line = f'{{"submit_s":0,"duration_s":0,"gpus":1,"gpus_max":4,{fields}}}'

    trace = read_trace(write(tmp_path / "a.jsonl", f"{plain}\n{line}\n"))

    assert [each.message for each in trace.faults if fault not in each.message] == []
    assert len(trace.faults) == (1 if fault else 0)
    assert len(trace.jobs) == (1 if fault else 2)
