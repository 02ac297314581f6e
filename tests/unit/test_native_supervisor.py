"""The library that runs plain jobs: its build, its version, who may have written it."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gnode.compiling import CompilerError, find_compiler
from gnode.core.task import AcceptedTask
from gnode.daemon import native_build
from gnode.supervisor import native

STRICT = ("-Werror", "-Wconversion", "-Wshadow", "-Wformat=2", "-Wvla")
#: In a process of its own, since a library that was loaded stays.
LOAD = "import sys; from gnode.supervisor import native; print(native.load(sys.argv[1]) or 'used')"


@pytest.fixture
def compiler() -> str:
    found = find_compiler()
    if found is None:
        pytest.skip("no C compiler")
    return found


def loaded(path: Path) -> str:
    """Return what a process says that loads a library."""
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout.strip()


def test_the_compiler_has_nothing_to_say(tmp_path: Path, compiler: str) -> None:
    sources = map(str, native_build.SOURCES.glob("*.c"))
    made = str(tmp_path / "made.so")
    command = [compiler, *sources, *native_build.FLAGS, *STRICT, "-o", made]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")


def test_it_knows_each_field_of_a_task() -> None:
    """A task with a field that it does not know is Python's: so would be all jobs."""
    source = (native_build.SOURCES / "task.c").read_text()
    table = source[source.index("FIELDS[] = {") :].partition("};")[0]
    known = re.findall(r'^ *\{"(\w+)"', table, re.MULTILINE)

    assert known == [field.name for field in dataclasses.fields(AcceptedTask)]


def test_a_build_is_found_again_and_used(tmp_path: Path, compiler: str) -> None:
    built = native_build.build(tmp_path / "cache", compiler)
    inode = built.stat().st_ino

    assert native_build.build(tmp_path / "cache", compiler).stat().st_ino == inode
    assert loaded(built) == "used"
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [built.parent.name]


def test_a_library_that_others_can_write_is_refused(tmp_path: Path, compiler: str) -> None:
    built = native_build.build(tmp_path / "cache", compiler)
    built.chmod(0o777)

    assert "can be written by others" in loaded(built)


def test_a_library_of_another_version_is_refused(tmp_path: Path, compiler: str) -> None:
    other = tmp_path / "other.so"
    text = f"unsigned gsv_abi = {native.ABI + 1}, gsv_server_bytes = 8; int gsv_serve(void) {{}}"
    command = [compiler, "-x", "c", "-", "-shared", "-fPIC", "-w", "-o", str(other)]
    subprocess.run(command, input=text, text=True, timeout=60, check=True)

    assert f"is of another version ({native.ABI + 1}, 8 bytes)" in loaded(other)


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")

    assert "text.so cannot be used" in loaded(tmp_path / "text.so")
    assert "missing.so cannot be used" in loaded(tmp_path / "missing.so")


def test_a_compiler_that_fails_is_no_library(
    tmp_path: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "sources"
    broken.mkdir()
    (broken / "supervisor.c").write_text("this is not C\n")
    monkeypatch.setattr(native_build, "SOURCES", broken)

    assert native_build.library(str(tmp_path)) == ""
    with pytest.raises(CompilerError) as refused:
        native_build.build(tmp_path / "cache", compiler)
    assert "supervisor.c" in str(refused.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_compiler_there_is_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert native_build.library(str(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []
