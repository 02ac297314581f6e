"""gattach: reattach to the session of an interactive job."""

import click

from gsched.cli.common import connected, gsched_command
from gsched.cli.running import runner
from gsched.client import HeadClient

_EPILOG = """\b
Examples:
  gattach 12                             go on where the connection was lost
  gattach 12                             in another window: the session moves there
"""


@gsched_command("gattach", epilog=_EPILOG)
@click.argument("job", metavar="JOB")
@connected
def gattach(head: HeadClient, job: str, *, as_json: bool) -> int:
    """Attach this terminal to the session of JOB, an interactive job (gsub -I).

    Shows the newest output, then connects keyboard and screen. At the beginning of a line, ~d
    detaches, ~. deletes the job and ~? lists these keys. Exits with the exit code of the job.
    """
    from gsched.cli.session.attaching import attach, job_of  # late: as much as it imports
    from gsched.cli.session.console import refuse_json, require_terminal

    refuse_json("gattach", as_json=as_json)
    require_terminal("gattach")
    number, shown = job_of(head, job)
    return attach(head, number, shown=shown, is_own=False)


main = runner(gattach)

if __name__ == "__main__":
    main()
