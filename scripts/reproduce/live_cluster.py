"""A head and two nodes of this machine, as `gsched up` makes them, for as long as a block lasts."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import click

from gsched.client import HeadClient

BIN: Final = Path(sys.executable).parent
NODES: Final = 2


class Cluster:
    """A head and two nodes that declare GPUs which are not there.

    Args:
        directory: that it makes; what jobs write lies beside it.
        gpus: that each node declares.
        gpu_types: of the nodes' GPUs, one for each node; empty: all alike.
        settings: added to the configuration, as TOML.
        node_settings: added to that of each node.
        cpus: that each node declares.

    Attributes:
        environment: in which commands find it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        gpus: int,
        gpu_types: Sequence[str] = (),
        settings: str = "",
        node_settings: str = "",
        cpus: int = 4,
    ) -> None:
        self._dir = directory
        self._gpus = gpus
        self._gpu_types = gpu_types
        self._settings = settings
        self._node_settings = node_settings
        self._cpus = cpus
        self.environment = dict(os.environ)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        place = ("--dir", str(self._dir))
        wanted = ("--nodes", str(NODES), "--gpus", str(self._gpus))
        wanted += ("--cpus", str(self._cpus))
        self.run("gsched", "up", *place, *wanted)
        if self._settings or self._gpu_types or self._node_settings:
            self.run("gsched", "down", *place)
            with (self._dir / "gsched.toml").open("a", encoding="utf-8") as file:
                file.write(f"\n{self._settings}")
            for number in range(1, NODES + 1):
                path = self._dir / "nodes" / f"n{number}" / "gnode.toml"
                with path.open("a", encoding="utf-8") as file:  # its table [[node.gpu]] is the last
                    if self._gpu_types:
                        file.write(f'type = "{self._gpu_types[number - 1]}"\n')
                    file.write(self._node_settings)
            self.run("gsched", "up", *place)
        self.environment["GSCHED_HEAD"] = str(self._dir / "head.sock")

    def __exit__(self, *_: object) -> None:
        self.run("gsched", "down", "--dir", str(self._dir), "--kill-jobs")

    @property
    def head(self) -> HeadClient:
        """Return a client of the head."""
        return HeadClient(self.environment["GSCHED_HEAD"])

    def run(self, *command: str) -> tuple[str, str]:
        """Run one of gsched's commands; return what it printed on stdout and stderr.

        Raises:
            click.ClickException: it failed.
        """
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            cwd=self._dir.parent,
        )
        if done.returncode != 0:
            raise click.ClickException(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout, done.stderr
