"""``gdel``: end jobs."""

import os
import pwd
import sys

import click

from gsched.cli.common import (
    command_name,
    connected,
    gsched_command,
    is_terminal,
    option,
    print_note,
)
from gsched.cli.operands import (
    ALL,
    carry_out,
    grace_option,
    normal_ids,
    parse_grace_s,
    tasks_option,
    whole,
    with_tasks,
)
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.errors import UsageError
from gsched.protocol.actions import DeleteJob

ASK_ABOVE = 10  # jobs that one slip of the finger may cost

EPILOG = """\b
Examples:
  gdel 17 18.head
  gdel -W 300 -m "wrong data" 17      five minutes between TERM and KILL
  gdel -y all
  gdel -u alice                       all jobs of alice
"""


@gsched_command("gdel", epilog=EPILOG)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@option("-u", "users", default="", metavar="USERS", help="All jobs of these users.")
@option("--me", "me", is_flag=True, help="All of your jobs.")
@option("-m", "--message", default="", metavar="MSG", help="Message for the job's history.")
@grace_option
@option("-y", "--yes", is_flag=True, help=f"Do not ask before deleting more than {ASK_ABOVE} jobs.")
@option("-p", "purge", is_flag=True, help="KILL at once, like -W force.")
@tasks_option
@option("-b", "retry", default="", metavar="SECONDS", help="Accepted for compatibility.")
@option("-a", "_asynchronous", is_flag=True, help="Accepted for compatibility.")
@option("-c", "_clean", is_flag=True, help="Accepted for compatibility.")
@option("-x", "_history", is_flag=True, help="Accepted for compatibility.")
@option("--wait", "wait", is_flag=True, help="Wait until the jobs have ended.")
@option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@connected
def gdel(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
    /,
    *,
    jobs: tuple[str, ...],
    users: str,
    me: bool,
    message: str,
    grace: str,
    purge: bool,
    tasks: str,
    yes: bool,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    **_ignored: object,
) -> int:
    """Cancel jobs: TERM to all of their processes, a grace period, then KILL.

    Returns as soon as the head has accepted the request. JOB is 17 or 17.server, or 17[3] or
    17[5-10] for elements of an array; all stands for all of your jobs.
    """
    jobs = _all_named(head, with_tasks(normal_ids(jobs), tasks), users, me=me)
    if not jobs:
        return 0
    grace_s = 0.0 if purge else parse_grace_s(grace)
    request = DeleteJob(ids=jobs, message=message, grace_s=grace_s, dry_run=dry_run)
    if not (yes or dry_run) and not _agreed(head, request):
        print_note("nothing was done", command=command_name())
        return 1
    reply, status = carry_out(head, request, as_json=as_json)
    if wait and not dry_run:
        head.wait([whole(result.id) for result in reply.results if result.error is None])
    return status


def _all_named(head: HeadClient, jobs: tuple[str, ...], users: str, *, me: bool) -> tuple[str, ...]:
    """Return the jobs that are named, with those of the users that are.

    Raises:
        UsageError: nothing is named.
    """
    names = [each for each in users.split(",") if each]
    if not (jobs or names or me):
        raise UsageError("missing argument 'JOB...'", hint=f"see `{command_name()} --help`")
    names += [pwd.getpwuid(os.getuid()).pw_name] if me else []
    of_users = [row for name in names for row in head.jobs(user=name).jobs]
    return (*jobs, *dict.fromkeys(str(row.id) for row in of_users))


def _agreed(head: HeadClient, request: DeleteJob) -> bool:
    """Return whether to go on: a person at a terminal is asked before many jobs are ended."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return True
    if ALL not in request.ids and len(request.ids) <= ASK_ABOVE:
        return True
    trial = head.act(_as_trial(request))
    count = sum(result.error is None for result in trial.results)
    return count <= ASK_ABOVE or click.confirm(f"{command_name()}: cancel {count} jobs?", err=True)


def _as_trial(request: DeleteJob) -> DeleteJob:
    return DeleteJob(ids=request.ids, dry_run=True)


main = runner(gdel)

if __name__ == "__main__":
    main()
