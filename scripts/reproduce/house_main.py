"""Measures the structure of the product, and keeps it from getting worse.

`house.json` holds the limit of each measure, which is what was reached when it was recorded last.
`--check` ends with 1 if a measure is above its limit; `--record` lowers the limits. A limit that is
to rise is raised in that file by hand, with the reason in the commit's message.
"""

import argparse
import configparser
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scripts import tidy
from scripts.reproduce.house_code import Module, Target, back_arrows, circles, read_product
from scripts.reproduce.house_walk import walk

ROOT: Final = Path(__file__).resolve().parents[2]
LIMITS: Final = Path(__file__).with_name("house.json")
EXCEEDED: Final = 1
#: The limit of lines is so many above what is reached, rounded: a limit for each line would
#: forbid each feature.
LINE_STEP: Final = 1_000
#: Verbs of speech and the like, which say nothing of what a name holds.
BANNED_WORDS: Final = frozenset({"said", "told", "heard", "asked"})
STAGES: Final = {
    "make_job": (Target("gsched.cli.submit.submission", "make_job"),),
    "prepare": (Target("gschedd.core.requests.submit", "prepare"),),
    "launch": (Target("gnode.core.orders", "launch"), Target("gnode.core.binding", "bind")),
}
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


class Measure(NamedTuple):
    """One measure of the product.

    Attributes:
        name: of its limit, and for ``--list``.
        what: in words.
        aim: the value that is wanted.
        found: what is counted, a line each.
    """

    name: str
    what: str
    aim: int
    found: Callable[[Mapping[str, Module]], list[str]]


def backward(modules: Mapping[str, Module]) -> list[str]:
    """Return the imports of the core that run against the order of its rooms."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    contract = parser["importlinter:contract:core-rooms"]
    core = contract["containers"].strip()
    rooms = [f"{core}.{room}" for room in contract["layers"].split()]
    return sorted(back_arrows({name: each.imports for name, each in modules.items()}, rooms))


def circular(modules: Mapping[str, Module]) -> list[str]:
    """Return the modules in circles of imports, late ones and those for types counted."""
    edges = {name: sorted(each.imports) for name, each in modules.items()}
    groups = circles(edges)
    return [f"{name}: {' <-> '.join(group)}" for group in groups for name in group]


def homonyms(modules: Mapping[str, Module]) -> list[str]:
    """Return the names of classes that have two or more definitions."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for name in module.classes:
            places[name].append(module.name)
    return [
        f"{name}: {', '.join(places[name])}" for name in sorted(places) if len(places[name]) > 1
    ]


def returns(stage: str) -> Callable[[Mapping[str, Module]], list[str]]:
    """Return a function that yields the visits to files that were left before, of a stage."""

    def found(modules: Mapping[str, Module]) -> list[str]:
        stays = walk(modules, *STAGES[stage]).stays
        return [each for number, each in enumerate(stays) if each in stays[:number]]

    return found


def banned_names(modules: Mapping[str, Module]) -> list[str]:
    """Return the names that hold a banned word, once for each module."""
    return [
        f"{module.name}: {name}"
        for module in modules.values()
        for name in sorted(module.names)
        if BANNED_WORDS & {word.lower() for word in _WORD.findall(name)}
    ]


MEASURES: Final = (
    Measure("back_arrows", "imports of the core against its order of rooms", 0, backward),
    Measure("circles", "modules in circles of imports, late ones counted", 0, circular),
    Measure("homonyms", "names of classes with two or more definitions", 40, homonyms),
    Measure("make_job_returns", "returns in make_job (gsub)", 8, returns("make_job")),
    Measure("prepare_returns", "returns in prepare (head)", 15, returns("prepare")),
    Measure("launch_returns", "returns in launch (node)", 8, returns("launch")),
    Measure("banned_names", "names with a banned word, by module", 0, banned_names),
    Measure(
        "phrases_in_code",
        "phrases that documents lost and code has",
        0,
        lambda _: sorted(tidy.PHRASES_IN_CODE),
    ),
)
LINES: Final = "product_lines"
LINES_AIM: Final = 96_000


def measured(modules: Mapping[str, Module]) -> dict[str, int]:
    """Return the value of each measure by name."""
    values = {each.name: len(each.found(modules)) for each in MEASURES}
    return values | {LINES: sum(module.lines for module in modules.values())}


def exceeded(values: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """Return which measures are above their limits, in words."""
    return [
        f"{name}: {value:,}, the limit is {limits[name]:,}"
        for name, value in values.items()
        if value > limits[name]
    ]


def lowered(values: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Return the limits, lowered to what is reached; lines are rounded up."""
    reached = dict(values) | {LINES: -(-values[LINES] // LINE_STEP) * LINE_STEP}
    return {name: min(value, limits.get(name, value)) for name, value in reached.items()}


def main() -> int:
    """Print, list, check or record; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--check", action="store_true", help="end with 1 above a limit")
    wanted.add_argument("--record", action="store_true", help="lower the limits")
    names = [each.name for each in MEASURES]
    wanted.add_argument("--list", choices=names, metavar="MEASURE", help=f"of {', '.join(names)}")
    options = parser.parse_args()
    modules = read_product(ROOT)
    if options.list:
        print("\n".join(next(m for m in MEASURES if m.name == options.list).found(modules)))
        return 0
    values = measured(modules)
    limits = msgspec.json.decode(LIMITS.read_bytes(), type=dict[str, int])
    if options.record:
        LIMITS.write_bytes(
            msgspec.json.format(msgspec.json.encode(lowered(values, limits))) + b"\n"
        )
        return 0
    if options.check:
        faults = exceeded(values, limits)
        print("\n".join(faults) or "house: each measure is within its limit")
        return EXCEEDED if faults else 0
    print(f"{'':<49}{'now':>9}{'limit':>9}{'aim':>9}")
    rows = [(each.name, each.what, each.aim) for each in MEASURES]
    for name, what, aim in (*rows, (LINES, "lines of the product", LINES_AIM)):
        print(f"{what:<49}{values[name]:>9,}{limits[name]:>9,}{aim:>9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
