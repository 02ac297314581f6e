"""gshell: a new shell, or a command, in a running job."""

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gsched.cli.common import (
    command_name,
    connected,
    gsched_command,
    option,
    print_note,
)
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.errors import HeadUnreachableError, UsageError
from gsched.head_calls import error_from

if TYPE_CHECKING:
    from gsched.cli.session.client import SessionTarget
    from gsched.cli.session.console import Console

#: Characters that a shell reads and names of programs do not have.
_FOR_A_SHELL = frozenset(" \t\n;|&<>()$`\"'*?~")

_EPILOG = """\b
Examples:
  gshell 12                              a shell in the allocation of job 12
  gshell 12 nvidia-smi                   one command; its output can be piped
  gshell 12 'nvidia-smi; ps ux | grep python'   one word with blanks is a command line
  gshell -N -L 8888:8888 12              http://127.0.0.1:8888 is port 8888 of the job's node
  gshell --node gpu2 12 py-spy top -p 4711
"""


@gsched_command("gshell", epilog=_EPILOG, interspersed=False)
@click.argument("job", metavar="JOB")
@click.argument("words", nargs=-1, metavar="[COMMAND [ARGUMENT...]]", type=click.UNPROCESSED)
@option(
    "--node",
    default="",
    metavar="NODE",
    help="Node of the job on which to start it [default: the job's first].",
)
@option(
    "-L",
    "ports",
    multiple=True,
    metavar="PORT:PORT",
    help="Forward a port of 127.0.0.1 to a port of the job's node; may be repeated.",
)
@option("-N", "only_ports", is_flag=True, help="Start no shell; only forward ports.")
@connected
def gshell(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
    job: str,
    words: tuple[str, ...],
    node: str,
    ports: tuple[str, ...],
    *,
    only_ports: bool,
    as_json: bool,
) -> int:
    """Start a shell, or COMMAND, in the running JOB: with its GPUs, environment and directory.

    It runs as the owner of the job, counts towards the job's resources and ends with the job. A
    COMMAND that is one word with blanks or characters of the shell is run by sh, as with ssh. At
    the beginning of a line, ~. ends it and ~? lists these keys. Exits with its exit code.
    """
    from gsched.cli.session.attaching import job_of  # late, as in gattach
    from gsched.cli.session.client import SessionTarget
    from gsched.cli.session.console import Console, refuse_json, require_terminal

    refuse_json("gshell", as_json=as_json)
    if words[:1] == ("--",):  # as gsub takes it before a command
        words = words[1:]
    console = Console()
    if only_ports and (words or not ports):
        raise UsageError(
            "-N forwards ports only", hint="omit COMMAND" if words else "add -L 8888:8888"
        )
    if not words and not only_ports:
        require_terminal("a shell", hint="-N only forwards ports" if ports else "")
    number, shown = job_of(head, job)
    with contextlib.ExitStack() as stack:
        if ports:
            wanted = SessionTarget(
                job=str(number), shown=shown, command=command_name(), node=node, forward=True
            )
            if _forward(head, wanted, ports, console, stack, only=only_ports):
                return 0
        return _shell(head, number, shown, words, node, console)


def _forward(
    head: HeadClient,
    target: "SessionTarget",
    ports: Sequence[str],
    console: "Console",
    stack: contextlib.ExitStack,
    *,
    only: bool,
) -> bool:
    """Forward ports until the job ends or Ctrl-C; beside a shell, begin with it.

    Returns:
        Whether all is done.
    """
    from gsched.cli.session import forward  # late: few forward ports

    def say(text: str) -> None:
        console.note(text, command=target.command)

    listeners = forward.listen([forward.read_rule(each) for each in ports])

    def made() -> forward.Forwarding:
        return forward.Forwarding(head.transport.address, target, listeners, say)

    if not only:
        stack.enter_context(forward.Beside(made, say))
        return False
    try:
        forward.forward(made)
    except KeyboardInterrupt:
        say("ports are no longer forwarded")
    return True


def _shell(
    head: HeadClient, number: int, shown: str, words: tuple[str, ...], node: str, console: "Console"
) -> int:
    """Run a shell or a command; return its exit code."""
    from gsched.cli.session.attaching import terminal_variables
    from gsched.cli.session.client import How, SessionTarget, run_session
    from gsched.terminal import Escape

    target = SessionTarget(
        job=str(number),
        shown=shown,
        command=command_name(),
        node=node,
        terminal=os.urandom(16).hex(),
        start=True,
        arguments=command_line(words),
        variables=terminal_variables(),
        escapes=frozenset({Escape.ABORT, Escape.HELP}),
        help=("~.  end this shell", "~~  send a tilde", "~?  this list"),
    )
    ending = run_session(head.transport.address, target, console)
    match ending.how:
        case How.PROGRAM_ENDED:
            return ending.status if ending.status >= 0 else 128 - ending.status
        case How.REFUSED:
            assert ending.error is not None, "a refusal has a reason"
            raise error_from(ending.error)
        case How.LOST:
            raise HeadUnreachableError(f"the shell in job {shown} is lost: {ending.reason}")
        case _:
            print_note(f"the shell in job {shown} is left", command=command_name())
            return 128 + ending.signal if ending.signal else 1


def command_line(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the node runs: one word that no program is named like is a line for a shell."""
    if len(words) == 1 and set(words[0]) & _FOR_A_SHELL:
        return ("/bin/sh", "-c", words[0])
    return words


main = runner(gshell)

if __name__ == "__main__":
    main()
