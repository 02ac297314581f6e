"""``gmsg``: write a message into the output files of running jobs."""

import click

from gsched.cli.common import (
    connected,
    gsched_command,
    option,
    report_results,
)
from gsched.cli.operands import jobs_argument
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.errors import GschedError, UsageError
from gsched.head_calls import body_of
from gsched.protocol.api import ActionResult
from gsched.protocol.messages import JobMessage

EPILOG = """\b
Examples:
  gmsg "second phase begins" 17       into its error file
  gmsg -O "second phase begins" 17    into its output file
"""


@gsched_command("gmsg", epilog=EPILOG)
@click.argument("message", metavar="MESSAGE")
@jobs_argument
@option("-E", "to_stderr", is_flag=True, help="Write to the standard error: the default.")
@option("-O", "to_stdout", is_flag=True, help="Write to the standard output.")
@option("--node", default="", metavar="NODE", help="Files of the job on NODE.")
@connected
def gmsg(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
    *,
    message: str,
    jobs: tuple[str, ...],
    to_stderr: bool,
    to_stdout: bool,
    node: str,
    as_json: bool,
) -> int:
    """Append MESSAGE as a line to the files of running jobs; -E -O: to both files.

    The node of the job writes, with the rights of the job's owner.
    """
    if not message.strip() or "\0" in message:
        raise UsageError("the message is empty", hint="gmsg TEXT JOB...")
    request = JobMessage(text=message, stdout=to_stdout, stderr=to_stderr, node=node)
    results = []
    for job in jobs:
        try:
            head.write_message(job, request)
            results.append(ActionResult(id=job))
        except GschedError as error:
            results.append(ActionResult(id=job, error=body_of(error)))
    return report_results(results, as_json=as_json)


main = runner(gmsg)

if __name__ == "__main__":
    main()
