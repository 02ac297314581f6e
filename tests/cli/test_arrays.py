"""Arrays as users meet them: the commands on a real head and node."""

import json

import pytest

from gsched.client import new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.in_process import run_here
from tests.support.slurm_commands import slurm

pytestmark = pytest.mark.timeout(180)


class Desk:
    """A cluster with one node, and the commands on it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs = cluster.jobs

    def run(self, name: str, *arguments: str) -> Ran:
        """Run a command where jobs work."""
        return run_command(name, *arguments, head=self.cluster.socket, cwd=self.jobs)

    def here(self, name: str, *arguments: str) -> Ran:
        """Run a command in this process: there are many in a table."""
        return run_here(name, *arguments, head=self.cluster.socket)

    def path(self, name: str) -> str:
        """Return the path of a file where jobs work."""
        return str(self.jobs / name) if name else f"{self.jobs}/"

    def script(self, text: str) -> None:
        """Write the script a.sh."""
        self.jobs.joinpath("a.sh").write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")

    def submit(self, *arguments: str, script: str = "true") -> str:
        """Submit a script; return the id."""
        self.script(script)
        ran = self.run("gsub", *arguments, "a.sh")
        assert ran.status == 0, ran
        return ran.stdout.strip()

    def cells(self, *arguments: str) -> list[list[str]]:
        """Return the cells of gstat's list, line by line, without the titles."""
        ran = self.run("gstat", *arguments)
        assert ran.status == 0, ran
        return [line.split("\t") for line in ran.stdout.splitlines()[1:]]


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    cluster.has_monitor = True
    cluster.start_head()
    cluster.start_node("n1", cpus=4)
    return Desk(cluster)


@pytest.fixture
def closed(cluster: Cluster) -> Desk:
    """Return a desk without a node: nothing starts."""
    cluster.start_head()
    return Desk(cluster)


def test_the_line_of_an_array_names_the_elements_that_have_failed(desk: Desk) -> None:
    """Of one that is done, too; without its id the list stays short."""
    desk.submit("-t", "1-9", script='case "$PBS_ARRAYID" in 3|7|8|9) exit 2;; esac')
    assert desk.run("gwait", "1[]").status == 2

    [cells] = desk.cells("1[]")
    assert cells[-1].startswith("failed: 3,7-9; failed with exit code 2")
    assert not any("failed: " in cells[-1] for cells in desk.cells("-x"))


def counts(desk: Desk) -> dict[str, int]:
    """Return the numbers of jobs in queue batch as gstat -Q has them."""
    titles, row = (line.split("\t") for line in desk.run("gstat", "-Q").stdout.splitlines())
    cells = dict(zip(titles, row, strict=True))
    return {title: int(cells[title]) for title in ("Running", "Queued", "Held", "Total")}


def test_a_queue_counts_all_elements_as_does_the_position_of_a_job_behind_them(desk: Desk) -> None:
    """One of 1000 runs; 256 are jobs, and all others are ahead, too."""
    array = desk.submit("-t", "0-999", "-l", "nodes=1:ppn=4,walltime=600", script="sleep 600")
    wait_until(lambda: counts(desk)["Running"] == 1, what="a start")
    job = desk.submit("-l", "walltime=600")
    held = desk.submit("-h", "-t", "0-499")

    assert counts(desk) == {"Running": 1, "Queued": 1000, "Held": 500, "Total": 1501}
    told = " ".join(desk.run("gstat", "--why", job).stdout.split())
    assert "position: 1000 in queue batch, 999 jobs ahead" in told
    rows = json.loads(desk.run("gstat", "-Q", "--json").stdout)["queues"]
    assert rows[0]["jobs"] == {"running": 1, "queued": 1000, "held": 500}
    assert desk.run("gdel", array, held).status == 0
    wait_until(lambda: counts(desk)["Total"] <= 1, what="the end of the arrays")


def test_an_array_runs_and_each_element_knows_its_index(desk: Desk) -> None:
    """Its variables, its files, and gwait's exit code, that of the worst element."""
    script = 'echo "$PBS_ARRAYID $PBS_ARRAY_INDEX $GSCHED_ARRAY_INDEX $PBS_JOBID $PBS_ARRAY_ID"\n'
    array = desk.submit("-t", "1,3-4", "-N", "many", script=script + "exit $PBS_ARRAYID")
    assert array == "1[].test"

    ran = desk.run("gwait", array)

    assert ran.status == 4
    assert "0 of 3 elements succeeded, 3 failed" in ran.stdout
    for index in (1, 3, 4):
        said = desk.jobs.joinpath(f"many.o1-{index}").read_text(encoding="utf-8")
        assert said == f"{index} {index} {index} 1[{index}].test 1[].test\n"
    assert desk.run("gwait", "1[3]").status == 3
    past = desk.run("ghist", "1[]")
    assert [line.split("\t")[0] for line in past.stdout.splitlines()[1:]].count("1[4].test") == 1
    assert "3 jobs" in past.stderr
    one = json.loads(desk.run("ghist", "--json", "1[3-4]").stdout)["jobs"]
    assert {row["name"] for row in one} == {"many"}
    assert len(one) == 3  # two elements and the array


