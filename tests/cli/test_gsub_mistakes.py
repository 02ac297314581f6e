"""gsub: habits from other schedulers, commands without dashes, mail, and where mistakes stand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.model.container import Container
from gsched.protocol import api
from tests.cli.test_gsub import Bench
from tests.support.cluster import Cluster
from tests.support.commands import run_command
from tests.support.fake_api import FakeApi, serve


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a directory with some scripts, and a head that takes everything."""
    directory = tmp_path / "work"
    directory.mkdir()
    fake = FakeApi(tmp_path)
    with serve(fake.application(), tmp_path / "s"):
        bench = Bench(directory, fake, tmp_path / "s")
        bench.write("job.sh", "date\n")
        yield bench


def test_lines_of_slurm_are_read_where_a_script_has_none_of_ours(bench: Bench) -> None:
    """Such a script once ran without GPU and without time limit, and nobody was told."""
    bench.write("train.sh", "#!/bin/sh\n#SBATCH --gres=gpu:1 -o %j.out\n#SBATCH --time=60\ndate\n")
    ran = bench.gsub("train.sh")

    assert (ran.status, ran.stdout, ran.stderr) == (0, "1.fake\n", "")
    (job,) = bench.fake.submitted
    assert job.resources == ("walltime=1:00:00", "nodes=1:ppn=1:gpus=1")
    assert (job.stdout_path.rpartition("/")[2], job.join) == ("$GSCHED_JOB_NUMBER.out", "oe")
    assert job.environment["SLURM_SUBMIT_DIR"] == job.submit_dir


def test_the_command_line_beats_lines_of_slurm(bench: Bench) -> None:
    bench.write("train.sh", "#SBATCH -N 2 -n 8 --time=60\ndate\n")
    ran = bench.gsub("-l", "nodes=1:ppn=2,walltime=0:5:0", "train.sh")

    assert ran.status == 0, ran.stderr
    assert bench.fake.submitted[0].resources == ("walltime=1:00:00", "nodes=1:ppn=2,walltime=0:5:0")


def test_a_script_for_several_schedulers_is_read_by_its_lines_for_us(bench: Bench) -> None:
    bench.write("both.sh", "#PBS -l nodes=1\n#SBATCH -N 7\n#$ -cwd\ndate\n")
    ran = bench.gsub("both.sh")

    assert bench.fake.submitted[0].resources == ("nodes=1",)
    assert ran.stderr == (
        "gsub: warning: both.sh: #SBATCH and #$ lines are ignored: the script has lines for "
        "gsched, too\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("--gres=gpu:2 job.sh", "--gres is an option of Slurm", "use --gpus 2"),
        ("--time 90 job.sh", "--time is an option of Slurm", "use --walltime 1:30:00"),
        ("job.sh --time 90", "--time is an option of Slurm", "use --walltime 1:30:00"),
        ("--partition=long job.sh", "--partition is an option of Slurm", "use -q long"),
        ("--cpus-per-task 4 job.sh", "--cpus-per-task is an option of Slurm", "use --cpus 4"),
        ("--array=9-1 job.sh", "-t: array '9-1': the range 9-1 is reversed", "write 1-9"),
        ("-I", "an interactive job (-I) needs a terminal", "ssh -t"),
        ("--mail-type=ALL job.sh", "--mail-type is an option of Slurm", "use -m abef"),
        ("-M me,a@b@c job.sh", "-M: invalid recipient 'a@b@c'", "write USER or USER@HOST"),
        ("-M -oi job.sh", "-M: invalid recipient '-oi'", "write USER or USER@HOST"),
        ("sleep 5 --lr 0.1", "'sleep' looks like a command", "gsub -- sleep 5 --lr 0.1"),
        ("--gpus 1 sleep 5 --lr=1", "'sleep' looks like", "gsub --gpus 1 -- sleep 5 --lr=1"),
        ("sleep 5 --epochs 3", "'sleep' looks like a command", "gsub -- sleep 5 --epochs 3"),
        ("sleep 5", "'sleep' looks like a command", "gsub -- sleep 5"),
        ("job.sh --lr 0.1", "--lr is not an option of gsub", "gsub job.sh -- --lr 0.1"),
        ("--lr 0.1 job.sh", "unknown option '--lr'\n", "see `gsub --help`"),
        ("--parms 0.1 job.sh", "unknown option '--parms'", "did you mean '--params'? see `gsub"),
        ("-m x job.sh", "-m: invalid mail points 'x'", "or n alone"),
        ("-m na job.sh", "-m: invalid mail points 'na'", "or n alone"),
        ("-v 1A=b job.sh", "-v: invalid variable name '1A'", "letters, digits and _"),
        ("-v A-B job.sh", "-v: invalid variable name 'A-B'", "letters, digits and _"),
        ("-v A=1,B.C=2 job.sh", "-v: invalid variable name 'B.C'", "letters, digits and _"),
    ],
)
def test_a_habit_is_answered_with_what_to_write(
    bench: Bench, arguments: str, message: str, hint: str
) -> None:
    """Nothing is submitted."""
    ran = bench.gsub(*arguments.split())

    assert (ran.status, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"gsub: {message}")
    assert f"hint: {hint}" in ran.stderr or hint in ran.stderr.splitlines()[1]
    assert bench.fake.submitted == []


