"""``gsched-launch-agent``: starts mpirun's daemons on other nodes of a job, in place of ssh."""

import signal
import sys
from collections.abc import Sequence
from typing import Final

from gsched.cli.steps.job import job_nodes
from gsched.cli.steps.tasks import TaskRequest, Tasks
from gsched.config.environment import full_environment
from gsched.errors import GschedError, UsageError

USAGE: Final = """\
Usage: gsched-launch-agent [OPTION]... HOST COMMAND [ARGUMENT]...

Run COMMAND by /bin/sh on HOST, a node of the job in which this command runs, with the job's
environment and limits, and return its exit code. mpirun calls it in place of ssh; jobs on several
nodes are set up for that. Options of ssh are accepted and ignored.

Options:
  --help  Show this message and exit.

Example: mpirun --mca plm_rsh_agent gsched-launch-agent ./a.out
"""
_VALUED: Final = frozenset("BbcDEeFIiJLlmOopQRSWw")
#: mpirun ends its daemons by these; gsched sends them to all processes of a job by itself.
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def split(words: Sequence[str]) -> tuple[str, str]:
    """Return the host and the command of a command line like that of ssh.

    Raises:
        UsageError: one of them is missing.
    """
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if len(word) == 2 and word[1] in _VALUED and rest:
            rest.pop(0)
    if len(rest) < 2:
        raise UsageError("a host and a command are needed", hint="gsched-launch-agent --help")
    return rest[0].rpartition("@")[2], " ".join(rest[1:])


def launch(words: Sequence[str]) -> int:
    """Run what a command line says; return its exit code.

    Raises:
        GschedError: it cannot be run.
    """
    variables = full_environment()
    job = job_nodes(variables, command="gsched-launch-agent")
    host, command = split(words)
    node = job.find(host)
    tasks = Tasks(job)
    for number in _PASSED_ON:
        signal.signal(number, lambda got, _frame: tasks.signal(got))
    tasks.open([node])
    tasks.start(
        TaskRequest(
            number=0, node=node, argv=("/bin/sh", "-c", command), env=variables, has_input=True
        )
    )
    try:
        return tasks.wait()
    finally:
        tasks.close()


def main() -> None:
    """Run the command and exit with its code."""
    words = sys.argv[1:]
    if words[:1] == ["--help"]:
        sys.stdout.write(USAGE)
        sys.exit(0)
    try:
        code = launch(words)
    except GschedError as error:
        hint = f" ({error.hint})" if error.hint else ""
        sys.stderr.write(f"gsched-launch-agent: {error.message}{hint}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(128 + signal.SIGPIPE)
    sys.exit(code)
