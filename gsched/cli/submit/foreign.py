"""What options of Slurm, LSF and Grid Engine mean here, one by one. Pure.

`gsched.cli.submit.foreign_directives` reads ``#SBATCH``, ``#BSUB`` and ``#$`` lines with it, and on
the command line an option of Slurm is refused with what to write instead.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gsched.cli.submit.rows import equal_options
from gsched.cli.submit.slurm_options import OPTIONS, directive_options, parse
from gsched.errors import UsageError
from gsched.model.mail import points_of_slurm

_NAMED_TIMES: Final = {"midnight": "00:00", "noon": "12:00", "elevenses": "11:00",
                       "fika": "15:00", "teatime": "16:00"}  # fmt: skip
#: How a script of Slurm begins the next job of several that start together.
_NEXT_JOB: Final = frozenset({"hetjob", "packjob"})
SBATCH: Final = "#SBATCH"
_UNITS_S: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
NO_NAMED_ARRAYS: Final = "invalid array: write x[1-9], or use #PBS -t RANGE / gsub -t RANGE"


class Words(NamedTuple):
    """How gsched says it: in a ``#PBS`` line, and on gsub's command line.

    ``note`` tells what of it gsched does not have.
    """

    pbs: str
    gsub: str
    note: str = ""


Meaning = Words | str  # a text is a remark: there is nothing to write
Reader = Callable[[str], Meaning]


class DirectiveLine(NamedTuple):
    """A line of another scheduler: its number, from 1, its mark, and what follows that.

    An option of Slurm's command line is a line of its own, number 0, with its words.
    """

    number: int
    mark: str
    text: str
    words: tuple[str, ...] = ()


_SPECIAL: Final = r"[\s\"'\\]"  # what a line of #PBS does not hold without quotation marks


def _quoted(value: str) -> str:
    return shlex.quote(value)


def _export(value: str) -> str:
    """Return the meaning of ``ALL``, ``NONE`` or a list of variables, which may hold ``ALL``."""
    names = [each for each in value.split(",") if each]
    own = ",".join(each for each in names if each not in {"ALL", "NONE", "NIL"})
    everything = ["-V"] if "ALL" in names or not names else []
    return " ".join([*everything, *([f"-v {_quoted(own)}"] if own else [])])


def _begin(value: str) -> Meaning:
    """Return the meaning of ``2030-01-02T03:04``, ``16:00``, ``now+2hours`` or ``midnight``."""
    clock = re.fullmatch(r"(\d\d?):(\d\d)(?::(\d\d))?", _NAMED_TIMES.get(value, value))
    if clock is not None:
        hour, minute, second = clock.groups("00")
        return Words(*[f"-a {int(hour):02d}{minute}.{second}"] * 2)
    later = re.fullmatch(r"now(?:\+(\d{1,9})(second|minute|hour|day|week)?s?)?", value)
    if later is not None:
        seconds = int(later[1] or 0) * _UNITS_S[later[2] or "second"]
        return Words(*[f"-a +{seconds}"] * 2) if seconds else Words("", "")
    match = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d))?)?", value)
    if match is None:
        return "use #PBS -a DATE / gsub -a [[[[CC]YY]MM]DD]hhmm[.SS]"
    year, month, day, hour, minute, second = match.groups("00")
    return Words(*[f"-a {year}{month}{day}{hour}{minute}.{second}"] * 2)


def _open_mode(value: str) -> str:
    return "append" if value.startswith("a") else "truncate"


def _same(form: str) -> Reader:
    return lambda value: Words(*[form.format(_quoted(value))] * 2)


def _job_name(value: str) -> Words:
    """Return the meaning of a name, which is one word here."""
    name = "_".join(value.split())
    note = f"job name {value!r}: the name is {name!r}, without blanks" if name != value else ""
    text = f"-N {_quoted(name)}"
    return Words(text, text, note)


def _resource(name: str, option: str) -> Reader:
    return lambda value: Words(f"-l {name}={_quoted(value)}", f"{option} {_quoted(value)}")


def _dependency(form: str) -> Reader:
    def read(value: str) -> Meaning:
        stated = _quoted(form.format(value.replace(",", ":")))
        return Words(f"-W depend={stated}", f"--dependency {stated}")

    return read


def _remark(text: str) -> Reader:
    return lambda _: text


def slurm_dependency(value: str) -> Meaning:
    """Return the meaning of ``afterok:1:2,afterany:3_4``; a bare number is ``afterany``.

    Raises:
        UsageError: what gsched does not have: alternatives, or element after element.
    """
    if "aftercorr" in value:
        raise UsageError(
            f"--dependency={value}: aftercorr is not supported",
            hint="afterok:JOB waits for all elements of an array, afterok:JOB_INDEX for one",
        )
    if "?" in value:
        raise UsageError(
            f"--dependency={value}: alternatives (?) are not supported",
            hint="separate dependencies that must all be satisfied by commas",
        )
    items = [f"afterany:{item}" if item[:1].isdecimal() else item for item in value.split(",")]
    stated = re.sub(r":([0-9]+)_([0-9]+)", r":\1[\2]", ",".join(items))
    stated = _quoted(stated) if re.search(_SPECIAL, stated) else stated
    return Words(f"-W depend={stated}", f"--dependency {stated}")


def _walltime(text: str) -> Words:
    return Words(f"-l walltime={text}", f"--walltime {text}")


#: Slurm's times; `slurm_time` gives a placeholder for others.
TIME: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
NO_LIMIT: Final = frozenset({"unlimited", "infinite", "-1"})


def slurm_time(value: str) -> Words:
    """Return the meaning of Slurm's ``minutes``, ``MM:SS``, ``H:MM:SS`` or ``D-HH[:MM[:SS]]``."""
    if value.lower() in NO_LIMIT:
        return Words("", "")
    match = TIME.fullmatch(value)
    if match is None:
        return _walltime("HH:MM:SS")
    days, *numbers = (None if each is None else int(each) for each in match.groups())
    first, second, third = numbers
    if days is not None:
        hours, minutes, seconds = days * 24 + (first or 0), second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    hours, minutes = hours + minutes // 60, minutes % 60
    return _walltime(f"{hours}:{minutes:02}:{seconds:02}")


def _lsf_time(value: str) -> Meaning:
    hours, colon, minutes = value.partition("/")[0].partition(":")
    if not colon:
        hours, minutes = "0", hours
    if not (hours.isdecimal() and minutes.isdecimal()):
        return _walltime("HH:MM:SS")
    return _walltime(f"{int(hours) + int(minutes) // 60}:{int(minutes) % 60:02}:00")


def slurm_gres(value: str) -> Words:
    """Return the meaning of ``gpu``, ``gpu:2`` or ``gpu:a100:2``."""
    name, *rest = value.split(",", maxsplit=1)[0].split(":")
    if name != "gpu":
        return Words(*[f"-l {_quoted(name)}=N"] * 2)
    count = rest[-1] if rest and rest[-1].isdecimal() else "1"
    kind = rest[0] if rest and not rest[0].isdecimal() else ""
    if kind:
        place = f"-l nodes=1:gpus={count}:gpu_type={_quoted(kind)}"
        return Words(place, place)
    return Words(f"-l gpus={count}", f"--gpus {count}")


def _gpu_count(value: str) -> Words:
    return slurm_gres(f"gpu:{value}")


def _memory(value: str) -> Words:
    """Slurm's sizes are of megabytes where they have no letter."""
    match = re.fullmatch(r"(\d+)([kKmMgGtT]?)[bB]?", value, re.ASCII)
    size = f"{match[1]}{(match[2] or 'm').lower()}b" if match else "SIZE"
    return Words(f"-l mem={size}", f"--mem {size}")