def test_each_line_of_a_file_is_an_element(desk: Desk) -> None:
    """With the line as it is, and %N at once."""
    desk.jobs.joinpath("list").write_text("one two\n$HOME `id`\n'x\"", encoding="utf-8")
    path = str(desk.jobs / "out.$PBS_ARRAYID")
    script = 'printf "%s" "$GSCHED_ARRAY_LINE"'
    array = desk.submit("--each-line", "list", "-t", "%2", "-o", path, script=script)
    assert desk.run("gwait", array).status == 0
    said = [desk.jobs.joinpath(f"out.{index}").read_text(encoding="utf-8") for index in range(3)]
    assert said == ["one two", "$HOME `id`", "'x\""]


DIRECTIVES = (
    ("#PBS -t 0-3%2", "0-3"),
    ("#PBS -J 0-6:2", "0-6:2"),
    ("#GSCHED --array 5", "5"),
    ("#SBATCH --array=1-9:4", "1-9:4"),
    ("#$ -t 1-3", "1-3"),
)
WRONG = (
    (("-t", "9-0"), "-t: array '9-0': the range 9-0 is reversed"),
    (("-t", ""), "-t: array '': a range of indices is empty"),
    (("-t", "0-9%0"), "at least 1"),
    (("-t", "1,1"), "index 1 twice"),
    (("-t", "0-1048576"), "beyond the highest one"),
    (("-t", "%5"), "a range of indices is empty"),
    (("-t", "0-200000"), "200001 elements, and 100000 are the limit here"),
    (("-t", "0-3", "--each-line", "list"), "element 3 of the array has no line"),
    (("--each-line", "none"), "--each-line: none: No such file"),
    (("--each-line", "."), "Is a directory"),
    (("--each-line", "empty"), "--each-line: empty is empty"),
    (("--each-line", "binary"), "is not UTF-8"),
    (("-t", "0-3", "--watch"), "--watch shows the output of one job"),
)


def test_a_script_states_its_array(closed: Desk) -> None:
    """As each scheduler writes it."""
    for line, indices in DIRECTIVES:
        closed.script(f"{line}\ntrue")
        assert closed.here("gsub", "-h", closed.path("a.sh")).status == 0, line
        row = json.loads(closed.here("gstat", "--json").stdout)["jobs"][-1]
        assert row["array"]["indices"] == indices, line
        assert row["letter"] == "H", line


def test_a_wrong_array_is_refused(closed: Desk) -> None:
    """With the option, the reason and what to write; nothing is submitted."""
    closed.jobs.joinpath("list").write_text("a\nb\n", encoding="utf-8")
    closed.jobs.joinpath("empty").write_text("", encoding="utf-8")
    closed.jobs.joinpath("binary").write_bytes(b"\xff\xfe")
    closed.script("true")
    for options, words in WRONG:
        at = options.index("--each-line") + 1 if "--each-line" in options else 0
        given = [closed.path(each) if at and n == at else each for n, each in enumerate(options)]
        ran = closed.here("gsub", *given, closed.path("a.sh"))
        assert ran.status != 0, options
        assert words in ran.stderr.replace(closed.path(""), ""), options
        assert "hint:" in ran.stderr, options
    assert not closed.here("gstat").stdout.splitlines()[1:]


def test_a_large_array_is_one_line(closed: Desk) -> None:
    """-t shows its elements, those that are no jobs yet, too; a delete is one command."""
    array = closed.submit("-t", "0-99999%50")
    wait_until(lambda: len(closed.cells("-t")) == 100_000, what="all elements")

    (line,) = closed.cells()
    assert line[0] == "1[].test"
    assert line[-1].startswith("100000 waiting; 1[0]: ") or "100000 waiting" in line[-1]
    lines = closed.cells("-t")
    assert [lines[0][0], lines[-1][0]] == ["1[0].test", "1[99999].test"]
    assert {each[4] for each in lines} == {"Q"}
    assert closed.run("gdel", array).status == 0
    assert not closed.cells()
    assert closed.run("gwait", array).status == 143
    assert closed.run("gwait", "1[77]").status == 143


def test_elements_are_acted_on_by_index_and_range(closed: Desk) -> None:
    """Held, released, altered, deleted; what is none of them is told."""
    closed.submit("-t", "0-9%2")
    wait_until(lambda: closed.cluster.head.jobs(elements=True).jobs[1:], what="elements")

    assert closed.here("ghold", "1[0]", "1[5-6]").status == 0
    assert closed.here("ghold", "-t", "8", "1[]").status == 0
    letters = {each[0].split("[")[1][:-6]: each[4] for each in closed.cells("-t")}
    assert "".join(letters[str(index)] for index in range(10)) == "HQQQQHHQHQ"
    assert closed.here("grls", "-t", "5-8", "1").status == 0
    assert closed.here("galter", "-N", "other", "1[1]").status == 0
    assert closed.here("galter", "--comment", "all", "1[]").status == 0
    names = {each[0]: each[1] for each in closed.cells("-t")}
    assert (names["1[1].test"], names["1[2].test"]) == ("other", "a.sh")
    assert closed.here("gdel", "1[9]").status == 0
    assert closed.here("gdel", "-t", "2-3", "1").status == 0
    again = closed.here("gdel", "1[2-3]", "1[9]")
    assert again.status != 0
    assert "have already finished" in again.stderr
    assert "job 1[9].test has already finished" in again.stderr
    ended = closed.submit("-t", "0")
    closed.here("gdel", ended)
    closed.cluster.head.wait([ended], timeout_s=60)
    assert f"job {ended} has already finished" in closed.here("gdel", ended).stderr
    assert len(closed.cells("-t")) == 7
    full = closed.here("gstat", "-f", "1[7]")
    assert "Job Id: 1[7].test" in full.stdout
    told = closed.here("gstat", "-f", "1[]").stdout
    assert "Job Id: 1[].test" in told
    assert "array_indices = 0-9\n" in told
    assert "array_slot_limit = 2\n" in told
    assert "array_elements = 10: 7 waiting, 3 cancelled\n" in told
    assert "array_indices_cancelled = 2-3,9\n" in told


MISTAKEN = (
    ("gdel", "1[]", "job 1 is not an array"),
    ("gdel", "1[0-9]", "job 1 is not an array"),
    ("gdel", "1[0]", "Unknown Job Id 1[0].test"),
    ("ghold", "2[5]", "Unknown Job Id 2[5].test"),
    ("ghold", "2[5-9]", "Unknown Job Id 2[5-9].test"),
    ("gstat", "2[2-3]", "Unknown Job Id 2[3].test"),
    ("gstat", "2[7]", "Unknown Job Id 2[7].test"),
    ("gstat", "1[]", "job 1 is not an array"),
    ("gstat", "2[0].other", "job 2[0] belongs to 'other'"),
    ("gdel", "2[a]", "between the brackets"),
)


def test_no_prefix_or_index_names_another_job(closed: Desk) -> None:
    """An identifier names what it says, or nothing."""
    for more in ({}, {"array": "0-2"}):
        job = new_job(name="x", workdir=str(closed.jobs), script="true", holds=("user",), **more)
        assert closed.cluster.head.submit([job]).results[0].error is None
    before = closed.cluster.head.jobs(elements=True).jobs
    for command, operand, words in MISTAKEN:
        ran = closed.here(command, operand)
        assert ran.status != 0, (command, operand)
        assert words in ran.stderr, (command, operand, ran)
    assert closed.cluster.head.jobs(elements=True).jobs == before


def test_a_head_that_is_killed_goes_on_with_its_arrays(desk: Desk) -> None:
    """Each element runs once."""
    out = desk.jobs / "ran"
    array = desk.submit("-t", "0-39", script=f"echo $PBS_ARRAYID >> {out}; sleep 0.2")
    wait_until(lambda: out.exists() and out.read_text(encoding="utf-8"), what="a start")
    desk.cluster.kill_head()
    desk.cluster.start_head()
    assert desk.run("gwait", array).status == 0
    ran = sorted(int(each) for each in out.read_text(encoding="utf-8").split())
    assert ran == list(range(40))


def test_qstat_shows_an_array_in_its_formats(closed: Desk) -> None:
    """-t its elements; an array by its number, as Torque's clients write it."""
    closed.submit("-t", "0-2", "-h")
    elements = ["1[0].test", "1[1].test", "1[2].test"]
    for arguments, ids in (((), ["1[].test"]), (("-t",), elements), (("1",), ["1[].test"])):
        said = closed.here("qstat", *arguments)
        assert said.status == 0, said
        assert [line.split()[0] for line in said.stdout.splitlines()[2:]] == ids


