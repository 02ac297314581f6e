"""gstat --watch: the list drawn anew while it changes; only on a terminal."""

import sys
from collections.abc import Callable

from rich.console import Group
from rich.live import Live
from rich.text import Text

from gsched.cli.common import printable, wants_color
from gsched.cli.show.joblist import terminal_list
from gsched.cli.show.terminal import console, rich_table
from gsched.cli.times import format_clock
from gsched.errors import HeadUnreachableError
from gsched.protocol.job_rows import JobList
from gsched.transport import pause

_WATCH_S = 2.0


def watch_table(look: Callable[[], JobList], *, color: str) -> None:
    """Draw the jobs that ``look`` returns, again and again, until Ctrl-C.

    A head that restarts meanwhile leaves a line at the bottom instead of ending the watch.
    """
    screen = console(sys.stdout, colored=wants_color(color, sys.stdout))
    with Live(
        console=screen, auto_refresh=False, screen=True, vertical_overflow="ellipsis"
    ) as live:
        while True:
            try:
                reply = look()
            except HeadUnreachableError as error:
                live.update(Text(printable(error.message)), refresh=True)
            else:
                moment = format_clock(reply.now_s, now_s=reply.now_s)
                title = Text(f"{reply.server}  {moment}  {len(reply.jobs)} jobs  (Ctrl-C ends)")
                table = rich_table(*terminal_list(reply), width=screen.width)
                live.update(Group(title, table), refresh=True)
            pause(_WATCH_S)
