"""The structure of the product gets no worse, and what measures it can find what it is for."""

from pathlib import Path

import msgspec

from scripts.reproduce.house_code import Module, Target, back_arrows, circles, read_product
from scripts.reproduce.house_main import (
    LIMITS,
    LINES,
    ROOT,
    banned_names,
    exceeded,
    homonyms,
    lowered,
    measured,
)
from scripts.reproduce.house_walk import walk

SUBMIT = """
from gschedd.core.check import checked, LIMIT
from gschedd.core.words import words

def prepare(request):
    value = checked(request)
    return _shown(words(value), LIMIT)

def _shown(text, limit):
    return text[:limit]
"""
CHECK = """
from gschedd.core.words import words

LIMIT = 3

def checked(request):
    return words(request)
"""
WORDS = """
def words(value):
    return str(value)
"""


def modules_of(tree: Path, **texts: str) -> dict[str, Module]:
    """Return the modules of a product of a few files in its core."""
    core = tree / "gschedd" / "core"
    core.mkdir(parents=True)
    for name, text in texts.items():
        (core / f"{name}.py").write_text(text)
    return read_product(tree)


def edges_of(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return what each module imports."""
    return {name: each.imports for name, each in modules.items()}


def test_no_measure_is_above_its_limit() -> None:
    limits = msgspec.json.decode(LIMITS.read_bytes(), type=dict[str, int])

    assert exceeded(measured(read_product(ROOT)), limits) == []


def test_a_late_import_closes_a_circle(tmp_path: Path) -> None:
    late = "def f():\n    from gschedd.core import low\n"
    modules = modules_of(tmp_path, low="from gschedd.core.high import f\n", high=late)

    assert circles(edges_of(modules)) == [["gschedd.core.high", "gschedd.core.low"]]


def test_an_import_for_types_runs_against_the_rooms(tmp_path: Path) -> None:
    typed = "if TYPE_CHECKING:\n    from gschedd.core.high import f\n"
    modules = modules_of(tmp_path, low=typed, high="def f(): ...\n")
    rooms = ["gschedd.core.high", "gschedd.core.low"]

    assert list(back_arrows(edges_of(modules), rooms)) == ["gschedd.core.low -> gschedd.core.high"]
    assert list(back_arrows(edges_of(modules), rooms[::-1])) == []


def test_a_reader_looks_up_what_is_in_other_files_once(tmp_path: Path) -> None:
    modules = modules_of(tmp_path, submit=SUBMIT, check=CHECK, words=WORDS)

    found = walk(modules, Target("gschedd.core.submit", "prepare"))

    names = [each.rpartition(".")[2] for each in found.stays]
    assert names == ["submit", "check", "submit", "words", "submit", "check", "submit"]
    assert (found.files, found.returns) == (3, 4)


def test_a_reader_reads_a_function_of_another_file_that_is_named(tmp_path: Path) -> None:
    modules = modules_of(tmp_path, submit=SUBMIT, check=CHECK, words=WORDS)
    prepare = Target("gschedd.core.submit", "prepare")

    found = walk(modules, prepare, Target("gschedd.core.check", "checked"))

    names = [each.rpartition(".")[2] for each in found.stays]
    assert names == ["submit", "check", "words", "check", "submit", "check", "submit"]


def test_names_are_counted(tmp_path: Path) -> None:
    modules = modules_of(
        tmp_path,
        one="class Told: ...\ndef f(asked_s): ...\n",
        two="class Told: ...\nbasket = unasked = 1\n",
    )

    assert homonyms(modules) == ["Told: gschedd.core.one, gschedd.core.two"]
    assert banned_names(modules) == [
        "gschedd.core.one: Told",
        "gschedd.core.one: asked_s",
        "gschedd.core.two: Told",
    ]


def test_limits_only_fall() -> None:
    limits = {"circles": 3, LINES: 2_000}

    assert lowered({"circles": 2, LINES: 1_100}, limits) == {"circles": 2, LINES: 2_000}
    assert lowered({"circles": 4, LINES: 400}, limits) == {"circles": 3, LINES: 1_000}
    assert exceeded({"circles": 4, LINES: 2_000}, limits) == ["circles: 4, the limit is 3"]
