"""Scripts written for Slurm, LSF and Grid Engine: what their directives come to."""

import pytest

from gsched.cli.submit.foreign import foreign_lines
from gsched.cli.submit.foreign_directives import Translated, translated
from gsched.errors import BadScriptError
from gsched.model.request import parse_resources
from gsched.model.resources import Request

OWN = ("#PBS",)


def read(*lines: str, mark: str = "#SBATCH") -> Translated:
    script = "".join(f"{mark} {line}\n" for line in lines) + "date\n"
    return translated(foreign_lines(script, own=OWN), where="s.sh", submit_dir="/here")


def words(*lines: str, mark: str = "#SBATCH") -> list[str]:
    return [word for each in read(*lines, mark=mark).directives for word in each.words]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=3"], "nodes=2:ppn=12"),
        (["-N 2 -n 5"], "nodes=2:ppn=3"),
        (["-N2-4", "--gres=gpu:a100:2"], "nodes=2:ppn=1:gpus=2:gpu_type=a100"),
        (["--gres=gpu"], "nodes=1:ppn=1:gpus=1"),
        (["--gres=gpu:2,licence:3"], "nodes=1:ppn=1:gpus=2,licence=3"),
        (["-n 4"], "select=4:ncpus=1"),
        (["-n 4 -c 2", "--gpus-per-task=1"], "select=4:ncpus=2:ngpus=1"),
        (["-n 8 --ntasks-per-node=4"], "nodes=2:ppn=4"),
        (["-c 8"], "nodes=1:ppn=8"),
        (["-G 4"], "nodes=1:ppn=1:gpus=4"),
        (["--gpus=h100:8", "-N 2"], "nodes=2:ppn=1:gpus=4:gpu_type=h100"),
        (["--gpus-per-node=t4", "-N 3"], "nodes=3:ppn=1:gpus=1:gpu_type=t4"),
        (["--mem=4000"], "nodes=1:ppn=1,mem=4000mb"),
        (["--mem=4G", "-N 2"], "nodes=2:ppn=1,mem=8gb"),
        (["--mem-per-cpu=2G", "-c 4"], "nodes=1:ppn=4,mem=8gb"),
        (["--mem-per-gpu=16G", "-G 2"], "nodes=1:ppn=1:gpus=2,mem=32gb"),
        (["-n 4", "--mem=2G"], "nodes=1:ppn=4,mem=2gb"),
        (["-n 2 -c 3", "--gres=gpu:1"], "nodes=1:ppn=6:gpus=1"),
        (["-n 4", "--mem-per-cpu=1G"], "select=4:ncpus=1,mem=4gb"),
        (["-w n[1-2],gpu7", "-c 2"], "nodes=n1:ppn=2+n2:ppn=2+gpu7:ppn=2"),
        (["-w n01", "-N 3"], "nodes=n01:ppn=1+2:ppn=1"),
        (["-C fast&big"], "nodes=1:ppn=1:fast:big"),
        (["-G 2 --cpus-per-gpu=4"], "nodes=1:ppn=8:gpus=2"),
        (["--tasks-per-node=3", "-N 2"], "nodes=2:ppn=3"),
        (["--licenses=licence@server:2"], "nodes=1:ppn=1,licence=2"),
        (["-L licence"], "nodes=1:ppn=1,licence=1"),
    ],
)
def test_resources_of_slurm_are_read_together(lines: list[str], expected: str) -> None:
    assert words(*lines) == ["-l", expected]
    asked = parse_resources([expected], generic_names=("licence",), warn_unknown=False).request
    assert isinstance(asked, Request), "it is a request that the head reads"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--time=90", ["-l", "walltime=1:30:00"]),
        ("-t 1-02:03", ["-l", "walltime=26:03:00"]),
        ("--partition=long", ["-q", "long"]),
        ('--job-name="my_job"', ["-N", "my_job"]),
        ("-o out-%j.txt", ["-o", "out-$GSCHED_JOB_NUMBER.txt", "-j", "oe"]),
        ("--output='a b/%x.%N' -e err", ["-o", "a b/$PBS_JOBNAME.$GSCHED_NODE", "-e", "err"]),
        ("-A lab", ["-A", "lab"]),
        ('-A "our lab"', ["-A", "our lab"]),
        ('-J "it\'s"', ["-N", "it's"]),
        ("-D '/data/of x'", ["-d", "/data/of x"]),
        ("-D /data", ["-d", "/data"]),
        ("--dependency=afterok:1:2,singleton", ["-W", "depend=afterok:1:2,singleton"]),
        ("--hold", ["-h"]),
        ("--requeue", ["-r", "y"]),
        ("--no-requeue", ["-r", "n"]),
        ("--exclusive", ["--exclusive"]),
        ("--export=ALL,A=1", ["-V", "-v", "A=1"]),
        ("--export=NONE", []),
        ("--export=A,B=2", ["-v", "A,B=2"]),
        ("--comment='two words'", ["--comment", "two words"]),
        ("--begin=2030-01-02T03:04", ["-a", "203001020304.00"]),
        ("--begin=16:30", ["-a", "1630.00"]),
        ("-b teatime", ["-a", "1600.00"]),
        ("--begin=now+2hours", ["-a", "+7200"]),
        ("--begin=now+90", ["-a", "+90"]),
        ("--begin=now", []),
        ("--time=UNLIMITED", []),
        ("-d 12", ["-W", "depend=afterany:12"]),
        ("-d afterok:12_3:13,after:14", ["-W", "depend=afterok:12[3]:13,after:14"]),
        ("--array=1-9:2%3", ["-t", "1-9:2%3"]),
        ("--gpu-bind=closest --contiguous", []),
        ("--nice=50", ["-p", "-50"]),
        ("--wait", ["-W", "block=true"]),
        ("--qos=high --wckey=x", ["--qos", "high"]),
        ("--mail-type=END,FAIL --mail-user=me@b.c", ["-m", "aef", "-M", "me@b.c"]),
        ("--mail-type=ALL,ARRAY_TASKS", ["-m", "abefj"]),
        ("--mail-type=NONE", ["-m", "n"]),
        ("--open-mode=append", ["--open-mode", "append"]),
        ("--signal=B:USR2@90", ["--signal", "B:USR2@90"]),
        ("--part=long --no-req", ["-q", "long", "-r", "n"]),  # cut short, as getopt reads them
    ],
)
def test_other_options_of_slurm_are_read_one_by_one(line: str, expected: list[str]) -> None:
    result = read(line)

    assert [word for each in result.directives for word in each.words] == expected
    assert result.warnings == []


