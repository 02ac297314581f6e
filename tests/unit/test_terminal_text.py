"""Texts of jobs on a terminal: nothing in them acts on it, and colours and progress bars stay."""

import io

import pytest

from gsched.cli.terminal_text import TerminalOut, escaped
from gschedd.http.outputs import message_line


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"plain\n\ttext \xc3\xa9 \xe2\x82\xac\n", b"plain\n\ttext \xc3\xa9 \xe2\x82\xac\n"),
        (b"\r 50%|##  |\b\b", b"\r 50%|##  |\b\b"),
        (b"\x1b[1;31mred\x1b[0m\x1b[m", b"\x1b[1;31mred\x1b[0m\x1b[m"),
        (b"\x1b]0;title\x07", b"\\x1b]0;title\\x07"),
        (b"\x1b[2J\x1b[6n\x1bc", b"\\x1b[2J\\x1b[6n\\x1bc"),
        (b"\xc2\x9b2J\x7f\0", b"\\x9b2J\\x7f\\x00"),
    ],
)
def test_what_could_act_on_a_terminal_is_shown(written: bytes, shown: bytes) -> None:
    assert escaped(written) == shown
    for size in (1, 2, 3):
        out = io.BytesIO()
        terminal = TerminalOut(out)
        for at in range(0, len(written), size):
            terminal.write(written[at : at + size])
        terminal.close()
        assert out.getvalue() == shown, f"in pieces of {size}"


def test_a_message_brings_no_escapes_into_a_users_file() -> None:
    assert message_line("stop\n\tsoon: é \x1b]0;x\x07") == (
        b"stop\n\tsoon: \xc3\xa9 \\x1b]0;x\\x07\n"
    )
