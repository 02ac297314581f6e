"""gsub's help has its options in groups."""

import re
from collections import Counter
from itertools import chain

import click
from click.testing import CliRunner

from gsched.cli.commands.gsub import gsub
from gsched.cli.submit.rows import SECTIONS


def test_help_shows_every_option_once() -> None:
    """Those of all commands, too."""
    shown = CliRunner().invoke(gsub, ["--help"]).output

    assert "\n  [SCRIPT" not in shown, "operands are in the first line only"
    for heading in SECTIONS:
        assert f"\n{heading}:\n" in shown
    lists = re.findall(r"^  (-[^\s,]+(?:, -[^\s,]+)*)", shown, re.MULTILINE)
    written = Counter(chain.from_iterable(names.split(", ") for names in lists))
    options = [
        each
        for each in gsub.get_params(click.Context(gsub))
        if isinstance(each, click.Option) and not each.hidden
    ]
    assert written == Counter(chain.from_iterable(each.opts for each in options))