@pytest.mark.parametrize("line", ["--job-name='two  words'", '-J " two words "'])
def test_blanks_in_a_name_of_slurm_become_one_word(line: str) -> None:
    result = read(line)

    assert [each.words for each in result.directives] == [["-N", "two_words"]]
    (warning,) = result.warnings
    assert "the name is 'two_words', without blanks" in warning


def test_mail_types_of_slurm_that_gsched_does_not_have_are_named() -> None:
    result = read("--mail-type=END,TIME_LIMIT_80")

    assert [each.words for each in result.directives] == [["-m", "e"]]
    (warning,) = result.warnings
    assert "--mail-type TIME_LIMIT_80 is ignored" in warning


def test_of_several_partitions_the_first_is_taken_and_named() -> None:
    result = read("-p long,gpu")

    assert [each.words for each in result.directives] == [["-q", "long"]]
    assert result.warnings == ["s.sh:1: --partition=long,gpu: the queue is long"]


def test_the_lines_of_a_whole_script_keep_their_numbers() -> None:
    result = read("-J train", "-N 2 --time=60", "--gres=gpu:1", "-o out", "-e err")

    assert [(each.line, each.words) for each in result.directives] == [
        (1, ["-N", "train"]),
        (2, ["-l", "walltime=1:00:00"]),
        (4, ["-o", "out"]),
        (5, ["-e", "err"]),
        (2, ["-l", "nodes=2:ppn=1:gpus=1"]),
    ]


