"""What is told of the lines of Slurm, LSF and Grid Engine."""

import contextlib
import re

import pytest

from gsched.cli.commands.gsub import gsub
from gsched.cli.submit.foreign import (
    DIALECTS,
    DirectiveLine,
    Words,
    advice,
    foreign_lines,
    slurm_option,
    slurm_time,
)
from gsched.cli.submit.foreign_directives import translated
from gsched.cli.submit.slurm_options import DirectiveError, OptionError, directive_words
from gsched.errors import GschedError

OWN = ("#PBS", "#GSUB", "#GSCHED")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --gres=gpu:1", "use #PBS -l gpus=1 / gsub --gpus 1"),
        ("#SBATCH --gres=gpu", "use #PBS -l gpus=1 / gsub --gpus 1"),
        ("#SBATCH --gres gpu:2", "use #PBS -l gpus=2 / gsub --gpus 2"),
        ("#SBATCH --gres=gpu:a100:2", "-l nodes=1:gpus=2:gpu_type=a100"),
        ("#SBATCH --gpus=4", "use #PBS -l gpus=4 / gsub --gpus 4"),
        ("#SBATCH -G 4", "use #PBS -l gpus=4 / gsub --gpus 4"),
        ("#SBATCH --gpus-per-node=a100:4", "-l nodes=1:gpus=4:gpu_type=a100"),
        ("#SBATCH --time=90", "use #PBS -l walltime=1:30:00 / gsub --walltime 1:30:00"),
        ("#SBATCH -t 1-12:30", "walltime=36:30:00"),
        ("#SBATCH --cpus-per-task=8", "use #PBS -l ncpus=8 / gsub --cpus 8"),
        ("#SBATCH -c8", "use #PBS -l ncpus=8 / gsub --cpus 8"),
        ("#SBATCH --ntasks=16", "-l procs=16"),
        ("#SBATCH --ntasks-per-node=4", "nodes=N:ppn=4"),
        ("#SBATCH --nodes=2", "use #PBS -l nodes=2 / gsub --nodes 2"),
        ("#SBATCH -N 2", "use #PBS -l nodes=2 / gsub --nodes 2"),
        ("#SBATCH --mem=4G", "use #PBS -l mem=4gb / gsub --mem 4gb"),
        ("#SBATCH --mem=4000", "use #PBS -l mem=4000mb / gsub --mem 4000mb"),
        ("#SBATCH --partition=long", "use #PBS -q long / gsub -q long"),
        ("#SBATCH --job-name=x", "use #PBS -N x / gsub -N x"),
        ("#SBATCH --output=%j.out", "use #PBS -o $GSCHED_JOB_NUMBER.out"),
        ("#SBATCH --error=x.err", "use #PBS -e x.err / gsub -e x.err"),
        ("#SBATCH --array=1-9", "#PBS -t 1-9 / gsub -t 1-9"),
        ("#SBATCH --dependency=afterok:1", "use #PBS -W depend=afterok:1 / gsub --dependency aft"),
        ("#BSUB -w done(1)", "use #PBS -W depend=afterok:JOB / gsub --dependency afterok:JOB"),
        ("#$ -hold_jid 1,2", "use #PBS -W depend=afterany:1:2 / gsub --dependency afterany:1:2"),
        ("#SBATCH --mail-type=END", "use #PBS -m e / gsub -m e"),
        ("#SBATCH --mail-user=me", "use #PBS -M me / gsub -M me"),
        ("#SBATCH --wckey=k", "for --wckey, see gsub(1)"),
        ("#SBATCH -n 4 -p long", "use #PBS -l procs=4 -q long / gsub -l procs=4 -q long"),
        ("#SBATCH --nodes=2 # two of them", "use #PBS -l nodes=2 / gsub --nodes 2"),
        ("#BSUB -n 4", "-l procs=4"),
        ("#BSUB -W 1:30", "walltime=1:30:00"),
        ("#BSUB -W 90", "walltime=1:30:00"),
        ("#BSUB -q long", "use #PBS -q long / gsub -q long"),
        ("#BSUB -o out.%J", "use #PBS -o out.$GSCHED_JOB_NUMBER"),
        ("#BSUB -e err", "use #PBS -e err / gsub -e err"),
        ("#BSUB -J name", "use #PBS -N name / gsub -N name"),
        ('#BSUB -J "x[1-9]"', "use #PBS -N x -t 1-9 / gsub -N x -t 1-9"),
        ('#BSUB -J "x[1,3-9:2]%4"', "use #PBS -N x -t 1,3-9:2%4"),
        ('#BSUB -J "x[a-b]"', "use #PBS -t RANGE / gsub -t RANGE"),
        ("#BSUB -M 4000", "use #PBS -l mem=SIZE / gsub --mem SIZE"),
        ('#BSUB -R "rusage[mem=4000]"', "see RESOURCES in gsub(1)"),
        ('#BSUB -gpu "num=2:mode=shared"', "use #PBS -l gpus=2 / gsub --gpus 2"),
        ("#$ -l h_rt=1:00:00", "use #PBS -l walltime=1:00:00 / gsub --walltime 1:00:00"),
        ("#$ -l h_rt=60,gpu=2", "use #PBS -l walltime=60 -l gpus=2 / gsub --walltime 60 --gpus 2"),
        ("#$ -pe smp 4", "use #PBS -l ncpus=4 / gsub --cpus 4"),
        ("#$ -cwd", "not needed"),
        ("#$ -N x", "use #PBS -N x / gsub -N x"),
        ("#$ -o out", "use #PBS -o out / gsub -o out"),
        ("#$ -e err", "use #PBS -e err / gsub -e err"),
        ("#$ -q long.q", "use #PBS -q long.q / gsub -q long.q"),
        ("#$ -t 1-10", "#PBS -t 1-10 / gsub -t 1-10"),
        ("#$ -m bea", "use #PBS -m bea / gsub -m bea"),
    ],
)
def test_a_line_is_told_with_what_to_write(line: str, expected: str) -> None:
    """The value is taken over, in the units that gsched has."""
    found = foreign_lines(f"#!/bin/sh\n{line}\necho\n", own=OWN)

    assert [each.number for each in found] == [2]
    assert expected in advice(found[0])


