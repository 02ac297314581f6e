"""Draws a terminal in which jobs are submitted and watched on a cluster that is started for it.

What the commands print on a terminal is read from a pseudo terminal, colours included.
"""

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

UP: Final = "gsched up --nodes 2 --cpus 8 --gpus 4 --share"
BEFORE: Final = (
    "gsub -N prepare -l nodes=1:ppn=2,walltime=10:00 -- sleep 300",
    "gsub -N sweep -t 1-40%2 -l walltime=20:00 -- sleep 300",
)
SHOWN: Final = (
    "gsub -N resnet50 -l nodes=2:ppn=2:gpus=2,walltime=2:00:00 -- sleep 600",
    "gsub -N notebook --gpu-share 40%,16gb -l walltime=4:00:00 -- sleep 600",
    "gsub -N llama-sft -l nodes=1:ppn=4:gpus=4,walltime=8:00:00 -- sleep 600",
    "gstat",
    "gnodes",
)
#: Of Rich's form: a picture loads nothing from elsewhere, so the reader's own fonts are used.
FONTS: Final = re.compile(r"\s*(@font-face \{\{.*?\}\}|<!--.*?-->)", re.DOTALL)


def main() -> int:
    """Start the cluster, run the commands, write the picture and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/reproduce/terminal", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/terminal.svg"))
    parser.add_argument("--columns", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gsched-picture-") as folder:
        environment = _environment()
        try:
            exports = _run(f"{UP} --dir {folder}/cluster", environment)
            for name, value in re.findall(r"^export (\w+)=(\S+)$", exports, re.MULTILINE):
                environment[name] = value
            for command in BEFORE:
                _run(command, environment)
            time.sleep(2)
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                console = Console(record=True, width=given.columns, file=nowhere)
                for command in SHOWN:
                    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
                    shown = _on_a_terminal(command, environment, given.columns)
                    console.print(Text.from_ansi(shown), soft_wrap=True)
                    time.sleep(1)
        finally:
            _run(f"gsched down --kill-jobs --dir {folder}/cluster", environment)
    picture = console.export_svg(title="gsched", code_format=FONTS.sub("", CONSOLE_SVG_FORMAT))
    given.out.write_text(picture.rstrip() + "\n", encoding="utf-8")
    print(f"{given.out}: {len(SHOWN)} commands")
    return 0


def _environment() -> dict[str, str]:
    folder = str(Path(sys.executable).parent)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "USER") if name in os.environ}
    path = f"{folder}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "TERM": "xterm-256color", "GSCHED_PAGER": ""}


def _run(command: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        shlex.split(command), env=environment, text=True, stdout=subprocess.PIPE, check=True
    )
    return done.stdout


def _on_a_terminal(command: str, environment: dict[str, str], columns: int) -> str:
    """Return what a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        shlex.split(command), env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    except OSError:  # the last process that had the terminal has closed it
        pass
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{command}: exit {process.returncode}: {b''.join(pieces).decode()}")
    return b"".join(pieces).decode().replace("\r\n", "\n").rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