def test_variables_of_slurm_follow_from_its_options() -> None:
    result = read("-n 8 --ntasks-per-node=4 -c 2")

    assert result.environment == {
        "SLURM_SUBMIT_DIR": "/here",
        "SLURM_NTASKS": "8",
        "SLURM_NPROCS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_CPUS_PER_TASK": "2",
    }
    assert read("-c 1").environment["SLURM_CPUS_PER_TASK"] == "1"
    assert "SLURM_CPUS_PER_TASK" not in read("-n 2").environment
    assert read("-q long.q", mark="#$").environment == {}


def test_tasks_of_an_array_are_told_of_all_of_them() -> None:
    assert read("--array=3,5-9:2%2").environment == {
        "SLURM_SUBMIT_DIR": "/here",
        "SLURM_ARRAY_TASK_MIN": "3",
        "SLURM_ARRAY_TASK_MAX": "9",
        "SLURM_ARRAY_TASK_COUNT": "4",
        "SLURM_ARRAY_TASK_STEP": "1",
    }
    assert "SLURM_ARRAY_TASK_MIN" not in read("-n 2").environment


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nodes=many", "s.sh:1: --nodes: invalid number 'many'"),
        ("--gres=gpu:x:y", "s.sh:1: --gres: invalid number 'y'"),
        ("--mem=lots", "s.sh:1: --mem: invalid size 'lots'"),
        ("-w n[a-b]", "s.sh:1: --nodelist: invalid range 'n[a-b]'"),
        ("-w n[1-99999]", "names too many nodes"),
        ("-C 'a|b'", "s.sh:1: --constraint=a|b: alternatives are not supported"),
        ("-n 0", "s.sh:1: --ntasks: invalid number '0'"),
        ("--gers=gpu:1", "s.sh:1: unrecognized option '--gers=gpu:1'"),
        ("-Y 3", "s.sh:1: invalid option -- 'Y'"),
        ("--hold=yes", "s.sh:1: option '--hold' doesn't allow an argument"),
        ("--time", "s.sh:1: option '--time' requires an argument"),
        ("-n", "s.sh:1: option requires an argument -- 'n'"),
        ("--nt 3", "s.sh:1: option '--nt' is ambiguous; possibilities: '--ntasks' '--ntasks-per-"),
        ("--time=2-0x", "s.sh:1: --time: invalid time '2-0x'"),
        (" hetjob", "s.sh:1: hetjob: heterogeneous jobs are not supported"),
        ("-d aftercorr:7", "s.sh:1: --dependency=aftercorr:7: aftercorr is not supported"),
        ("-d afterok:1?afterok:2", "s.sh:1: --dependency=afterok:1?afterok:2: alternatives"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(line: str, message: str) -> None:
    with pytest.raises(BadScriptError) as caught:
        read(line)
    assert message in str(caught.value)


def test_what_is_not_known_is_named_and_ignored() -> None:
    result = read("--container=image", "--begin=tomorrow", "--exclude=n2")

    assert result.directives == []
    assert result.warnings[0].startswith("s.sh:1: #SBATCH --container=image is ignored; for --con")
    assert "use #PBS -a DATE" in result.warnings[1]
    assert "nodes cannot be excluded" in result.warnings[2]
    many = read(*["--container=image"] * 15)
    assert many.warnings[-1] == "s.sh: 5 more such lines are ignored"


@pytest.mark.parametrize(
    ("mark", "line", "expected"),
    [
        ("#BSUB", "-W 1:30", ["-l", "walltime=1:30:00"]),
        ("#BSUB", "-q long -J name", ["-q", "long", "-N", "name"]),
        ("#$", "-l h_rt=3600,gpu=2", ["-l", "walltime=3600", "-l", "gpus=2"]),
        ("#$", "-pe smp 4", ["-l", "ncpus=4"]),
        ("#$", "-cwd", []),
        ("#$", "-hold_jid 1,2", ["-W", "depend=afterany:1:2"]),
    ],
)
def test_lines_of_lsf_and_grid_engine_are_read_with_a_warning(
    mark: str, line: str, expected: list[str]
) -> None:
    result = read(line, mark=mark)

    assert [word for each in result.directives for word in each.words] == expected
    assert result.warnings == [
        f"s.sh: {mark} lines are read as far as gsched knows them; see gsub --dry-run"
    ]
