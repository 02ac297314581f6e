"""The virtual environment of this checkout, which ``scripts/test`` sets up."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
VENV: Final = ROOT / ".venv"
SETUP: Final = ROOT / "scripts" / "lib" / "setup.sh"


def use_environment() -> None:
    """Have the calling script run in it; it is set up if it is not there.

    Does not return where the script runs with another interpreter: it begins anew.
    """
    if Path(sys.prefix).resolve() == VENV.resolve():
        return
    done = subprocess.run(["bash", "-c", '. "$1" && gsched_setup', "bash", str(SETUP)], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    python = str(VENV / "bin" / "python")
    os.execv(python, [python, *sys.argv])
