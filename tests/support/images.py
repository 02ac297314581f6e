"""A small image for tests of containers, made of the machine's own busybox; storage of its own."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

IMAGE = "localhost/gsched-test:1"
#: crun refuses a hybrid layout whose version 2 has a controller: there it does not see that tree.
_WITHOUT_UNIFIED = """#!/bin/sh
if ! grep -qs . /sys/fs/cgroup/unified/cgroup.controllers; then
  exec {podman} "$@"
fi
exec unshare --mount sh -c 'umount /sys/fs/cgroup/unified; exec {podman} "$@"' podman "$@"
"""
_PROGRAMS = (
    "cat",
    "date",
    "echo",
    "grep",
    "id",
    "ls",
    "nproc",
    "ps",
    "pwd",
    "sh",
    "sleep",
    "touch",
)


class Podman:
    """Podman with an image, in a directory of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "storage.conf"
        self.config.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{directory / "store"}"\n'
            f'runroot = "{directory / "run"}"\n'
        )
        program = shutil.which("podman")
        self.program = directory / "bin" / "podman"
        self.program.parent.mkdir()
        self.program.write_text(_WITHOUT_UNIFIED.format(podman=program))
        self.program.chmod(0o755)
        self.environment = {"CONTAINERS_STORAGE_CONF": str(self.config)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Podman."""
        return subprocess.run(
            [str(self.program), "--cgroup-manager=cgroupfs", "--events-backend=none", *words],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def containers(self) -> list[str]:
        """Return the names of all containers, also of those that do not run."""
        return self.run("ps", "--all", "--format", "{{.Names}}").stdout.split()

    def remove(self) -> None:
        """Remove all of it."""
        self.run("rm", "--all", "--force", "--time=0")
        self.run("rmi", "--all", "--force")
        shutil.rmtree(self.directory, ignore_errors=True)


def podman(
    directory: Path, *, files: Mapping[str, Path] | None = None, changes: Sequence[str] = ()
) -> Podman:
    """Return Podman with the image; skip the test where that cannot be.

    Args:
        directory: for all of it.
        files: more files of the image, by their path in it.
        changes: of the image's configuration, as lines of a Dockerfile.
    """
    if os.geteuid() != 0:
        pytest.skip("containers of tests are made by root, whose Podman needs no subordinate ids")
    for program in ("podman", "busybox"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    made = Podman(directory)
    archive = directory / "root.tar"
    busybox = shutil.which("busybox")
    assert busybox is not None
    with tarfile.open(archive, "w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in _PROGRAMS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name, path in (files or {}).items():
            tar.add(path, name)
        for name in ("tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    options = [word for line in changes for word in ("--change", line)]
    said = made.run("import", *options, str(archive), IMAGE)
    if said.returncode:
        made.remove()
        pytest.skip(f"an image cannot be made here: {said.stderr.strip()[-200:]}")
    works = made.run(
        *("run", "--rm", "--cgroups=disabled", "--network=host", "--log-driver=none"),
        *("--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000"),
        *(IMAGE, "/bin/echo", "works"),
    )
    if works.returncode:
        made.remove()
        pytest.skip(f"Podman cannot run containers here: {works.stderr.strip()[-200:]}")
    return made
