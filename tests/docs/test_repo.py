"""The repository keeps its own rules, and the rules can be broken."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import check_docs, tidy

ROOT = Path(__file__).resolve().parents[2]
SUPPRESS = "no" + "qa"
REMINDER = "TO" + "DO"
PYTHON = b"#!/usr/bin/env python3\n"


def test_repository_is_tidy() -> None:
    """Each fault is a line that says where and what."""
    assert tidy.check(ROOT) == []


def test_documentation_is_sound() -> None:
    """Links lead somewhere, manual pages convert, decisions have all their sections."""
    assert check_docs.check(ROOT) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small repository that is tidy."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".importlinter").write_text(
        "[importlinter:contract:policies-apart]\nmodules =\n    gschedd.policies.queue.fifo\n"
    )
    for folder in ("gschedd/policies/queue", "changelog.d", "docs/adr", "man"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "gschedd/policies/queue/fifo.py").write_text('"""First come."""\n')
    (tmp_path / "docs/users-guide.md").write_text("# Guide\n\nThe policy `fifo`.\n")
    (tmp_path / "changelog.d/1.feature.md").write_text("Jobs can be submitted.\n")
    assert tidy.check(tmp_path) == []
    assert check_docs.check(tmp_path) == []
    return tmp_path


def write(path: str, text: str) -> Callable[[Path], None]:
    """Return what writes a file into a tree."""

    def act(tree: Path) -> None:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8")

    return act


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (write("a.py", "x = 1\n" * 601), "601 lines"),
        (write("data.bin", "x" * 200_001), "200,001 bytes"),
        (write("train.sh.o12", ""), "the output of a job"),
        (write("gsched/helpers.py", "x = 1\n"), "a module name that says nothing"),
        (write("utils/a.py", "x = 1\n"), "a module name that says nothing"),
        (write("a.py", "if x:\n\ty = 1\n"), "a.py:2: a tab"),
        (write("a.py", "x = 1 \n"), "blanks at the end"),
        (write("a.py", f"# {REMINDER}: later\n"), "a reminder without a number"),
        (write("a.py", f"x = 1  # {SUPPRESS}\n"), "noqa needs codes and a reason"),
        (write("a.py", f"x = 1  # {SUPPRESS}: E501\n"), "noqa needs codes and a reason"),
        (write("a.py", "x = 1  # type" + ": ignore\n"), "type: ignore needs a code"),
        (write("a.py", "x = 1  # type" + ": ignore[misc]\n"), "type: ignore needs a code"),
        (write("a.md", "see /ho" + "me/carol/gsched\n"), "one machine only"),
        (write("a.md", "from https://pypi" + ".org/simple\n"), "package registry"),
        (write("a.md", "All trainings.\n"), "a.md:1: 'trainings'"),
        (write("a.md", "```\nx\n```\nJobs go on\nelsewhere.\n"), "a.md:4: 'go on"),
        (write("man/a.rst", "A promised deadline.\n"), "write 'guarantee'"),
        (write("gsched/a.py", '"""Be done by then."""\n'), "write 'meet its deadline'"),
        (write("changelog.d/new.md", "A thing.\n"), "name it NUMBER"),
        (write("changelog.d/2.fix.md", "- a list\n"), "one paragraph for the user"),
        (write("baselines/edf.py", '"""Deadlines."""\n'), "policy edf is not in"),
        (
            write("baselines/edf.py", '"""Deadlines."""\n'),
            "policy `edf` is not described",
        ),
    ],
)
def test_tidy_finds(tree: Path, spoil: Callable[[Path], None], complaint: str) -> None:
    """Each rule, broken once, is reported."""
    spoil(tree)

    assert any(complaint in fault for fault in tidy.check(tree)), tidy.check(tree)


@pytest.mark.parametrize(
    "text",
    [
        f"x = 1  # {SUPPRESS}: E501 - a table\n",
        f"x = 1  # {SUPPRESS}: E501, S101  # a table\n",
        "x = 1  # type" + ": ignore[misc]  # the library lies\n",
        f"# {REMINDER}(#12): later\n",
        "see /home/alice/train.py\n",
        "# Job's story, not a document\n",
        "x = 1\n" * 450 + '"""A long story."""\n' * 200,
    ],
)
def test_tidy_lets_pass(tree: Path, text: str) -> None:
    """What has its code, its reason or its number is fine."""
    write("a.py", text)(tree)

    assert tidy.check(tree) == []


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (write("README.md", "see [this](nowhere.md)\n"), "no such file"),
        (write("README.md", "see [this](docs/users-guide.md#nothing)\n"), "no such heading"),
        (write("docs/adr/1-x.md", "# X\n\nStatus: accepted\n"), "name it NNNN-title.md"),
        (write("docs/adr/0001-x.md", "# X\n\nStatus: accepted\n"), "'Decision' is missing"),
        (write("docs/adr/0001-x.md", "# X\n" + "\n" * 100), "longer than a page"),
        (write("man/gx.1.rst", "==\ngx\n==\n\n*broken\n"), "Inline emphasis"),
        (write("man/gx.1.rst", "==\ngx\n==\n\nNAME\n====\n\ngx\n"), "SYNOPSIS is missing"),
    ],
)
def test_documentation_check_finds(
    tree: Path, spoil: Callable[[Path], None], complaint: str
) -> None:
    """Each rule, broken once, is reported."""
    spoil(tree)

    assert any(complaint in fault for fault in check_docs.check(tree)), check_docs.check(tree)


@pytest.mark.parametrize("name", ["test", "demo", "lib/setup.sh"])
def test_shell_scripts_parse(name: str) -> None:
    """Bash reads them to the end."""
    subprocess.run(["bash", "-n", str(ROOT / "scripts" / name)], check=True)


def test_programs_without_a_suffix_are_linted_and_typed() -> None:
    """Nobody else sees that a module they import has moved: most of them no test runs."""
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "scripts").rglob("*")
        if path.is_file() and not path.suffix and path.read_bytes().startswith(PYTHON)
    }
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]

    assert set(tools["ruff"]["extend-include"]) == found
    # those of scripts/bench import the modules beside them by their bare names
    typed = {name for name in found if not name.startswith("scripts/bench/")}
    assert set(tools["mypy"]["files"]) >= typed


def test_import_contracts_hold() -> None:
    """The contracts of .importlinter are kept by the code as it is."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_protocol_page_lists_every_route() -> None:
    """And no route that is not there."""
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "gschedd").rglob("*.py"))
    routes = re.findall(r"\b(?:web\.|add_)(get|post)\(\s*r?\"(/[^\"]*)\"", code)
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(GET|POST) (/[^`?]*)", page)

    assert {(method, path.replace("ID", "{id}")) for method, path in listed} == {
        (method.upper(), path) for method, path in routes
    }
