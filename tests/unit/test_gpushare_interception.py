"""What is missing for interception on a machine, in words."""

import os
from pathlib import Path

import pytest

from gnode.gpushare import ShareClass, SharedTask, ShareRefusedError
from gnode.gpushare.interception import InterceptionRuntime
from gsched.config.nodes import GpuShareConfig


def runtime(folder: Path, *, compiler: str | None, driver: str = "") -> InterceptionRuntime:
    """Return a runtime on a machine with this compiler and driver."""
    return InterceptionRuntime(
        GpuShareConfig(driver=driver), folder, compiler=lambda: compiler, driver=lambda: None
    )


def program(path: Path, text: str) -> str:
    """Write a program; return its path."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    words = runtime(tmp_path, compiler="/bin/true").missing()

    assert words is not None
    assert "no CUDA driver" in words
    assert "[gpu_share]" in words


def test_a_driver_that_is_named_must_be_there(tmp_path: Path) -> None:
    named = str(tmp_path / "libcuda.so.1")

    words = runtime(tmp_path, compiler="/bin/true", driver=named).missing()

    assert words == f"no CUDA driver can be read at {named}, driver in [gpu_share]"


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    driver = program(tmp_path / "libcuda.so.1", "")

    words = runtime(tmp_path, compiler=None, driver=driver).missing()

    assert words == "no C compiler: install gcc and libc6-dev, or choose another runtime"


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    driver = program(tmp_path / "libcuda.so.1", "")
    compiler = program(tmp_path / "cc", "#!/bin/sh\necho 'stdio.h: no such file' >&2\nexit 1\n")

    made = runtime(tmp_path, compiler=compiler, driver=driver)
    assert made.missing() is None, "nothing is compiled before gnode has registered"
    with pytest.raises(ShareRefusedError, match=r"stdio\.h: no such file") as refused:
        made.prepare()
    assert "install a C compiler" in (refused.value.hint or "")
    assert not (tmp_path / "lib").exists() or os.listdir(tmp_path / "lib") == []


def test_a_task_is_refused_in_words_where_the_directory_cannot_be_written(tmp_path: Path) -> None:
    """And the end of an unknown task on such a node is no error."""
    (tmp_path / "file").write_text("")
    broken = runtime(tmp_path / "file" / "gpushare", compiler="/bin/true")
    task = SharedTask(
        job="1",
        attempt=1,
        gpu_index=0,
        gpu_uuid="GPU-1",
        percent=50,
        memory_bytes=1,
        share_class=ShareClass.LOW,
    )

    with pytest.raises(ShareRefusedError, match="cannot be used for GPU sharing: Not a directory"):
        broken.admit(task)
    broken.release(task)
