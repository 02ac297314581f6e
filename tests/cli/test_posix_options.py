"""Each option of the POSIX batch commands has its effect: one table for each command.

Run in this process against the fake head, under the g-name and the q-name. What a head then does
with a job is tested with real ones.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gsched.protocol import actions as a
from gsched.protocol import api, submissions
from tests.support.fake_api import FakeApi, make_row, serve
from tests.support.in_process import run_here

Effect = Callable[[submissions.SubmitJob], object]


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    fake = FakeApi(tmp_path)
    fake.queues["long"] = api.QueueRow(name="long")
    fake.add(make_row(1))
    return fake


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the socket of the fake head; the current directory has a script."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLOUR", "red")
    monkeypatch.setenv("TZ", "UTC")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    script = "#!/bin/sh\n#PBS -N named\n#ODD -N odd\ndate\n"
    Path("job.sh").write_text(script, encoding="utf-8")
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


def moment(year: int, month: int, day: int, hour: int, minute: int, second: int = 0) -> float:
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


HERE = "HERE"  # stands for the directory of submission
QSUB: list[tuple[str, list[str], Effect, object]] = [
    ("-a", ["-a", "209912312359.30"], lambda job: job.start_after_s,
     moment(2099, 12, 31, 23, 59, 30)),
    ("-A", ["-A", "lab 7"], lambda job: job.account, "lab 7"),
    ("-c", ["-c", "c=5", "--elastic"], lambda job: (job.movable, job.checkpoint_interval_s),
     (True, 300.0)),
    ("-c interval", ["-c", "periodic,interval=7", "--elastic"],
     lambda job: job.checkpoint_interval_s, 420.0),
    ("-C", ["-C", "#ODD"], lambda job: job.name, "odd"),
    ("-C ''", ["-C", ""], lambda job: job.name, "job.sh"),
    ("-e", ["-e", "err"], lambda job: job.stderr_path, f"{HERE}/err"),
    ("-e HOST:PATH", ["-e", "login:err"], lambda job: job.stderr_path, "HOME/err"),
    ("-h", ["-h"], lambda job: job.holds, ("user",)),
    ("-j oe", ["-joe"], lambda job: job.join, "oe"),
    ("-j eo", ["-j", "eo"], lambda job: job.join, "eo"),
    ("-j n", ["-j", "n"], lambda job: job.join, "n"),
    ("-k oe", ["-k", "oe"], lambda job: (job.stdout_path, job.stderr_path), ("~/", "~/")),
    ("-k o", ["-ko", "-e", "/err"], lambda job: (job.stdout_path, job.stderr_path),
     ("~/", "/err")),
    ("-k d", ["-k", "doe"], lambda job: "~/" in (job.stdout_path, job.stderr_path), False),
    ("-m", ["-m", "eba"], lambda job: job.mail_points, "abe"),
    ("-M", ["-M", "me@x,you"], lambda job: job.mail_to, "me@x,you"),
    ("-N", ["-N", "parsl.parsl.g.block-0.1795261406.4335232"], lambda job: job.name,
     "parsl.parsl.g.block-0.1795261406.4335232"),
    ("-o", ["-o", "/abs/"], lambda job: job.stdout_path, None),
    ("-p", ["-p", "-100"], lambda job: job.priority, -100),
    ("-q", ["-q", "long@fake"], lambda job: job.queue, "long"),
    ("-r", ["-r", "n"], lambda job: job.rerunnable, False),
    ("-S", ["-S", "/bin/bash,/bin/csh@other"], lambda job: job.shell, "/bin/bash"),
    ("-v", ["-v", "COLOUR,SIZE=3"], lambda job: (job.environment.get("COLOUR"),
     job.environment.get("SIZE")), ("red", "3")),
    ("-V", ["-V"], lambda job: job.environment.get("COLOUR"), "red"),
    ("-l", ["-lnodes=2:ppn=3,walltime=0:5:0", "-l", "mem=195312K"], lambda job: job.resources,
     ("nodes=2:ppn=3,walltime=0:5:0", "mem=195312K")),
    ("-W umask", ["-W", "umask=027"], lambda job: job.umask, 0o027),
    ("-W depend", ["-Wdepend=afterok:1:2,afterany:3,umask=022"], lambda job: job.depends,
     ("afterok:1:2", "afterany:3")),
    ("--dependency", ["--dependency", "singleton,after:1"], lambda job: job.depends,
     ("singleton,after:1",)),
    ("-d", ["-d", "/"], lambda job: (job.workdir, job.submit_dir), ("/", HERE)),
    ("-w", ["-w", "/"], lambda job: job.workdir, "/"),
    ("-F", ["-F", "one 'two three'"], lambda job: job.arguments, ("one", "two three")),
    ("PBS_O_WORKDIR", [], lambda job: job.environment["PBS_O_WORKDIR"], HERE),
    ("PBS_O_HOME", [], lambda job: job.environment["PBS_O_HOME"], "HOME"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["gsub", "qsub"])
@pytest.mark.parametrize(
    ("arguments", "effect", "expected"),
    [row[1:] for row in QSUB if row[0] != "-o"],
    ids=[row[0] for row in QSUB if row[0] != "-o"],
)
def test_an_option_of_qsub_has_its_effect(
    head: Path,
    fake: FakeApi,
    name: str,
    arguments: list[str],
    effect: Effect,
    expected: object,
) -> None:
    ran = run_here(name, "job.sh", *arguments, head=head)  # options after the operand

    assert ran.status == 0, ran.stderr
    assert ran.stdout.split() == ["2.fake"] or ran.stdout.split() == ["1.fake"]
    (job,) = fake.submitted
    cwd, home = os.getcwd(), os.environ["HOME"]
    wanted = expected
    if isinstance(wanted, str):
        wanted = wanted.replace("HERE", cwd).replace("HOME", home)
    if isinstance(wanted, tuple):
        wanted = tuple(cwd if each == HERE else each for each in wanted)
    assert effect(job) == wanted


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["-b", "30"], "-b has no effect: gsub waits for the head by itself"),
        (["-D", "/"], "-D has no effect: jobs see all file systems"),
        (["-f"], "-f has no effect: a job ends with the first of its nodes"),
        (["-R", "oe"], "-R has no effect: output files are kept"),
        (["-T", "mine"], "-T has no effect: users choose no prologue"),
        (["-X"], "-X has no effect: X11 is not forwarded"),
    ],
)
def test_an_option_of_torque_or_openpbs_without_effect_is_named(
    head: Path, fake: FakeApi, arguments: list[str], note: str
) -> None:
    """The job is submitted."""
    ran = run_here("qsub", *arguments, "job.sh", head=head)

    assert (ran.status, len(fake.submitted)) == (0, 1)
    assert note in ran.stderr


def test_n_of_torque_is_exclusive_nodes(head: Path, fake: FakeApi) -> None:
    assert run_here("qsub", "-n", "job.sh", head=head).status == 0
    assert fake.submitted[0].exclusive


def test_output_goes_where_o_says_and_z_prints_no_id(head: Path, fake: FakeApi) -> None:
    Path("out").mkdir()

    ran = run_here("qsub", "-o", "out/", "-z", "job.sh", head=head)

    assert (ran.status, ran.stdout) == (0, "")
    assert fake.submitted[0].stdout_path == f"{os.getcwd()}/out/"


def test_a_job_of_another_user_is_refused(head: Path, fake: FakeApi) -> None:
    own = run_here("qsub", "-u", f"{user_name()}@here,x@there", "job.sh", head=head)
    other = run_here("qsub", "-u", "daemon", "job.sh", head=head)
    unknown = run_here("qsub", "-u", "no-such-user", "job.sh", head=head)

    assert (own.status, len(fake.submitted)) == (0, 1)
    assert (other.status, unknown.status) == (159, 67)


def user_name() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


ALTER: list[tuple[list[str], a.Alteration]] = [
    (["-a", "209912312359"], a.Alteration(start_after_s=moment(2099, 12, 31, 23, 59))),
    (["-A", "lab"], a.Alteration(account="lab")),
    (["-e", "/err"], a.Alteration(stderr_path="/err")),
    (["-h", "n"], a.Alteration(holds=())),
    (["-h", "uo"], a.Alteration(holds=("user", "operator"))),
    (["-j", "oe"], a.Alteration(join="oe")),
    (["-l", "walltime=+1:00:00"], a.Alteration(resources=("walltime=+1:00:00",))),
    (["-m", "eb"], a.Alteration(mail_points="be")),
    (["-M", "me@x"], a.Alteration(mail_to="me@x")),
    (["-N", "new"], a.Alteration(name="new")),
    (["-o", "/out"], a.Alteration(stdout_path="/out")),
    (["-p", "-100"], a.Alteration(priority=-100)),
    (["-q", "long"], a.Alteration(queue="long")),
    (["-r", "n"], a.Alteration(rerunnable=False)),
    (["-S", "/bin/sh"], a.Alteration(shell="/bin/sh")),
    (["-W", "kill_delay=5"], a.Alteration(grace_s=5.0)),
    (["-W", "depend=afterok:1,on:2"], a.Alteration(depends=("afterok:1,on:2",))),
    (["-W", "depend="], a.Alteration(depends=())),
    (["-k", "o"], a.Alteration(stdout_path="~/")),
    (["-k", "oe"], a.Alteration(stdout_path="~/", stderr_path="~/")),
    (["-c", "n", "-k", "n", "-p", "1"], a.Alteration(priority=1)),
    (["-u", user_name(), "-p", "1"], a.Alteration(priority=1)),
]


@pytest.mark.parametrize("name", ["galter", "qalter"])
@pytest.mark.parametrize(("arguments", "alteration"), ALTER, ids=[" ".join(x[0]) for x in ALTER])
def test_an_option_of_qalter_has_its_effect(
    head: Path, fake: FakeApi, name: str, arguments: list[str], alteration: a.Alteration
) -> None:
    ran = run_here(name, *arguments, "1", head=head)

    assert fake.acted == [a.AlterJob(ids=("1",), alteration=alteration)]
    assert (ran.status, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("option", "other"),
    [("--gpus", "-l changes resources"), ("--dependency", "-W depend= changes dependencies")],
)
def test_galter_names_the_option_that_changes_the_same(
    head: Path, fake: FakeApi, option: str, other: str
) -> None:
    ran = run_here("galter", option, "1", "1", head=head)

    assert ran.stderr.startswith(f"galter: galter has no option {option}: {other}\n")
    assert (ran.status, fake.acted) == (2, [])


def test_options_of_qalter_without_effect_still_tell_of_unknown_jobs(
    head: Path, fake: FakeApi
) -> None:
    ran = run_here("qalter", "-k", "n", "-c", "s", "1", "99", head=head)

    assert (ran.status, fake.acted) == (153, [])
    assert ran.stderr == "qalter: Unknown Job Id Error 99\n"


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (["ghold", "1"], a.HoldJob(ids=("1",))),
        (["ghold", "-h", "n", "1"], None),
        (["ghold", "-h", "us", "1"], a.HoldJob(ids=("1",), holds=("user", "system"))),
        (
            ["grls", "-h", "uos", "1"],
            a.ReleaseJob(ids=("1",), holds=("user", "operator", "system")),
        ),
        (["gdel", "1", "--", "2"], a.DeleteJob(ids=("1", "2"))),
        (["gdel", "all"], a.DeleteJob(ids=("all",))),
        (["gsig", "1"], a.SignalJob(ids=("1",), signal=15)),
        (["gsig", "-s", "KILL", "1"], a.SignalJob(ids=("1",), signal=9)),
        (["gsig", "-s", "12", "1"], a.SignalJob(ids=("1",), signal=12)),
        (["grerun", "1", "2"], a.RerunJob(ids=("1", "2"))),
        (["gmove", "long", "1"], a.AlterJob(ids=("1",), alteration=a.Alteration(queue="long"))),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_other_commands_ask_for_what_they_are_told(
    head: Path, fake: FakeApi, arguments: list[str], request_: a.AnyJobAction | None
) -> None:
    run_here(arguments[0], *arguments[1:], head=head)

    assert fake.acted == ([] if request_ is None else [request_])


@pytest.mark.parametrize(
    "name", ["gsub", "galter", "gdel", "ghold", "grls", "gsig", "grerun", "gmove", "gselect"]
)
def test_h_is_never_help(head: Path, name: str) -> None:
    ran = run_here(name, "-h", head=head)

    assert "Usage:" not in ran.stdout + ran.stderr


#: The options of POSIX.1-2008's batch utilities; qdel, qmove and qrerun have none.
POSIX = {
    "qsub": "aAcCehjkmMNopqrSuvVz",
    "qalter": "aAcehjklmMNoprSu",
    "qdel": "",
    "qhold": "h",
    "qrls": "h",
    "qmove": "",
    "qmsg": "EO",
    "qrerun": "",
    "qsig": "s",
    "qselect": "aAchlNpqrsu",
    "qstat": "fQB",
}
#: Options whose effect has a test of its own here.
#: (``qstat -f``: in tests/cli/test_qstat.py.)
ALONE = {"qsub": {"o", "z", "u"}, "qalter": {"c"}, "qstat": {"f"}}
_WITH_VALUE = {"qselect": "aAchlNpqrsu", "qsub": "aAcCejkmMNopqrSuv", "qalter": "aAcehjklmMNoprSu"}


def rows_of(test: object) -> list[list[str]]:
    """Return the command lines of a parametrized test: the lists of texts in its rows."""
    marks = getattr(test, "pytestmark", [])
    values = [each for mark in marks if mark.name == "parametrize" for each in mark.args[1]]
    rows = [each if isinstance(each, tuple) else (each,) for each in values]
    return [part for row in rows for part in row if isinstance(part, list)]


def letters_of(utility: str, words: list[str]) -> set[str]:
    """Return the options on a command line, ``-EO`` as two."""
    found: set[str] = set()
    for word in words:
        if word.startswith("-") and not word.startswith("--") and word[1:2].isalpha():
            takes = word[1] in _WITH_VALUE.get(utility, "")
            found |= {word[1]} if takes else set(word[1:])
    return found


def test_every_option_of_posix_has_a_test_of_its_effect() -> None:
    """The tables of these tests name each of them; -c of qalter changes nothing, and says so."""
    from tests.cli import test_pbs_commands as pbs
    from tests.cli import test_qstat as qstat

    lines: list[list[str]] = [["qsub", *row[1]] for row in QSUB]
    lines += [["qalter", *row[0]] for row in ALTER]
    elsewhere = {
        "qselect": pbs.test_qselect_prints_the_jobs_that_meet_all_criteria,
        "qmsg": pbs.test_qmsg_writes_into_the_files_of_a_running_job,
        "qstat": qstat.test_queues_and_the_server,
    }
    lines += [[name, *row] for name, test in elsewhere.items() for row in rows_of(test)]
    others = rows_of(test_the_other_commands_ask_for_what_they_are_told)
    lines += [[f"q{name[1:]}", *words] for name, *words in others]
    tested: dict[str, set[str]] = {}
    for utility, *words in lines:
        tested.setdefault(utility, set(ALONE.get(utility, ()))).update(letters_of(utility, words))

    missing = {
        utility: sorted(set(options) - tested[utility])
        for utility, options in POSIX.items()
        if set(options) - tested.get(utility, set())
    }
    assert missing == {}
    assert set(POSIX) - set(tested) == set()
