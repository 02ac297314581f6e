"""From gsub's options to the job, without a head."""

import time
from collections.abc import Iterator

import pytest

from gsched.cli.commands.gsub import split_tail
from gsched.cli.submit.extras import read_extras
from gsched.cli.submit.job_environment import job_environment, parse_variables
from gsched.cli.submit.options import merged, read_options
from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.readers import default_name, output
from gsched.cli.submit.stated import StatedOptions
from gsched.cli.submit.submission import Workload, make_job
from gsched.cli.times import parse_start_time
from gsched.errors import UsageError
from gsched.protocol.submissions import SubmitJob

PLACE = SubmitContext(cwd="/home/u/run", environment={"PATH": "/bin"}, now_s=1e9, umask=0o027)


def job(**stated: object) -> SubmitJob:
    return make_job(
        read_options(stated, PLACE),
        Workload("command", default_name="x", arguments=("x",)),
        PLACE,
        {},
    )


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("args", "own", "tail"),
    [
        (["s.sh", "-h"], ["s.sh", "-h"], []),
        (["-h", "--", "a", "--json"], ["-h"], ["--", "a", "--json"]),
        (["--torchrun", "t.py", "--lr", "-h"], ["--torchrun=t.py"], ["--lr", "-h"]),
        (["-h", "--torchrun=t.py", "--", "x"], ["-h", "--torchrun=t.py"], ["--", "x"]),
        (["--", "sh", "--torchrun", "x"], [], ["--", "sh", "--torchrun", "x"]),
        (["--torchrun"], ["--torchrun"], []),
    ],
)
def test_what_follows_the_command_or_the_training_script_is_not_ours(
    args: list[str], own: list[str], tail: list[str]
) -> None:
    assert split_tail(args) == (own, tail)


def test_the_command_line_beats_the_script_option_by_option() -> None:
    script = StatedOptions(name="a", queue="long", resources=("nodes=4:ppn=2,walltime=9:00:00",))
    line = StatedOptions(name="b", priority=0, nodes=1, gpus="2")

    both = merged(line, script)

    assert (both["name"], both["queue"], both["priority"]) == ("b", "long", 0)
    assert both.resource_texts == ("walltime=9:00:00", "nodes=1:gpus=2")


def test_the_script_keeps_its_places_when_the_command_line_says_none() -> None:
    both = merged(StatedOptions(walltime="1h"), StatedOptions(resources=("nodes=4",)))

    assert both.resource_texts == ("nodes=4", "walltime=1h")


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("out", "/home/u/run/out"),
        ("logs/", "/home/u/run/logs/"),
        ("/abs/o.$PBS_JOBID", "/abs/o.$PBS_JOBID"),
        ("node7:/abs/out", "/abs/out"),
        ("./a:b", "/home/u/run/./a:b"),
        ("", ""),
    ],
)
def test_output_paths_start_where_the_user_submits(stated: str, expected: str) -> None:
    assert output(stated, PLACE).path == expected


def test_output_stays_in_the_directory_of_submission_when_the_job_starts_elsewhere() -> None:
    made = job(workdir="/scratch")

    assert (made.workdir, made.stdout_path) == ("/scratch", "/home/u/run/")


@pytest.mark.parametrize(
    ("stated", "expected"), [("oe", "oe"), ("eo", "eo"), ("e", "eo"), (None, "n")]
)
def test_the_first_letter_of_join_says_which_file(stated: str | None, expected: str) -> None:
    assert job(join=stated).join == expected


def test_umask_is_the_submitters_unless_stated() -> None:
    assert job().umask == 0o027
    assert job(extras=("umask=077",)).umask == 0o077


def test_every_job_has_a_key_of_its_own() -> None:
    assert job().key != job().key


@pytest.mark.parametrize(
    "stated",
    [
        {"join": "x"}, {"join": "no"}, {"rerunnable": "maybe"}, {"mail_points": "q"},
        {"mail_points": "na"}, {"name": "a b"}, {"name": ""},
        {"start_after": "someday"}, {"grace": "0"}, {"extras": ("odd=1",)},
        {"extras": ("umask=9",)}, {"extras": ("frob=1",)}, {"shell": "no-such-shell"},
        {"stdout": "host:"},
    ],
)  # fmt: skip
def test_impossible_values_are_usage_errors(stated: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        job(**stated)

    assert caught.value.exit_code == 2


def test_a_default_name_is_made_one_word() -> None:
    assert default_name("my job\n.sh") == "my_job_.sh"


def test_block_waits() -> None:
    assert read_extras("umask=022,block=true", PLACE).block


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1,B", [("A", "1"), ("B", None)]),
        ("A=", [("A", "")]),
        ("A='x,y',B=2", [("A", "x,y"), ("B", "2")]),
        ('A="x=y",B=2', [("A", "x=y"), ("B", "2")]),
        (r"A=x\,y", [("A", "x,y")]),
        ("A=it's,B=2", [("A", "it's"), ("B", "2")]),
        ("A=echo 'hi'", [("A", "echo 'hi'")]),
        (",A=1,", [("A", "1")]),
    ],
)
def test_variable_lists_are_read_as_torque_reads_them(
    text: str, expected: list[tuple[str, str | None]]
) -> None:
    assert parse_variables(text) == expected


