"""``gshare``: who has used what, and what that does to the order of jobs."""

from collections.abc import Sequence

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    option,
    print_json,
    print_note,
)
from gsched.cli.running import runner
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.client import HeadClient
from gsched.errors import UsageError
from gsched.protocol.shares import StandingRow

HOUR_S = 3600.0
INDENT = "  "
EPILOG = """\b
Examples:
  gshare                              all projects and their users
  gshare -t                           the same as a tree
  gshare -A vision -u alice
  gshare --json | jq '.rows[] | select(.user != "") | [.user, .fair_share]'
"""
COLUMNS = (
    Column("Project"),
    Column("User"),
    Column("Shares", right=True),
    Column("Norm shares", right=True, drop=1),
    Column("CPU hours", right=True, drop=3),
    Column("GPU hours", right=True, drop=4),
    Column("Usage", right=True),
    Column("Effectv usage", right=True, drop=2),
    Column("Level FS", right=True),
    Column("Fair share", right=True),
)


@gsched_command("gshare", epilog=EPILOG)
@option("-A", "--project", default="", metavar="PROJECT", help="Only this project and its users.")
@option("-u", "--user", default="", metavar="USER", help="Only this user.")
@option("-t", "--tree", is_flag=True, help="Indent projects by their place in the tree.")
@color_option
@connected
def gshare(
    head: HeadClient,
    /,
    *,
    project: str,
    user: str,
    tree: bool,
    color: str,
    as_json: bool,
) -> int:
    """Show what projects and users have used, and their fair shares.

    Usage is what jobs held, by the weights in [shares] of gsched.toml; older usage counts for less.
    The fair share is 1 for the user whose jobs come first, and near 0 for the last one.
    """
    reply = head.shares(project=project, user=user)
    if (project or user) and not reply.rows:
        what = " and ".join(
            f"{word} {name!r}" for word, name in (("project", project), ("user", user)) if name
        )
        raise UsageError(f"nothing is known of {what}", hint="gshare shows all")
    if as_json:
        print_json(reply)
        return 0
    if not reply.orders:
        print_note("jobs are not ordered by fair shares: see [priority]", command="gshare")
    print_table(COLUMNS, [_cells(row, tree=tree) for row in reply.rows], color=color)
    return 0


def _cells(row: StandingRow, *, tree: bool) -> Sequence[str]:
    indent = INDENT * row.depth if tree else ""
    if row.level_fs is not None:
        level = f"{row.level_fs:.6f}"
    else:
        level = "" if row.shares is None else "inf"
    return (
        indent + row.project,
        row.user,
        "" if row.shares is None else f"{row.shares:g}",
        f"{row.norm_shares:.6f}",
        f"{row.cpu_s / HOUR_S:.2f}",
        f"{row.gpu_s / HOUR_S:.2f}",
        f"{row.usage:.0f}",
        f"{row.effective_usage:.6f}",
        level,
        "" if row.fair_share is None else f"{row.fair_share:.6f}",
    )


main = runner(gshare)

if __name__ == "__main__":
    main()
