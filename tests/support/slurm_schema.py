"""The OpenAPI documents of Slurm's REST API, as slurmrestd prints them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

VERSIONS = ("v0.0.43", "v0.0.44", "v0.0.45")


def printed_schemas(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the documents of the installed slurmrestd, by version; empty: it has none of them."""
    found = shutil.which("slurmrestd")
    if found is None:
        return {}
    conf = directory / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=h\nAuthType=auth/none\nCredType=cred/none\n")
    made: dict[str, dict[str, Any]] = {}
    for version in VERSIONS:
        done = subprocess.run(
            [
                *(str(Path(found).resolve()), "-f", str(conf), "-d", version),
                *("-s", "slurmctld,slurmdbd", "--generate-openapi-spec"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            made[version] = json.loads(done.stdout)
    return made
