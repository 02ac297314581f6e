"""The options of sbatch, salloc and srun of Slurm 22.05 to 26.05, and how a command line has them.

Pure. A line of ``#SBATCH`` is read by this table, too: an option that is not in it is a mistake.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gsched.errors import UsageError

NONE: Final = 0
REQUIRED: Final = 1
OPTIONAL: Final = 2  # only behind =, or in one word with the letter
INVALID_DIRECTIVE: Final = "Invalid directive found in batch script"

#: Options of all three commands.
_ALL: Final = """
account/A acctg-freq autocomplete bb bbf begin/b chdir/D cluster cluster-constraint clusters/M
comment consolidate-segments0 constraint/C container container-id container-type context
contiguous0 core-spec/S cores-per-socket cpu-freq cpus-per-gpu cpus-per-task/c deadline delay-boot
dependency/d distribution/m exclude/x exclusive2 extra extra-node-info/B gid gpu-bind gpu-freq
gpus-per-node gpus-per-socket gpus-per-task gpus/G gres gres-flags help/h0 hint hold/H0 job-name/J
licenses/L mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update mincpus
network nice2 no-kill/k2 nodefile/F nodelist/w nodes/N ntasks-per-core ntasks-per-gpu
ntasks-per-node ntasks-per-socket ntasks-per-tres ntasks/n oom-kill-step2 overcommit/O0
oversubscribe/s0 partition/p power prefer priority profile qos/q quiet/Q0 reboot0 reservation
resources resv-ports2 segment signal sockets-per-node spread-job0 spread-segments0 stepmgr0
switches tasks-per-node thread-spec threads-per-core time-min time/t tmp tres-bind tres-per-task
uid usage0 use-min-nodes0 verbose/v0 version/V0 wckey
container-image container-mounts container-workdir workdir licences
"""
_OF: Final[Mapping[str, str]] = {
    "sbatch": """array/a batch error/e export export-file external0 get-user-env2 ignore-pbs0
        input/i kill-on-invalid-dep no-requeue0 open-mode output/o parsable0 propagate2 requeue2
        test-only0 wait-all-nodes wait/W0 wrap""",
    "salloc": """bell0 get-user-env2 immediate/I2 kill-command/K2 no-bell0 no-shell0 wait-all-nodes
        x112""",
    "srun": """accel-bind async0 bcast-exclude bcast2 compress2 cpu-bind cpu_bind debugger-test0
        disable-status/X0 epilog error/e exact0 export external-launcher2 het-group
        ignore-signals immediate/I2 input/i interactive0 jobid kill-on-bad-exit/K2 label/l0
        mpi msg-timeout multi-prog0 no-allocate/Z0 open-mode output/o overlap2 pack-group
        parsable0 preserve-env/E0 prolog propagate2 pty2 quit-on-interrupt0 relative/r
        send-libs2 slurmd-debug task-epilog task-prolog test-only0 threads/T treewidth
        unbuffered/u0 wait-for-children0 wait/W whole0 x112""",
}
#: Of Slurm before 22.05, still in many scripts.
_OLD: Final = frozenset({"workdir", "licences"})


class SlurmOption(NamedTuple):
    """One option: its long name with its dashes, and whether it has a value."""

    name: str
    value: int


class OptionError(UsageError):
    """A word of a command line is no option of the command, or lacks its value."""


class DirectiveError(UsageError):
    """A line of ``#SBATCH`` has a word that is no option, or cannot be split into words."""


class ParsedOptions(NamedTuple):
    """A command line: options in their order, and the operands."""

    options: list[tuple[str, str]]
    operands: tuple[str, ...]


def option_table(text: str) -> dict[str, SlurmOption]:
    """Return options by each of their names and by letter; they are called by the first.

    Args:
        text: of each option names that mean the same with ``=`` between them, before them and ``:``
            how the option is called here, if that differs; after ``/`` the letter, and last ``0``
            where it has no value, ``2`` for an optional one.
    """
    options: dict[str, SlurmOption] = {}
    for word in text.split():
        kind = {"0": NONE, "2": OPTIONAL}.get(word[-1], REQUIRED)
        stated, _, letter = (word if kind == REQUIRED else word[:-1]).partition("/")
        key, _, stated = stated.rpartition(":")
        names = stated.split("=")
        option = SlurmOption(f"--{key or names[0]}", kind)
        options |= {f"--{name}": option for name in names}
        options |= {f"-{letter}": option} if letter else {}
    return options