def _output(option: str) -> Reader:
    def read(value: str) -> Meaning:
        path = re.sub(r"%[0-9]*([jJAxNu%at])|\$(JOB_ID)", _expanded, value)
        bare = _quoted(path) if re.search(_SPECIAL, path) else path
        return Words(f"-{option} {bare}", f"-{option} {_quoted(path)}")

    return read


def _expanded(match: re.Match[str]) -> str:
    return _PATTERNS[match[1] or match[2]]


#: What patterns in the names of output files stand for.
_PATTERNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("j", "J", "JOB_ID"), "$GSCHED_JOB_NUMBER"),
    "A": "$GSCHED_ARRAY_NUMBER",
    "x": "$PBS_JOBNAME",
    "N": "$GSCHED_NODE",
    "u": "$USER",
    "a": "$GSCHED_ARRAY_INDEX",
    "t": "0",
    "%": "%",
}


def _lsf_name(value: str) -> Meaning:
    """Return the meaning of a name, which states the indices of an array too: ``x[1-9:2]%3``."""
    if "[" not in value:
        return Words(*[f"-N {_quoted(value)}"] * 2)
    match = re.fullmatch(r"([^\[\]]+)\[([-0-9,: ]+)\](%[0-9]+)?", value)
    if match is None:
        return NO_NAMED_ARRAYS
    words = f"-N {_quoted(match[1])} -t {match[2].replace(' ', '')}{match[3] or ''}"
    return Words(words, words)


def _lsf_gpu(value: str) -> Meaning:
    match = re.search(r"num=(\d+)", value, re.ASCII)
    return _gpu_count(match[1] if match else "1")


def _sge_resources(value: str) -> Meaning:
    """Return the meaning of all terms of Grid Engine's ``-l``."""
    words = [_sge_resource(term) for term in value.split(",")]
    return Words(" ".join(each.pbs for each in words), " ".join(each.gsub for each in words))


def _sge_resource(term: str) -> Words:
    name, _, amount = term.partition("=")
    if name in {"h_rt", "s_rt"}:
        return _walltime(amount or "HH:MM:SS")
    if name in {"gpu", "gpus", "ngpus"}:
        return _gpu_count(amount or "1")
    if name in {"h_vmem", "mem_free", "s_vmem", "h_rss"}:
        return _memory(amount)
    return Words(*[f"-l {_quoted(term)}"] * 2)


def _sge_slots(value: str) -> Meaning:
    count = value.rsplit(maxsplit=1)[-1].partition("-")[0] if value.split() else "N"
    return _CPUS(count)


_GPUS: Final = _resource("gpus", "--gpus")
_CPUS: Final = _resource("ncpus", "--cpus")
_PROCESSES: Final = _same("-l procs={}")


def _slurm_mail(value: str) -> Meaning:
    """Read ``--mail-type``; types of Slurm that have no mail point are named."""
    points, unknown = points_of_slurm(value)
    note = ""
    if unknown:
        note = f"--mail-type {','.join(unknown)} is ignored: gsched sends no such mail"
    if not points:
        return note or "use #PBS -m abe / gsub -m abe for mail"
    return Words(f"-m {points}", f"-m {points}", note)


def _partition(value: str) -> Meaning:
    """Return the first of several partitions; sbatch itself takes the first that fits."""
    first, _, others = value.partition(",")
    note = f"--partition={value}: the queue is {first}" if others else ""
    words = f"-q {_quoted(first)}"
    return Words(words, words, note)


def _sge_mail(value: str) -> Meaning:
    """Read ``-m beas``: Grid Engine's ``s`` is for suspended jobs."""
    points = "".join(each for each in value if each in "aben")
    return Words(f"-m {points}", f"-m {points}") if points else "gsched suspends no jobs"


_LSF_DEPENDENCY: Final = _remark("use #PBS -W depend=afterok:JOB / gsub --dependency afterok:JOB")


def _equal(scheduler: str) -> dict[str, Reader]:
    """Return the options of another scheduler that have one of gsub with the same value."""
    return {name: _same(form) for name, form in equal_options(scheduler)}


