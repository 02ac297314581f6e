"""What gsub says of options that it does not have; imported only where there is such an option."""

import os
import shlex
from collections.abc import Sequence

from gsched.cli.submit.foreign import slurm_option
from gsched.cli.submit.readers import find_program
from gsched.config.environment import environment
from gsched.errors import UsageError


def refusal_of(name: str, words: Sequence[str], operand: str) -> UsageError | None:
    """Return why an option is refused and what to do, or None if it just does not exist.

    Args:
        name: of the option.
        words: of the command line or the directive.
        operand: the first word that is not an option or its value; empty if there is none.
    """
    at = words.index(operand) if operand in words else len(words)
    if operand and names_command(operand) and name in _names(words[at:]):
        return command_without_dashes(words, operand)
    slurm = slurm_option(name, _value_of(name, words))
    if slurm is not None:
        return UsageError(slurm[0], hint=slurm[1])
    if operand and name in _names(words[at:]):
        behind = [operand, "--", *words[at + 1 :]]
        return UsageError(
            f"{name} is not an option of gsub",
            hint=f"if it belongs to the script, write: {_shown([*words[:at], *behind])}",
        )
    return None


def command_without_dashes(words: Sequence[str], operand: str) -> UsageError:
    """Return the refusal of a command line that names a program where a script belongs."""
    at = words.index(operand)
    return UsageError(
        f"{operand!r} looks like a command, not a batch script",
        hint=f"write: {_shown([*words[:at], '--', *words[at:]])}",
    )


def names_command(word: str) -> bool:
    """Return whether a word is a program on the user's PATH, and no file here."""
    return not os.path.exists(word) and bool(find_program(word, environment("PATH")))


def _names(words: Sequence[str]) -> set[str]:
    """Return the options among words: ``--lr=1`` is ``--lr``, and ``-xy`` is ``-x``."""
    return {
        word.partition("=")[0] if word.startswith("--") else word[:2]
        for word in words
        if word.startswith("-")
    }


def _value_of(name: str, words: Sequence[str]) -> str:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name:
            return "" if following.startswith("-") else following
    return ""


def _shown(words: Sequence[str]) -> str:
    return f"gsub {shlex.join(words)}"
