"""Each command in the guides exists with its options; other commands are listed here, with why.

The guides for newcomers run whole in tests/cli/test_guides.py, installation and restore in
tests/system.
"""

import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
#: What guides run beside gsched's commands, and where it is run; each is in a guide.
OTHERS = {
    "python3": "tests/system/test_installation.py",
    "pip": "tests/system/test_installation.py",
    "runuser": "tests/system/test_installation.py",
    "systemctl": "tests/system/test_installation.py, tests/system/test_restored.py",
    "scripts/install": "tests/system/test_installation.py",
    "scripts/package": "scripts/package-test",
    "apt-get": "scripts/package-test",
    "scripts/demo": ".ci/run",
    "scripts/test": ".ci/run",
    "curl": "tests/system/test_http_requests.py",
    "torchrun": "tests/docs/test_training_guide.py",
    "python": "tests/system/test_elastic_package.py",
    "cat": "tests/cli/test_guides.py",
    "echo": "tests/cli/test_guides.py",
    ".": "tests/system/test_installation.py",
    "export": "tests/system/test_installation.py",
    "grep": "a line of text",
}
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"<<'(\w+)'\n.*?^\1$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command in the shell blocks of a guide."""
    for block in _BLOCK.findall(text):
        if block.lstrip().startswith("#!"):
            continue  # a program, such as a job's script
        script = _HERE.sub("<<", block).replace("\\\n", " ")
        typed = [line[2:] for line in script.splitlines() if line.startswith("$ ")]
        for line in typed or script.splitlines():
            yield from _simple(re.sub(r"^(eval|\w+=)? ?\"?\$\(|\)\"", "", line.strip()))


def _simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word[0] in "<>":
            break  # a file, or a script that follows
        if set(word) <= set("|&;()"):
            yield from [words] if words else []
            words = []
        else:
            words.append(word)
    yield from [words] if words else []


ALL = [
    pytest.param(words, id=f"{path.name}: {' '.join(words)}"[:100])
    for path in GUIDES
    for words in commands(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("words", ALL)
def test_a_command_of_a_guide_is_known_with_its_options(words: list[str]) -> None:
    while re.fullmatch(r"\w+=.*", words[0]) and len(words) > 1:
        words = words[1:]
    name = words[0] if words[0] in OTHERS else words[0].rpartition("/")[2]
    if name not in PROGRAMS:
        assert name in OTHERS, f"{name} is run by no test: add it to OTHERS with where it is run"
        return
    program = importlib.import_module(PROGRAMS[name].partition(":")[0])
    command = getattr(program, name.replace("-", "_"), None)
    if not isinstance(command, click.Command):
        return  # a daemon
    arguments = [word for word in words[1:] if word != "..."]
    if isinstance(command, click.Group) and arguments:
        context = command.make_context(name, [], resilient_parsing=True)
        found = command.get_command(context, arguments[0])
        assert found is not None, arguments[0]
        command, arguments = found, arguments[1:]
    command.make_context(name, arguments)


def test_each_other_command_is_in_a_guide() -> None:
    used = {words[0] for path in GUIDES for words in commands(path.read_text(encoding="utf-8"))}
    used |= {word.rpartition("/")[2] for word in used}

    assert set(OTHERS) - used == set()