_SLURM: Final[Mapping[str, Reader]] = {
    **_equal("slurm"),
    **dict.fromkeys(("--time", "-t"), slurm_time),
    "--gres": slurm_gres,
    **dict.fromkeys(("--gpus", "-G", "--gpus-per-node", "--gpus-per-task"), _gpu_count),
    **dict.fromkeys(("--cpus-per-task", "-c", "--mincpus"), _CPUS),
    **dict.fromkeys(("--ntasks", "-n"), _PROCESSES),
    "--ntasks-per-node": lambda value: f"use ppn for the tasks per node: -l nodes=N:ppn={value}",
    **dict.fromkeys(("--nodes", "-N"), _resource("nodes", "--nodes")),
    "--mem": _memory,
    "--mem-per-cpu": _remark("use #PBS -l mem=SIZE / gsub --mem SIZE for the memory of the job"),
    **dict.fromkeys(("--partition", "-p"), _partition),
    **dict.fromkeys(("--job-name", "-J"), _job_name),
    **dict.fromkeys(("--output", "-o"), _output("o")),
    **dict.fromkeys(("--error", "-e"), _output("e")),
    **dict.fromkeys(("--dependency", "-d"), slurm_dependency),
    "--mail-type": _slurm_mail,
    **dict.fromkeys(
        ("--exclude", "-x"), _remark("nodes cannot be excluded: an operator can drain them")
    ),
    **dict.fromkeys(("--input", "-i"), _remark("redirect the input in the script: COMMAND < FILE")),
    "--tmp": _remark("the space in TMPDIR is not requested"),
    **dict.fromkeys(("--wait", "-W"), lambda _: Words("-W block=true", "--wait")),
    "--nice": lambda value: Words(*[f"-p -{_quoted(value or '100')}"] * 2),
    "--export": lambda value: Words(*[_export(value)] * 2),
    **dict.fromkeys(("--begin", "-b"), _begin),
    "--container-mounts": lambda value: Words(*[f"--container-mount {_quoted(value)}"] * 2),
    "--open-mode": lambda value: Words(*[f"--open-mode {_open_mode(value)}"] * 2),
    "--requeue": _same("-r y"),
    "--no-requeue": _same("-r n"),
    **dict.fromkeys(("--nodelist", "-w"), _same("-l nodes={}")),
    **dict.fromkeys(("--constraint", "-C"), _same("-l nodes=1:{}")),
}
_LSF: Final[Mapping[str, Reader]] = {
    **_equal("lsf"),
    "-n": _PROCESSES,
    "-W": _lsf_time,
    "-o": _output("o"),
    "-oo": _output("o"),
    "-e": _output("e"),
    "-eo": _output("e"),
    "-J": _lsf_name,
    "-M": _remark("use #PBS -l mem=SIZE / gsub --mem SIZE"),
    "-R": _remark("use #PBS -l with nodes=, mem= and gpus=: see RESOURCES in gsub(1)"),
    "-gpu": _lsf_gpu,
    "-w": _LSF_DEPENDENCY,
    "-B": lambda _: Words("-m b", "-m b"),
    "-N": lambda _: Words("-m e", "-m e"),
    "-r": _same("-r y"),
}
_GRID_ENGINE: Final[Mapping[str, Reader]] = {
    **_equal("sge"),
    "-l": _sge_resources,
    "-pe": _sge_slots,
    "-cwd": _remark("not needed: jobs start in the directory of submission"),
    "-o": _output("o"),
    "-e": _output("e"),
    "-j": _remark("use #PBS -j oe / gsub -j oe"),
    **dict.fromkeys(("-hold_jid", "-hold_jid_ad"), _dependency("afterany:{}")),
    "-m": _sge_mail,
}
DIALECTS: Final[Mapping[str, Mapping[str, Reader]]] = {
    "#SBATCH": _SLURM,
    "#BSUB": _LSF,
    "#$": _GRID_ENGINE,
}
_OTHERS: Final = ("#BSUB", "#$")