def ended(desk: Desk) -> int:
    """Return how many elements of the first array have succeeded or failed."""
    array = desk.cluster.head.job("1").row.array
    assert array is not None
    return array.succeeded + array.failed if array.running == 4 else 0


def test_every_element_of_an_array_is_accounted_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some succeed, some fail, the rest is cancelled: all figures agree, and come to 2,000."""
    script = 'case "$PBS_ARRAYID" in 1|2) exit 3;; 4|5|6|7) exec sleep 600;; esac'
    array = desk.submit("-A", "physics", "-t", "0-1999", script=script)
    wait_until(lambda: ended(desk) == 4, what="the end of four, and four that sleep")
    assert desk.run("gdel", "1[1000-1999]").status == 0
    assert desk.run("gdel", array).status == 0
    assert desk.run("gwait", array).status != 0

    total = desk.run("ghist", "--limit", "0")
    assert "2000 jobs, 2 failed, 1996 cancelled" in total.stderr
    ids = [line.split("\t")[0] for line in total.stdout.splitlines()[1:]]
    assert sorted(ids) == sorted(
        ["1[].test", "1[8-999].test", "1[1000-1999].test", *(f"1[{n}].test" for n in range(8))]
    )
    document = json.loads(desk.run("ghist", "--json", "--limit", "1").stdout)
    assert (document["total_jobs"], document["total_failed"]) == (2000, 2)
    assert document["total_cancelled"] == 1996
    assert "2000 jobs, 2 failed, 1996 cancelled" in desk.run("ghist", "1").stderr
    assert "2000 jobs, 2 failed, 1996 cancelled" in desk.run("ghist", "1[]").stderr
    assert "3 jobs, 0 failed, 3 cancelled" in desk.run("ghist", "1[7-9]").stderr
    for twice in (("1[]", "1[]"), ("1[]", "1[7-9]"), ("1[0-1500]", "1[900-1999]")):
        assert "2000 jobs, 2 failed, 1996 cancelled" in desk.run("ghist", *twice).stderr, twice
    assert (
        "1996 jobs, 0 failed, 1996 cancelled" in desk.run("ghist", "--outcome", "cancelled").stderr
    )

    for by in ("user", "account", "queue", "outcome"):
        rows = json.loads(desk.here("greport", "--by", by, "--json").stdout)["rows"]
        *groups, whole = rows
        for name, expected in (
            ("jobs", 2000),
            ("succeeded", 2),
            ("failed", 2),
            ("cancelled", 1996),
        ):
            assert sum(row[name] for row in groups) == whole[name] == expected, (by, name)
        assert whole["wait_mean_s"] < 600, "only of those that have started"
    line = desk.here("greport", "--by", "account").stdout.splitlines()[1].split("\t")
    assert line[:4] == ["physics", "2000", "2", "1996"]

    assert "gsched: job 1[4]: cancelled by" in desk.jobs.joinpath("a.sh.e1-4").read_text()

    monkeypatch.setenv("GSCHED_HEAD", str(desk.cluster.socket))
    lines = slurm("sacct", "-a", "-n", "-P", "-o", "jobid,state").stdout.splitlines()
    assert "1_[8-999]|CANCELLED" in lines
    assert "1_[1000-1999]|CANCELLED" in lines
    assert len(lines) == 10
    told = desk.here("tracejob", "1").stdout
    assert "elements 1000-1999 cancelled by" in told
    assert "2 of 2000 elements succeeded, 2 failed, 1996 cancelled" in told


def test_the_elements_of_a_finished_array_that_is_named_are_shown(desk: Desk) -> None:
    """Those that were jobs, and those that were cancelled before; in the order of the operands."""
    desk.submit("-t", "2,4-5", script="exit $PBS_ARRAYID")
    assert desk.run("gwait", "1[]").status == 5
    desk.submit("-h", "-t", "0-1")
    assert desk.run("gdel", "2[]").status == 0

    assert [cells[0].partition(".")[0] for cells in desk.cells("-t", "1")] == [
        "1[2]",
        "1[4]",
        "1[5]",
    ]
    assert [cells[-1] for cells in desk.cells("-t", "1[]")] == [
        f"failed with exit code {code} on n1" for code in (2, 4, 5)
    ]
    assert [cells[0].partition(".")[0] for cells in desk.cells("-t", "2[]", "1")] == [
        *("2[0]", "2[1]"),
        *("1[2]", "1[4]", "1[5]"),
    ]
