"""``gsched up``: a throw-away cluster on this machine, as the calling user."""

import sys

import click
import msgspec

from gsched.cli.common import is_terminal, print_json, print_note
from gsched.cli.local.bringup import Bringup, UpReport, export_lines
from gsched.cli.local.cluster import ClusterRequest, check_wanted
from gsched.cli.local.layout import layout_of
from gsched.cli.local.options import directory_option, subcommand, teller

EPILOG = """\b
Examples:
  eval "$(gsched up --nodes 2 --cpus 4 --gpus 2 --policy goodput --share)"
  gsched up --dir /tmp/try --nodes 4 --memory 8gb
"""


@subcommand("up", epilog=EPILOG)
@directory_option
@click.option("--nodes", type=int, metavar="N", help="Number of nodes [default: 1].")
@click.option(
    "--cpus", type=int, metavar="C", help="CPUs per node [default: an equal share of this machine]."
)
@click.option(
    "--gpus",
    type=int,
    metavar="G",
    help="Declared GPUs per node [default: none, or this machine's if there is one node].",
)
@click.option("--gpu-type", metavar="T", help="Type of the declared GPUs [default: declared].")
@click.option(
    "--memory",
    metavar="M",
    help="Memory per node, such as 8gb [default: an equal share of this machine].",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Policy of the queues (such as fifo) or for training jobs (such as goodput); may be "
    "repeated for one of each [default: balance and deadline].",
)
@click.option(
    "--share",
    is_flag=False,
    flag_value="colocate",
    metavar="[RUNTIME]",
    help="Let jobs share GPUs (gsub --gpu-share): mps, mig, hami-core, interception, colocate or "
    "none [default without RUNTIME: colocate].",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait until all of them are up.",
)
def up(  # noqa: PLR0913 - one parameter for each option
    *,
    directory: str | None,
    nodes: int | None,
    cpus: int | None,
    gpus: int | None,
    gpu_type: str | None,
    memory: str | None,
    policies: tuple[str, ...],
    share: str | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Start a head and N nodes on this machine, with all of their files in D.

    Returns when all of them are up, and prints the shell commands that set the environment. If D
    contains a stopped or crashed cluster, it restarts what is down, and no job is lost. Of a
    cluster that exists, --policy, --share and a larger --nodes change it; other options do not.
    """
    wanted = ClusterRequest(
        nodes=nodes,
        cpus=cpus,
        gpus=gpus,
        gpu_type=gpu_type,
        memory=memory,
        policies=tuple(dict.fromkeys(policies)),
        share=share,
    )
    check_wanted(wanted)
    layout = layout_of(directory)
    tell = teller(quiet=as_json or not is_terminal(sys.stderr))
    report = Bringup(layout, timeout_s=timeout_s, tell=tell).run(wanted)
    exports = export_lines(layout)
    if as_json:
        print_json(msgspec.to_builtins(report) | {"exports": exports})
    else:
        _print(report, exports)
    return 0


def _print(report: UpReport, exports: tuple[str, ...]) -> None:
    for text in report.changed:
        print_note(text, command="gsched")
    for note in report.notes:
        print_note(f"note: {note}", command="gsched")
    if report.safe_mode:
        print_note(
            f"the head is in safe mode and starts no job: {report.safe_mode}; see `gsched recover`",
            command="gsched",
        )
    what = f"started {', '.join(report.started)}" if report.started else "all were running"
    count = f"{len(report.nodes)} node{'' if len(report.nodes) == 1 else 's'}"
    print_note(f"head and {count} are up ({what})", command="gsched")
    for line in exports:
        print(line)
