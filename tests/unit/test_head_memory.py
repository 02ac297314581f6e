"""What the head's process takes back from the C library."""

import os
import subprocess
import sys

import pytest

#: Buffers of TLS connections, with pieces that last between them, freed all at once.
PROGRAM = """
from pathlib import Path
from gschedd.daemon.setup import tune_interpreter

def rss_bytes():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
    return int(line.split()[1]) * 1024

if {tuned}:
    tune_interpreter()
one = bytearray(300_000)
del one
before, buffers, lasting = rss_bytes(), [], []
for number in range(100):
    buffers.append(bytearray(300_000))
    buffers[-1][::4096] = buffers[-1][::4096].replace(b"\\0", b"x")  # each page is used
    lasting.append(b"y" * (20_000 + number))
buffers.clear()
print(rss_bytes() - before)
"""


def grown_bytes(*, tuned: bool) -> int:
    words = [sys.executable, "-c", PROGRAM.format(tuned=tuned)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="no glibc")
def test_the_buffers_of_connections_that_ended_go_back_to_the_system() -> None:
    assert grown_bytes(tuned=False) > 20_000_000, "else this test shows nothing"
    assert grown_bytes(tuned=True) < 5_000_000
