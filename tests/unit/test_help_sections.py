"""gsub's help has its options in groups."""

import re
from collections import Counter
from itertools import chain

import click
from click.testing import CliRunner

from gsched.cli.commands.gsub import gsub
from gsched.cli.submit.help_sections import OTHERS, SECTIONS


def test_each_option_stands_below_one_heading() -> None:
    """A new option has to be given its place."""
    options = [
        each for each in gsub.get_params(click.Context(gsub)) if isinstance(each, click.Option)
    ]
    named = Counter(chain.from_iterable(SECTIONS.values()))
    names = set(chain.from_iterable(each.opts for each in options))

    assert set(named) <= names
    for option in options:
        assert sum(named[name] for name in option.opts) == 1, option.opts


def test_help_shows_every_option_once() -> None:
    """Also those that no heading names would be shown."""
    shown = CliRunner().invoke(gsub, ["--help"]).output

    assert OTHERS not in shown
    for heading in SECTIONS:
        assert f"\n{heading}:\n" in shown
    lists = re.findall(r"^  (-[^\s,]+(?:, -[^\s,]+)*)", shown, re.MULTILINE)
    written = Counter(chain.from_iterable(names.split(", ") for names in lists))
    options = [
        each for each in gsub.get_params(click.Context(gsub)) if isinstance(each, click.Option)
    ]
    assert written == Counter(chain.from_iterable(each.opts for each in options))
