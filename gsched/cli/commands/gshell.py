"""gshell: a new shell, or a command, in a running job."""

import os

import click

from gsched.cli.common import command_name, connected, gsched_command, print_note, run
from gsched.client import Head, error_from
from gsched.errors import HeadUnreachableError

#: Characters that a shell reads and names of programs do not have.
_FOR_A_SHELL = frozenset(" \t\n;|&<>()$`\"'*?~")

_EPILOG = """\b
Examples:
  gshell 12                              a shell in the allocation of job 12
  gshell 12 nvidia-smi                   one command; its output can be piped
  gshell 12 'nvidia-smi; ps ux | grep python'   one word with blanks is a command line
  gshell --node gpu2 12 py-spy top -p 4711
"""


@gsched_command("gshell", epilog=_EPILOG, interspersed=False)
@click.argument("job", metavar="JOB")
@click.argument("words", nargs=-1, metavar="[COMMAND [ARGUMENT...]]", type=click.UNPROCESSED)
@click.option(
    "--node",
    default="",
    metavar="NODE",
    help="Node of the job on which to start it [default: the job's first].",
)
@connected
def gshell(head: Head, job: str, words: tuple[str, ...], node: str, *, as_json: bool) -> int:
    """Start a shell, or COMMAND, in the running JOB: with its GPUs, environment and directory.

    It runs as the owner of the job, counts towards the job's resources and ends with the job. A
    COMMAND that is one word with blanks or characters of the shell is run by sh, as with ssh. At
    the beginning of a line, ~. ends it and ~? lists these keys. Exits with its exit code.
    """
    from gsched.cli.session.attaching import job_of, terminal_variables  # late, as in gattach
    from gsched.cli.session.client import How, Target, run_session
    from gsched.cli.session.console import Console, refuse_json, require_terminal
    from gsched.terminal import Escape

    refuse_json("gshell", as_json=as_json)
    console = Console()
    if not words:
        require_terminal("a shell")
    number, shown = job_of(head, job)
    target = Target(
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


def main() -> None:
    """Run gshell."""
    run(gshell)


if __name__ == "__main__":
    main()
