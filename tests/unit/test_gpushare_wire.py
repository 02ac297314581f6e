"""What the token daemon and the library in C agree on, and the page that only one may write."""

import mmap
import os
import re
from pathlib import Path

import pytest

from gnode.gpushare import wire
from gnode.gpushare.build import NATIVE, build, digest, symbol_table
from gnode.gpushare.gate import PAGE_BYTES, GatePage
from gnode.gpushare.wire import BadMessageError, Message, MessageKind

HEADER = (NATIVE / "gpushare.h").read_text(encoding="ascii")


def constant(name: str) -> int:
    """Return the number that the header defines."""
    found = re.search(rf"^#define {name} ([0-9]+)u?\b", HEADER, re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def test_the_header_in_c_has_the_same_numbers() -> None:
    kinds = {
        name: int(value)
        for name, value in re.findall(r"^    GS_(\w+) = (\d+),", HEADER, re.MULTILINE)
    }

    assert {kind.name: kind.value for kind in MessageKind} == {
        name: value for name, value in kinds.items() if not name.startswith("KIND")
    }
    assert constant("GS_WIRE_VERSION") == wire.VERSION
    assert constant("GS_CLAIM_HELD") == wire.CLAIM_HELD
    assert constant("GS_FORCED") == wire.FORCED
    assert constant("GS_CHANNEL_MEMORY") == wire.CHANNEL_MEMORY
    assert f"sizeof(struct gs_message) == {wire.MESSAGE_BYTES}" in HEADER


def test_a_message_comes_back_as_it_was() -> None:
    message = Message(
        kind=MessageKind.HELLO, flags=1, pid=2, client=3, seq=4, epoch=5, a=6, b=7, c=8
    )

    assert wire.unpack(wire.pack(message) + b"secret") == (message, b"secret")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes"),
        (b"\2\0\1\0" + b"\0" * 59, "63 bytes"),
        (b"\xff\0\1\0" + b"\0" * 60, "version 255"),
        (b"\0\0\1\0" + b"\0" * 60, "version 0"),
        (b"\2\0\x63\0" + b"\0" * 60, "unknown kind 99"),
    ],
)
def test_bytes_that_are_not_a_message_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadMessageError, match=words):
        wire.unpack(data)


def test_nobody_but_the_daemon_can_write_a_gate() -> None:
    """Neither by a mapping nor by a write nor by another size, although the file is handed out."""
    page = GatePage()
    page.open(7)
    handed = os.dup(page.descriptor)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(handed, PAGE_BYTES)
        with pytest.raises(PermissionError):
            os.write(handed, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(handed, 0)
        with mmap.mmap(handed, PAGE_BYTES, prot=mmap.PROT_READ) as seen:
            words = memoryview(seen).cast("I")
            assert words[:4].tolist() == [1, 7, 0, 7 << 1 | 1], "two for version 1, then two more"
            page.set_window(4)
            page.shut()
            assert words[:4].tolist() == [0, 7, 4, 7 << 1]
            words.release()
    finally:
        os.close(handed)
        page.close()


def test_a_hook_that_the_driver_does_not_export_is_refused() -> None:
    with pytest.raises(ValueError, match="cuNothing"):
        symbol_table(["cuInit cuInit 2000 -"], ["cuNothing"])


def test_the_table_knows_hooks_and_streams() -> None:
    lines = ["# comment", "cuInit cuInit 2000 -", "cuLaunchKernel_ptsz cuLaunchKernel 7000 _ptsz"]

    assert symbol_table(lines, ["cuLaunchKernel_ptsz"]).splitlines() == [
        'GS_SYMBOL(0, cuInit, "cuInit", 2000, 0, FORWARD)',
        'GS_SYMBOL(1, cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 2, HOOK)',
    ]


def test_another_source_compiler_or_flag_is_another_build(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;")
    first = digest("cc", "cc 12.2", ("-O2",), tmp_path)

    assert digest("cc", "cc 12.2", ("-O2",), tmp_path) == first
    assert digest("gcc", "cc 12.2", ("-O2",), tmp_path) != first
    assert digest("cc", "cc 13.1", ("-O2",), tmp_path) != first
    assert digest("cc", "cc 12.2", ("-O1",), tmp_path) != first
    (tmp_path / "a.c").write_text("int b;")
    assert digest("cc", "cc 12.2", ("-O2",), tmp_path) != first


def test_an_upgraded_compiler_at_the_same_path_compiles_again(tmp_path: Path) -> None:
    """And what an interrupted build has left is removed, if it is old."""
    compiler = tmp_path / "cc"

    def install(version: str) -> None:
        compiler.write_text(
            f'#!/bin/sh\ncase "$1" in --version) echo "cc {version}"; exit;; esac\n'
            'while [ "$1" != -o ]; do shift; done\n: > "$2"\n'
        )
        compiler.chmod(0o755)

    cache = tmp_path / "lib"
    old, young = cache / "build-old", cache / "build-young"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (0, 0))
    install("12.2")
    first = build(cache, str(compiler))
    assert build(cache, str(compiler)) == first

    install("13.1")

    assert build(cache, str(compiler)) != first
    assert (old.exists(), young.exists()) == (False, True)
