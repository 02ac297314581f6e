"""The scan for directives follows POSIX qsub and Torque."""

import pytest

from gsched.cli.submit.directives import DEFAULT_PREFIXES, prefixes_for, scan, split_words
from gsched.errors import BadScriptError


def words(script: str, prefixes: tuple[str, ...] = DEFAULT_PREFIXES) -> list[tuple[int, list[str]]]:
    found = scan(script, prefixes=prefixes, where="s.sh")
    return [(each.line, each.words) for each in found.directives]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("#!/bin/sh\n#PBS -N a\necho\n", [(2, ["-N", "a"])]),
        ("#PBS -N a\necho\n", [(1, ["-N", "a"])]),
        (":\n#PBS -N a\n", [(2, ["-N", "a"])]),
        ("\n# text\n   \n  #PBS -j oe\n", [(4, ["-j", "oe"])]),
        ("#GSUB --gpus 2\n#PBS -h\n", [(1, ["--gpus", "2"]), (2, ["-h"])]),
        ("#PBS -l a=1 \\\n#PBS -l b=2\necho\n", [(1, ["-l", "a=1", "-l", "b=2"])]),
        ("#PBS -N 'a b'\n", [(1, ["-N", "a b"])]),
        ("#PBS -N a # the name\n", [(1, ["-N", "a"])]),
        ("#PBS -N a#1\n", [(1, ["-N", "a#1"])]),
        ("# PBS -N a\n", []),
        ("#PBSX -N a\n", []),
        ("#PBS-h\n", [(1, ["-h"])]),
        ("#!/bin/sh #PBS -h\necho\n", []),
    ],
)
def test_directives_are_found_with_their_lines(
    script: str, expected: list[tuple[int, list[str]]]
) -> None:
    assert words(script) == expected


def test_the_first_command_ends_the_scan_and_a_later_directive_is_told() -> None:
    found = scan("#PBS -h\necho\n#PBS -N late\n", prefixes=DEFAULT_PREFIXES, where="s")

    assert [each.words for each in found.directives] == [["-h"]]
    assert found.late_line == 3


def test_a_comment_that_only_mentions_the_prefix_is_not_called_late() -> None:
    assert scan("echo\n#PBS is great\n", prefixes=DEFAULT_PREFIXES, where="s").late_line == 0


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        (None, "", ("#PBS", "#GSUB", "#GSCHED")),
        (None, "#X", ("#X",)),
        ("#Y", "#X", ("#Y",)),
        ("", "#X", ()),
    ],
)
def test_the_option_beats_the_variable_and_an_empty_one_ends_scanning(
    option: str | None, variable: str, expected: tuple[str, ...]
) -> None:
    assert prefixes_for(option, variable) == expected


def test_no_prefix_finds_nothing() -> None:
    assert words("#PBS -h\n", ()) == []


def test_a_missing_quotation_mark_is_refused_with_file_and_line() -> None:
    with pytest.raises(BadScriptError, match=r"s\.sh:7: .*no closing quotation") as caught:
        split_words("-N 'a", where="s.sh:7")

    assert caught.value.exit_code == 65