@pytest.mark.parametrize(
    ("text", "walltime"),
    [
        ("90", "1:30:00"),
        ("5:30", "0:05:30"),
        ("1:02:03", "1:02:03"),
        ("2-0", "48:00:00"),
        ("1-02:03", "26:03:00"),
        ("1-02:03:04", "26:03:04"),
        ("2-0x", "HH:MM:SS"),
    ],
)
def test_times_of_slurm_have_minutes_where_pbs_has_seconds(text: str, walltime: str) -> None:
    """``--time=90`` is an hour and a half, ``walltime=90`` is a minute and a half."""
    assert slurm_time(text) == Words(f"-l walltime={walltime}", f"--walltime {walltime}")


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\necho\n#SBATCH -n 4\n",  # behind the first command Slurm ignores it, too
        " #SBATCH -n\n# SBATCH -n 4\n#$HOME is nice\n#$\n#SBATCH\necho\n",
        "cat <<X\n#SBATCH -n 4\nX\n",
        "",
    ],
)
def test_other_comments_are_left_alone(script: str) -> None:
    """Also the text of a script that a script writes."""
    assert foreign_lines(script, own=OWN) == []


def test_nothing_is_said_where_directives_are_not_read_or_these_are_read() -> None:
    """``-C ''`` and ``-C '#SBATCH'``."""
    assert foreign_lines("#SBATCH -n 4\n", own=()) == []
    assert foreign_lines("#SBATCH -n 4\n", own=("#SBATCH",)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-n 2 # tasks", ["-n", "2"]),
        ("-n2# tasks", ["-n2"]),
        ("--comment=a#b -n2", ["--comment=a"]),
        (r"-J a\#b", ["-J", "a#b"]),
        ("-J 'a # b'", ["-J", "a # b"]),
        ('-J a"b c"d', ["-J", "ab cd"]),
        (r'-J "a\"b"', ["-J", 'a"b']),
        (r"-J 'a\'b'", ["-J", "a'b"]),
        (r"-J a\ b", ["-J", "a", "b"]),
        ("-J a\\", ["-J", "a"]),
        ('-J ""', ["-J"]),
        ("-J $USER;", ["-J", "$USER;"]),
        ("\t-n\t2 ", ["-n", "2"]),
    ],
)
def test_a_line_has_the_words_that_slurm_reads(text: str, words: list[str]) -> None:
    """As Slurm 22.05.8 has split them: not as a shell does."""
    assert directive_words(text) == words


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "1",
        "gpu:",
        ",",
        "[1-2]",
        "%j",
        "=",
        "a=b=c",
        "-",
        "a'b",
        'a"',
        "\\",
        "#",
        ":",
        "a b",
    ],
)
def test_no_value_is_too_strange(value: str) -> None:
    """A mistake in another scheduler's line must not end in a fault of ours."""
    for mark, readers in DIALECTS.items():
        for name in readers:
            for text in (f"{name} {value}", f"{name}={value}"):
                with contextlib.suppress(OptionError, DirectiveError):  # --hold=x: as Slurm
                    assert advice(DirectiveLine(1, mark, text)) != ""
                with contextlib.suppress(GschedError):
                    translated([DirectiveLine(1, mark, text)], where="s.sh", submit_dir="/here")


def test_every_option_that_is_named_as_ours_is_ours() -> None:
    """What we tell people to write is an option of gsub."""
    ours = {name for each in gsub.params for name in each.opts}
    for mark, readers in DIALECTS.items():
        for name in readers:
            meaning = readers[name]("4")
            if isinstance(meaning, Words):
                for text in meaning:
                    options = {word for word in text.split() if re.match(r"-\D", word)}
                    assert options <= ours, (mark, name, text)


def test_options_of_slurm_on_the_command_line() -> None:
    """The value goes into the hint; one that is unknown to both is not ours to explain."""
    assert slurm_option("--gres", "gpu:2") == (
        "--gres is an option of Slurm, not of gsub",
        "use --gpus 2",
    )
    assert slurm_option("--array", "1-3") is not None
    assert slurm_option("--frob", "1") is None