def foreign_lines(script: str, *, own: Sequence[str]) -> list[DirectiveLine]:
    """Return the lines before the first command that speak to another scheduler.

    Args:
        script: its text.
        own: the prefixes that gsched reads in it; empty: it shall read none, so none is missing.
    """
    if not own:
        return []
    found: list[DirectiveLine] = []
    for number, line in enumerate(script.split("\n"), start=1):
        bare = line.strip()
        if bare and not bare.startswith("#") and not (number == 1 and bare.startswith(":")):
            break
        if line.startswith(SBATCH) and SBATCH not in own:  # at its beginning only, as in Slurm
            text = line[len(SBATCH) :].strip()
            found += [DirectiveLine(number, SBATCH, text)] if text.partition("#")[0] else []
            continue
        for mark in _OTHERS:
            text = bare[len(mark) :].strip()
            if bare.startswith(mark) and mark not in own and text.startswith("-"):
                found.append(DirectiveLine(number, mark, text))
    return found


def advice(line: DirectiveLine) -> str:
    """Return what to write instead of a line."""
    meanings = [meaning_of(line.mark, name, value) for name, value in options_of(line)]
    words = [each for each in meanings if isinstance(each, Words)]
    parts = [each for each in meanings if isinstance(each, str)]
    if words:
        pbs, gsub = " ".join(each.pbs for each in words), " ".join(each.gsub for each in words)
        parts.insert(0, f"use #PBS {pbs} / gsub {gsub}")
    return "; ".join(dict.fromkeys(parts)) or "see gsub(1) for gsched's options"


def meaning_of(mark: str, name: str, value: str) -> Meaning:
    """Return what an option means: words for PBS and gsub, or a remark."""
    reader = DIALECTS[mark].get(name)
    return f"for {name}, see gsub(1)" if reader is None else reader(value)


def options_of(line: DirectiveLine) -> list[tuple[str, str]]:
    """Return the options of a line with their values; those of Slurm by their long names.

    Raises:
        UsageError: it begins another job, or Slurm cannot read it.
    """
    if line.mark == SBATCH:
        return _options_of_slurm(line)
    text = line.text.split(" #")[0]
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation mark without its partner
        words = text.split()
    values = DIALECTS[line.mark]
    found: list[tuple[str, str]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            if found:  # the value of the option before it, or one more word of it
                before, value = found[-1]
                found[-1] = (before, f"{value} {word}".strip())
        elif word.startswith("--"):
            found.append((name, value.strip("\"'") if equals else ""))
        elif word in values or len(word) == 2:
            found.append((word, ""))
        else:  # -n4
            found.append((word[:2], word[2:]))
    return found


def _options_of_slurm(line: DirectiveLine) -> list[tuple[str, str]]:
    if line.words:
        return parse(line.words, OPTIONS["sbatch"]).options
    first = line.text.split(maxsplit=1)[0]
    if first in _NEXT_JOB:
        raise heterogeneous(first)
    return directive_options(line.text)


def heterogeneous(word: str) -> UsageError:
    """Return the refusal of a heterogeneous job."""
    return UsageError(
        f"{word}: heterogeneous jobs are not supported",
        hint="request the largest part on each node, or submit the parts as jobs of their own",
    )


def slurm_option(name: str, value: str) -> tuple[str, str] | None:
    """Return message and hint for one of Slurm's options on gsub's command line, None if unknown.

    Args:
        name: of the option, ``--gres``.
        value: what was given to it; may be empty.
    """
    reader = _SLURM.get(name)
    if reader is None or not name.startswith("--"):
        return None
    meaning = reader(value or "VALUE")
    if isinstance(meaning, str):
        return f"{name} is an option of Slurm: {meaning}", "see gsub(1) for gsched's options"
    return f"{name} is an option of Slurm, not of gsub", f"use {meaning.gsub}"