@pytest.mark.parametrize("arguments", ["-m n job.sh", "-m p job.sh", "-m n -M me job.sh"])
def test_no_mail_may_be_asked_for(bench: Bench, arguments: str) -> None:
    """As workflow engines do."""
    assert bench.gsub(*arguments.split()).stderr == ""


def test_a_script_and_the_command_line_ask_for_mail(bench: Bench) -> None:
    """The command line wins; whether the site sends mail only the head knows."""
    bench.write("mail.sh", "#PBS -m eab\n#PBS -M me@site\n#PBS -N x\ndate\n")
    assert bench.gsub("mail.sh").status == 0
    assert bench.gsub("-m", "n", "-M", "you", "mail.sh").status == 0

    first, second = bench.fake.submitted
    assert (first.mail_points, first.mail_to, first.name) == ("abe", "me@site", "x")
    assert (second.mail_points, second.mail_to) == ("n", "you")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-t 3-1", "-t: array '3-1': the range 3-1 is reversed"),
        ("--gres=gpu:1", "--gres is an option of Slurm"),
        ("-l mem=lots", "mem=lots: invalid size 'lots'"),
        ("-l nodes=1:gpu=1", "nodes=1:gpu=1: "),
        ("-l walltime=soon", "walltime=soon: "),
        ("-l select=1 -l gpus=1", "gpus=1 cannot be combined with select="),
        ("-v 1A=b", "-v: invalid variable name '1A'"),
    ],
)
def test_a_mistake_in_a_directive_is_named_by_file_and_line(
    bench: Bench, line: str, message: str
) -> None:
    """Also a wrong resource, which was refused by the head without either."""
    bench.write("wrong.sh", f"#!/bin/sh\n#PBS -N x\n#PBS {line}\ndate\n")
    ran = bench.gsub("wrong.sh")

    assert (ran.status, ran.stdout) == (65, "")
    assert ran.stderr.startswith(f"gsub: wrong.sh:3: {message}")
    assert bench.fake.submitted == []


def test_a_resource_that_only_the_head_can_judge_is_named_by_its_line(cluster: Cluster) -> None:
    """It knows which counted resources the nodes declare."""
    cluster.start_head()
    script = cluster.jobs / "wrong.sh"
    script.write_text("#!/bin/sh\n#PBS -N x\n#PBS -l walltime=60,gpuz=1\ndate\n")
    ran = run_command("gsub", "wrong.sh", head=cluster.socket, cwd=cluster.jobs)

    assert (ran.status, ran.stdout) == (65, "")
    assert ran.stderr.startswith("gsub: wrong.sh:3: unknown resource 'gpuz'")

    on_command_line = run_command(
        "gsub", "-l", "gpuz=1", "--", "date", head=cluster.socket, cwd=cluster.jobs
    )
    assert on_command_line.status == 2
    assert on_command_line.stderr.startswith("gsub: unknown resource 'gpuz'")


def test_where_a_script_was_looked_for_is_told_only_of_a_relative_path(bench: Bench) -> None:
    """An absolute one says it itself."""
    assert f"(looked in {bench.directory})" in bench.gsub("no.sh").stderr
    assert "looked in" not in bench.gsub("/no/such.sh").stderr


def test_a_refusal_of_the_head_without_a_directive_is_as_it_is(bench: Bench) -> None:
    """There is no line to name."""
    bench.fake.refuse = api.ErrorBody(code="bad_resource", message="unknown 'foo'", hint="try mem")
    assert bench.gsub("job.sh").stderr.startswith("gsub: unknown 'foo'")


def test_a_container_is_stated_by_options_and_by_those_of_pyxis(bench: Bench) -> None:
    bench.write(
        "train.sh",
        "#!/bin/sh\n#SBATCH --container-image=nvcr.io\\#nvidia/x:1\n"
        "#SBATCH --container-mounts=/a:/b,/c:/c:ro --container-workdir=/b\ndate\n",
    )
    assert bench.gsub("train.sh").status == 0
    asked = ("--container", "images/a.sif", "--container-mount", "/a:/b", "job.sh")
    assert bench.gsub(*asked).status == 0

    first, second = (job.container for job in bench.fake.submitted)
    assert first == Container(
        image="nvcr.io#nvidia/x:1", mounts=("/a:/b", "/c:/c:ro"), workdir="/b"
    )
    assert second is not None
    assert second.image == f"{bench.fake.submitted[1].workdir}/images/a.sif"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--container-mount", "/a:/b"], "need --container"),
        (["--container", "a b"], "--container: 'a b' is not the name of an image"),
        (["--container", "a", "--container-mount", "a:b"], "has a path that is not absolute"),
        (["--container", "a", "--container-mount", "/a:/b:wx"], "is not a mount"),
        (["--container", "a", "--container-workdir", "b"], "'b' is not absolute"),
    ],
)
def test_what_is_wrong_with_a_container_is_told(
    bench: Bench, arguments: list[str], message: str
) -> None:
    ran = bench.gsub(*arguments, "job.sh")

    assert ran.status == 2
    assert message in ran.stderr
    assert bench.fake.submitted == []
