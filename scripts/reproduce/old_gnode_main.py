"""A gnode of an older commit dials a head of this checkout: is it told what to do?

The commit is checked out into a worktree of its own; the default is one whose node channel had
sealed frames and a key of the cluster.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.cluster import Cluster

COMMIT: Final = "e44da13f"
TOLD: Final = "gsched token create on the head, then gsched join on this host"
PATIENCE_S: Final = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and print what the old gnode logs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default=COMMIT, help=f"of the old gnode [{COMMIT}]")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        old = Path(directory, "old")
        worktree = ["git", "worktree"]
        subprocess.run([*worktree, "add", "-q", "--detach", str(old), given.commit], check=True)
        cluster = Cluster(Path(directory, "cluster"), "old-gnode")
        try:
            cluster.start_head()
            log = _dial(old, Path(directory), cluster.node_port)
        finally:
            cluster.stop()
            subprocess.run([*worktree, "remove", "--force", str(old)], check=True)
    print(log, end="")
    return 0 if TOLD in log else 1


def _dial(old: Path, directory: Path, port: int) -> str:
    """Return the log of the old gnode, as far as it is told what to do."""
    key, config = directory / "cluster.key", directory / "gsched.toml"
    key.write_text("0" * 64 + "\n")
    key.chmod(0o600)
    config.write_text(
        f'[node]\nname = "old1"\nhead = "127.0.0.1:{port}"\nstate_dir = "{directory}/node"\n'
        f'key_file = "{key}"\ncgroup = "none"\n'
    )
    gnode = [sys.executable, "-m", "gnode.main", "--config", str(config)]
    with subprocess.Popen(
        ["timeout", f"{PATIENCE_S:.0f}", *gnode],
        cwd=old,
        env={**os.environ, "PYTHONPATH": str(old)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if TOLD in line:
                process.terminate()
        return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
