"""gsub: what it submits, and what it says of mistakes."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.model.limits import MAX_SCRIPT_BYTES
from gsched.protocol import api, submissions
from tests.support.commands import ROOT, Ran, command_environment, run_command
from tests.support.fake_api import FakeApi, make_row, serve

SCRIPT = "#!/bin/sh\n#PBS -N hello -l nodes=1:ppn=2\n#GSUB --gpus 1\necho hi\n"


class Bench:
    """A directory to submit from, and a head that takes everything."""

    def __init__(self, directory: Path, fake: FakeApi, socket: Path) -> None:
        self.directory = directory
        self.fake = fake
        self.socket = socket

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.directory / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def gsub(self, *arguments: str, env: dict[str, str] | None = None) -> Ran:
        return run_command("gsub", *arguments, head=self.socket, env=env, cwd=self.directory)

    def submit(self, *arguments: str, env: dict[str, str] | None = None) -> submissions.SubmitJob:
        ran = self.gsub(*arguments, env=env)
        assert (ran.status, ran.stdout) == (0, f"{len(self.fake.ids_by_key)}.fake\n"), ran
        return self.fake.submitted[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    directory = tmp_path / "work"
    directory.mkdir()
    fake = FakeApi(tmp_path)
    with serve(fake.application(), tmp_path / "s"):
        yield Bench(directory, fake, tmp_path / "s")


def test_stdout_is_the_id_and_nothing_else(bench: Bench) -> None:
    bench.write("job.sh", SCRIPT)
    ran = bench.gsub("job.sh")

    assert (ran.status, ran.stdout, ran.stderr) == (0, "1.fake\n", "")


def test_a_script_is_taken_with_its_directives(bench: Bench) -> None:
    bench.write("job.sh", SCRIPT)
    job = bench.submit("job.sh")

    assert (job.name, job.launch, job.script) == ("hello", "script", SCRIPT)
    assert job.resources == ("nodes=1:ppn=2", "gpus=1")
    assert job.workdir == str(bench.directory)
    assert job.environment["PBS_O_WORKDIR"] == str(bench.directory)


def test_the_command_line_beats_the_directives_wherever_its_options_stand(bench: Bench) -> None:
    bench.write("job.sh", SCRIPT)
    job = bench.submit("-lwalltime=1:0:0", "-p", "-100", "job.sh", "-joe", "-N", "mine", "-h")

    assert (job.name, job.priority, job.join, job.holds) == ("mine", -100, "oe", ("user",))
    assert job.resources == ("nodes=1:ppn=2", "gpus=1", "walltime=1:0:0")


def test_the_name_is_that_of_the_script(bench: Bench) -> None:
    bench.write("job.sh", "date\n")
    assert bench.submit("./job.sh").name == "job.sh"


@pytest.mark.parametrize("operands", [(), ("-",)])
def test_a_script_comes_from_stdin(bench: Bench, operands: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gsched.cli.commands.gsub", *operands],
        input="#PBS -q long\ndate\n",
        env=command_environment(bench.socket),
        cwd=bench.directory,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "1.fake\n", "")
    job = bench.fake.submitted[0]
    assert (job.name, job.queue, job.script) == ("STDIN", "long", "#PBS -q long\ndate\n")


def test_everything_after_two_dashes_is_the_command(bench: Bench) -> None:
    job = bench.submit("--gpus", "1", "--", "python", "-V", "--json", "--", "-h")

    assert (job.launch, job.name) == ("command", "python")
    assert job.arguments == ("python", "-V", "--json", "--", "-h")


def test_arguments_of_a_script_come_after_f_or_two_dashes(bench: Bench) -> None:
    bench.write("job.sh", "date\n")

    assert bench.submit("-F", "a 'b c'", "job.sh").arguments == ("a", "b c")
    assert bench.submit("job.sh", "--", "-x", "y").arguments == ("-x", "y")


def test_a_training_script_gets_all_that_follows_and_the_python_of_the_venv(bench: Bench) -> None:
    bench.write("train.py", "import torch\n")
    python = bench.directory / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    path = f"{python.parent}:{os.environ['PATH']}"
    job = bench.submit(
        "-l", "nodes=2:ppn=1:gpus=2", "--torchrun", "train.py", "--lr", "0.1", "-h",
        env={"PATH": path},
    )  # fmt: skip

    assert (job.launch, job.name, job.python) == ("torchrun", "train.py", str(python))
    assert job.arguments == (str(bench.directory / "train.py"), "--lr", "0.1", "-h")
    assert job.environment["PATH"] == path


def test_another_prefix_and_none(bench: Bench) -> None:
    bench.write("job.sh", "#X -N x\n#PBS -N pbs\ndate\n")

    assert bench.submit("-C", "#X", "job.sh").name == "x"
    assert bench.submit("-C", "", "job.sh").name == "job.sh"
    assert bench.submit("job.sh", env={"PBS_DPREFIX": "#X"}).name == "x"


def test_variables_are_listed_or_all(bench: Bench) -> None:
    bench.write("job.sh", "date\n")
    some = bench.submit("-v", "A,B=2", "job.sh", env={"A": "1", "C": "3"}).environment
    everything = bench.submit("-V", "job.sh", env={"C": "3"}).environment

    assert (some["A"], some["B"], "C" in some) == ("1", "2", False)
    assert everything["C"] == "3"


def test_dos_line_ends_are_put_right_and_told(bench: Bench) -> None:
    bench.write("job.sh", b"#!/bin/sh\r\n#PBS -N dos\r\ndate\r\n")
    ran = bench.gsub("job.sh")

    assert (ran.status, ran.stdout) == (0, "1.fake\n")
    assert "DOS line ends" in ran.stderr
    assert bench.fake.submitted[0].script == "#!/bin/sh\n#PBS -N dos\ndate\n"
    assert bench.fake.submitted[0].name == "dos"


def test_no_id_is_printed_when_asked(bench: Bench) -> None:
    bench.write("job.sh", "date\n")
    assert bench.gsub("-z", "job.sh").stdout == ""


def test_json_is_one_document_with_the_warnings(bench: Bench) -> None:
    bench.write("job.sh", "date\n#PBS -h\n")
    ran = bench.gsub("--json", "job.sh")

    document = json.loads(ran.stdout)
    assert (document["id"], document["job_id"], document["schema"]) == (1, "1.fake", 1)
    assert document["warnings"] == ["job.sh:2: a directive after the first command has no effect"]
    assert ran.stderr == ""


def test_a_dry_run_queues_nothing(bench: Bench) -> None:
    bench.write("job.sh", SCRIPT)
    ran = bench.gsub("--dry-run", "job.sh")

    assert ran.status == 0
    assert "would submit: hello" in ran.stdout
    assert bench.fake.ids_by_key == {}


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ({"kind": "exited", "exit_status": 7, "shell_status": 7, "exit_code": 7}, 7),
        ({"kind": "signalled", "exit_status": 265, "shell_status": 137, "signal": 9}, 137),
        ({"kind": "exited", "exit_status": 0, "shell_status": 0, "exit_code": 0}, 0),
    ],
)
def test_waiting_ends_with_the_jobs_code(
    bench: Bench, outcome: dict[str, object], status: int
) -> None:
    row = make_row(1, state="done", letter="C", outcome=outcome)
    bench.fake.add(row, join="oe")
    bench.fake.output[1, "stdout"] = b"step 1\nboom\n"
    ran = bench.gsub("--wait", "--", "true")

    assert (ran.status, ran.stdout) == (status, "1.fake\n")
    assert ("| boom" in ran.stderr) == (status != 0)


@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_waiting_for_a_held_job_says_that_it_is_held(bench: Bench, how: str) -> None:
    done = {"kind": "exited", "exit_status": 0, "shell_status": 0, "exit_code": 0}
    looks: list[int] = []

    def third_look_finds_its_end(job: int) -> None:
        looks.append(job)
        if len(looks) == 3:
            bench.fake.add(make_row(1, state="done", letter="C", outcome=done))

    bench.fake.on_wait = bench.fake.on_job = third_look_finds_its_end
    held = "held after 5 failed starts; last: no such file; release it with grls -h u 1"
    bench.fake.add(make_row(1, state="held", letter="H", reason=held), holds=("user",))
    bench.fake.output[1, "stdout"] = b"end\n"
    ran = bench.gsub(how, "--", "true")

    assert ran.status == 0
    assert f"gsub: job 1 is {held}\n" in ran.stderr


def test_watching_prints_the_output_to_its_end(bench: Bench) -> None:
    done = {"kind": "exited", "exit_status": 0, "shell_status": 0, "exit_code": 0}
    bench.fake.add(make_row(1, state="done", letter="C", outcome=done))
    bench.fake.output[1, "stdout"] = b"x" * 600_000 + b"\nend\n"
    ran = bench.gsub("--watch", "--", "true")

    assert (ran.status, ran.stdout) == (0, "1.fake\n" + "x" * 600_000 + "\nend\n")


@pytest.mark.parametrize(
    ("name", "content", "status", "message"),
    [
        ("missing.sh", None, 66, "script 'missing.sh' does not exist"),
        ("empty.sh", b" \n\n", 65, "empty.sh is empty"),
        ("bin", b"\x7fELF\0\0", 65, "bin is binary: it contains a zero byte at offset 4"),
        ("latin", b"echo \xe9\n", 65, "latin is not UTF-8 text: byte 0xe9 at offset 5"),
        ("large", b"#" * (MAX_SCRIPT_BYTES + 1), 65, "large is larger than 8 MiB"),
        ("opt.sh", b"\n#PBS --frob\n", 65, "opt.sh:2: unknown option '--frob'"),
        ("val.sh", b"#!/bin/sh\n#PBS -j x\n", 65, "val.sh:2: -j: invalid value 'x'"),
        ("num.sh", b"#PBS -p many\n", 65, "num.sh:1: invalid value for '-p'"),
        ("op.sh", b"#PBS -N a b\n", 65, "op.sh:1: 'b' is not an option"),
        ("quote.sh", b"#PBS -N 'a\n", 65, "quote.sh:1: the directive cannot be read"),
        (
            "time.sh",
            b"#PBS --walltime 0\n",
            65,
            "time.sh:1: --walltime: time must be greater than zero, got '0'",
        ),
    ],
)
def test_a_script_that_will_not_do_is_refused(
    bench: Bench, name: str, content: bytes | None, status: int, message: str
) -> None:
    if content is not None:
        bench.write(name, content)
    ran = bench.gsub(name)

    assert (ran.status, ran.stdout) == (status, "")
    assert ran.stderr.startswith(f"gsub: {message}")
    assert "hint: " in ran.stderr
    assert bench.fake.submitted == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["."], 66, "script '.' is a directory"),
        (["job.sh", "b"], 2, "unexpected operand 'b'"),
        (["--frob", "job.sh"], 2, "unknown option '--frob'"),
        (["-p", "5000", "job.sh"], 2, "invalid value for '-p': 5000"),
        (["-o", "no/out", "job.sh"], 73, "-o: the output directory {cwd}/no does not exist"),
        (
            ["-o", "no/out.$PBS_JOBID", "job.sh"],
            73,
            "-o: the output directory {cwd}/no does not exist",
        ),
        (["-o", "no/$PBS_JOBID/out", "job.sh"], 0, ""),  # it is made when the number is known
        (["-e", "no/", "job.sh"], 73, "-e: the output directory {cwd}/no does not exist"),
        (
            ["-o", "job.sh/x", "job.sh"],
            73,
            "-o: the output directory {cwd}/job.sh is not a directory",
        ),
        (["-d", "no", "job.sh"], 2, "-d: directory {cwd}/no does not exist"),
        (["-u", "no-such-user", "job.sh"], 67, "-u: unknown user 'no-such-user'"),
        (["-W", "odd=1", "job.sh"], 2, "-W: unknown attribute 'odd'"),
        (["-a", "later", "job.sh"], 2, "-a: invalid date 'later'"),
        (["--walltime", "-5", "job.sh"], 2, "--walltime: time must be greater than zero, got '-5'"),
        (["--mem", "lots", "job.sh"], 2, "--mem: invalid size 'lots'"),
        (["--torchrun", "no.py"], 66, "--torchrun: training script {cwd}/no.py does not exist"),
        (["--torchrun", "job.sh", "x"], 0, ""),
        (
            ["job.sh", "--torchrun", "job.sh"],
            2,
            "script 'job.sh' and --torchrun job.sh are mutually exclusive",
        ),
        (["--torchrun"], 2, "--torchrun needs a training script"),
        (["--"], 2, "no command after --"),
    ],
)
def test_a_command_line_that_will_not_do_is_refused(
    bench: Bench, arguments: list[str], status: int, message: str
) -> None:
    bench.write("job.sh", "date\n")
    ran = bench.gsub(*arguments)

    assert ran.status == status
    assert ran.stderr.startswith("gsub: " + message.format(cwd=bench.directory) if message else "")
    assert bool(bench.fake.submitted) == (status == 0)


def test_an_output_directory_that_may_not_be_written_is_refused() -> None:
    """Asked as nobody where the tests run as root, who may write everywhere."""
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o555)
        found = [
            subprocess.run(
                [sys.executable, "-m", "gsched.cli.commands.gsub", *options, "--", "true"],
                env=command_environment(f"{directory}/none"),
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
                **nobody,  # type: ignore[call-overload]  # three keywords, or none
            )
            for options in ((), ("-d", "/tmp"))
        ]
        Path(directory).chmod(0o700)

    for ran in found:
        assert ran.returncode == 73
        assert f"no permission to create files in the output directory {directory}" in ran.stderr
        assert "-o" in ran.stderr
    assert "to have it where the job starts, add -o /tmp/" in found[1].stderr


def test_a_comment_stands_in_the_script_or_on_the_command_line(bench: Bench) -> None:
    bench.write("job.sh", "#!/bin/sh\n#PBS --comment 'second run' -A lab\necho hi\n")

    job = bench.submit("job.sh")
    assert (job.comment, job.account) == ("second run", "lab")
    assert bench.submit("--comment", "a third", "job.sh").comment == "a third"
    assert bench.submit("--", "true").comment == ""


@pytest.mark.parametrize(
    ("words", "lease_s"), [((), None), (("--lease", "10m"), 600.0), (("--lease", "none"), 0.0)]
)
def test_a_lease_is_a_time_or_none(
    bench: Bench, words: tuple[str, ...], lease_s: float | None
) -> None:
    assert bench.submit(*words, "--", "true").lease_s == lease_s


def test_a_lease_that_is_no_time_is_refused(bench: Bench) -> None:
    ran = bench.gsub("--lease", "soon", "--", "true")

    assert ran.status == 2
    assert "--lease" in ran.stderr


def test_a_path_with_the_jobs_id_is_checked_as_far_as_it_is_known(bench: Bench) -> None:
    (bench.directory / "logs").mkdir()

    assert bench.submit("-o", "logs/$PBS_JOBID/out", "--", "true").stdout_path.endswith("/out")
    assert bench.gsub("-o", "no/$PBS_JOBID", "--", "true").status == 73


def test_what_the_head_refuses_is_said_with_its_code(bench: Bench) -> None:
    bench.fake.refuse = api.ErrorBody(code="bad_resource", message="unknown 'foo'", hint="try mem")
    plain = bench.gsub("-l", "foo=1", "--", "true")
    as_json = bench.gsub("--json", "-l", "foo=1", "--", "true")

    assert (plain.status, plain.stderr) == (2, "gsub: unknown 'foo'\n      hint: try mem\n")
    assert json.loads(as_json.stderr)["error"]["code"] == "bad_resource"
    assert as_json.stdout == ""


def test_a_dead_head_is_named(tmp_path: Path) -> None:
    ran = run_command("gsub", "--", "true", head=tmp_path / "none", cwd=tmp_path)

    assert (ran.status, ran.stdout) == (69, "")
    assert f"no head answers at {tmp_path}/none (from $GSCHED_HEAD)" in ran.stderr
    assert "gsched doctor" in ran.stderr


def test_a_fault_of_ours_shows_no_traceback_unless_asked(tmp_path: Path) -> None:
    broken = tmp_path / "gsched_broken.py"
    broken.write_text(
        "from gsched.cli.common import gsched_command\nfrom gsched.cli.running import run\n"
        "@gsched_command('gx')\ndef gx(**_):\n    raise ZeroDivisionError('no')\nrun(gx)\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, str(broken)],
            env=command_environment(GSCHED_DEBUG=debug, PYTHONPATH=str(ROOT)) if debug
            else command_environment(),
            capture_output=True, text=True, check=False,
        )
        for debug in ("", "1")
    ]  # fmt: skip

    assert runs[0].returncode == 70
    assert "gx: internal error: ZeroDivisionError: no" in runs[0].stderr
    assert "Traceback" not in runs[0].stderr
    assert "Traceback" in runs[1].stderr