def test_a_value_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="has no variable name"):
        parse_variables("=1")


def environment_of(mine: dict[str, str], *lists: str, export_all: bool = False) -> dict[str, str]:
    named = map(parse_variables, lists)
    return job_environment(
        environment=mine, lists=named, export_all=export_all, workdir="/w", queue="q"
    )[0]


def test_the_job_gets_the_path_and_the_origin_but_not_the_rest() -> None:
    made = environment_of({"PATH": "/venv/bin", "HOME": "/home/u", "SECRET": "x", "TZ": "UTC"})

    assert made["PATH"] == made["PBS_O_PATH"] == "/venv/bin"
    assert (made["PBS_O_HOME"], made["PBS_O_TZ"]) == ("/home/u", "UTC")
    assert (made["PBS_O_WORKDIR"], made["PBS_O_QUEUE"]) == ("/w", "q")
    assert made["PBS_O_HOST"]
    assert made["PBS_O_LOGNAME"]
    assert "SECRET" not in made


def test_the_command_line_of_qsub_goes_along_and_never_that_of_an_outer_job() -> None:
    inherited = {"PBS_SUBMIT_ARGS": "old", "LANG": "C"}
    made = job_environment(
        environment=inherited,
        lists=(),
        export_all=True,
        workdir="/w",
        queue="",
        submit_args="-l nodes=1 'my job'",
    )[0]

    assert (made["PBS_SUBMIT_ARGS"], made["PBS_O_LANG"]) == ("-l nodes=1 'my job'", "C")
    assert "PBS_SUBMIT_ARGS" not in environment_of(inherited, export_all=True)


def test_the_whole_environment_goes_along_and_a_list_beats_it() -> None:
    made = environment_of({"A": "1", "B": "2"}, "A=9", export_all=True)

    assert (made["A"], made["B"]) == ("9", "2")


def test_a_job_of_a_job_is_not_told_what_the_other_was_told_of_itself() -> None:
    """The inner one would take itself for an element, or start as many tasks."""
    outer = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID"), "3"),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_RESTART_COUNT"), "4"),
    }

    made = environment_of({**outer, "SLURM_CPU_BIND": "none"}, "SLURM_NTASKS=2", export_all=True)

    stated = {name: value for name, value in made.items() if name.startswith("SLURM")}
    assert stated == {"SLURM_CPU_BIND": "none", "SLURM_NTASKS": "2"}


def test_a_variable_that_is_not_there_is_told() -> None:
    _, notes = job_environment(
        environment={}, lists=[[("NOPE", None)]], export_all=False, workdir="/", queue=""
    )

    assert notes == ["-v NOPE: not set in your environment, so the job does not get it"]


def test_an_environment_that_is_too_large_is_refused() -> None:
    with pytest.raises(UsageError, match="the limit is"):
        environment_of({"BIG": "x" * 2_000_000}, export_all=True)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("text", "expected"),
    [  # 2001-09-09 01:46:40 UTC is 1e9
        ("200109090147", 1_000_000_020),
        ("0109090147.05", 1_000_000_025),
        ("09090147", 1_000_000_020),
        ("090147", 1_000_000_020),
        ("0147", 1_000_000_020),
        ("0146", 1_000_000_000 - 40 + 86400),
        ("010000", 1_001_894_400),
        ("08010000", 996_624_000 + 365 * 86400),
        ("199901010000", 915_148_800),
    ],
)
def test_what_a_date_leaves_out_is_the_next_that_fits(text: str, expected: float) -> None:
    assert parse_start_time(text, now_s=1e9) == expected


@pytest.mark.parametrize("text", ["", "1", "123", "202602300000", "202601012460", "2026-13-01"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid date"):
        parse_start_time(text, now_s=1e9)