#: By command: its options by long name and by letter.
OPTIONS: Final[Mapping[str, Mapping[str, SlurmOption]]] = {
    command: option_table(_ALL + own) for command, own in _OF.items()
}


#: A part of a word: in quotation marks, behind a backslash, or one letter.
_PIECE: Final = re.compile(
    r""""((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|\\(\S?)|([^\s#"'\\])""", re.DOTALL
)


def directive_words(text: str) -> list[str]:
    """Return the words of a line of ``#SBATCH``, split as Slurm does, which is not as a shell does.

    A backslash quotes within quotation marks, too, but no blank outside of them; ``#`` outside of
    them ends the line, also within a word; an empty word is none.

    Args:
        text: what follows the mark.

    Raises:
        DirectiveError: a colon begins a word, or a quotation mark lacks its partner.
    """
    words, at, begun = [""], 0, 0
    while at < len(text) and text[at] != "#":
        if text[at].isspace():
            begun = begun if not words[-1] else at
            words.append("")
            at += 1
            continue
        if text[at] == ":" and not words[-1]:
            raise DirectiveError(f"Unexpected `:` in [{text[begun:]}]")
        piece = _PIECE.match(text, at)
        if piece is None:
            raise DirectiveError(f"Unmatched `{text[at]}` in [{text[begun:]}]")
        quoted = re.sub(r"\\(.)", r"\1", piece[1] or piece[2] or "")
        words[-1] += quoted or piece[3] or piece[4] or ""
        at = piece.end()
    return [word for word in words if word]


def directive_options(text: str) -> list[tuple[str, str]]:
    """Return the options of a line of ``#SBATCH``, by their long names.

    Raises:
        OptionError: an option is unknown, or lacks its value.
        DirectiveError: a word is no option.
    """
    read = parse(directive_words(text), OPTIONS["sbatch"])
    if read.operands:
        raise DirectiveError(f"{INVALID_DIRECTIVE}: {read.operands[0]}")
    return read.options


def parse(
    words: Sequence[str], options: Mapping[str, SlurmOption], *, ends: bool = True
) -> ParsedOptions:
    """Return what a command line says, as GNU getopt reads it: names may be cut short.

    Args:
        words: without the command's name.
        options: by long name and by letter.
        ends: the first operand ends the options, as of sbatch and srun.

    Raises:
        OptionError: in the words of getopt.
    """
    stated: list[tuple[str, str]] = []
    operands: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            operands += rest
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
            if ends:
                operands += rest
                break
        elif word.startswith("--"):
            stated.append(_long(word, rest, options))
        else:
            stated += _letters(word, rest, options)
    return ParsedOptions(stated, tuple(operands))


def _long(word: str, rest: list[str], options: Mapping[str, SlurmOption]) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    option = options.get(name) or _begun(name, word, options)
    if option.value == NONE and equals:
        raise OptionError(f"option '{option.name}' doesn't allow an argument")
    if option.value == REQUIRED and not equals:
        if not rest:
            raise OptionError(f"option '{option.name}' requires an argument")
        value = rest.pop(0)
    return option.name, value


def _begun(name: str, word: str, options: Mapping[str, SlurmOption]) -> SlurmOption:
    """Return the option whose name begins so.

    Raises:
        OptionError: none does, or several do.
    """
    names = sorted(
        {
            each.name
            for written, each in options.items()
            if written.startswith(name) and each.name[2:] not in _OLD
        }
    )
    if not names:
        raise OptionError(f"unrecognized option '{word}'")
    if len(names) > 1:
        listed = " ".join(f"'{each}'" for each in names)
        raise OptionError(f"option '{word}' is ambiguous; possibilities: {listed}")
    return options[names[0]]


def _letters(
    word: str, rest: list[str], options: Mapping[str, SlurmOption]
) -> list[tuple[str, str]]:
    """Return the options of ``-hn`` or ``-n4``; the last one may have a value."""
    found = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = options.get(f"-{letter}")
        if option is None:
            raise OptionError(f"invalid option -- '{letter}'")
        if option.value == NONE:
            found.append((option.name, ""))
            continue
        if option.value == REQUIRED and not letters:
            if not rest:
                raise OptionError(f"option requires an argument -- '{letter}'")
            letters = rest.pop(0)
        found.append((option.name, letters.removeprefix("=") if letters[:1] == "=" else letters))
        break
    return found
