"""What ``ghold`` and ``grls`` share: kinds of hold are put on jobs, or taken off."""

from gsched.cli.operands import UNFINISHED, carry_out, check_only, normal_ids, parse_hold_list
from gsched.client import HeadClient
from gsched.protocol.actions import HoldJob, ReleaseJob


def change_holds(  # what both commands are given
    head: HeadClient,
    kind: type[HoldJob | ReleaseJob],
    jobs: tuple[str, ...],
    *,
    hold_list: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Hold or release jobs, tell what became of each, and return the exit status."""
    holds = parse_hold_list(hold_list)
    if not holds:  # -h n: no kind of hold, but unknown jobs are still told
        return check_only(head, normal_ids(jobs), states=UNFINISHED, as_json=as_json)
    request = kind(ids=normal_ids(jobs), holds=holds, dry_run=dry_run)
    return carry_out(head, request, as_json=as_json)[1]
