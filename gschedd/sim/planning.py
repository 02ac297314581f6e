"""``gsim plan``: what a policy plans on a snapshot that a head has saved."""

import click
from msgspec import Struct

from gsched.cli.common import QuickCommand, print_json, printable
from gsched.clock import SystemClock
from gsched.config.load import load_config
from gsched.config.tables import Config
from gsched.errors import UsageError
from gsched.model.resources import Allocation
from gsched.model.units import format_gpus
from gschedd.core.views.reasons import describe_place
from gschedd.models.saved import SnapshotFile, decode, restored
from gschedd.plan.forecast import Forecast
from gschedd.plan.moments import moment
from gschedd.plan.snapshot import Plan, Snapshot, Wait
from gschedd.policies.registry import Chosen
from gschedd.sim.policies import SIMULATED


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A start or a move."""

    job: int
    allocation: Allocation
    why: str


class WaitEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job waits; ``like_it`` jobs behind it are identical requests."""

    job: int
    reason: str
    like_it: int = 0
    predicted_start_s: float | None = None
    reserved: bool = False


class PlanReport(Struct, frozen=True, kw_only=True):
    """A plan, as ``--json`` prints it; times are seconds since the epoch."""

    policy: str
    now_s: float
    took_s: float
    starts: tuple[Entry, ...]
    moves: tuple[Entry, ...]
    waits: tuple[WaitEntry, ...]
    verdicts: tuple[Forecast, ...]
    again_s: float | None


@click.command(name="plan", cls=QuickCommand)
@click.argument("path", metavar="FILE")
@click.option(
    "--policy", default="", metavar="NAME", help="Another policy than the head's own at that time."
)
@click.option(
    "--config",
    default="",
    metavar="FILE",
    help="A site's gsched.toml, for what it says of policies; else what the head had.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.help_option("--help", help="Print a summary of the options and exit.")
def plan_command(*, path: str, policy: str, config: str, as_json: bool) -> int:
    """Print what a policy plans on a snapshot of `gsched doctor --save-snapshot`."""
    content = _read(path)
    chosen = _chosen(content, policy=policy, config=config)
    snapshot = restored(content.snapshot)
    clock = SystemClock()
    begun_s = clock.monotonic_s()
    plan = chosen.plan(snapshot)
    report = _report(chosen.name, snapshot, plan, took_s=clock.monotonic_s() - begun_s)
    if as_json:
        print_json(report)
    else:
        _print(report, content)
    return 0


def _read(path: str) -> SnapshotFile:
    try:
        with open(path, "rb") as file:
            return decode(file.read())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name a saved snapshot") from None
    except ValueError as error:
        raise UsageError(
            f"{path}: {error}", hint="make one with: gsched doctor --save-snapshot FILE"
        ) from None


def _chosen(content: SnapshotFile, *, policy: str, config: str) -> Chosen:
    own = Config(balance=content.balance, training=content.training)
    return SIMULATED.choose(policy or content.policy, load_config(config) if config else own)


def _report(name: str, snapshot: Snapshot, plan: Plan, *, took_s: float) -> PlanReport:
    started = {start.job for start in plan.starts}
    left = {
        group.job_class: sum(job not in started for _, job in group.order)
        for group in snapshot.groups
    }

    def entry(wait: Wait) -> WaitEntry:
        return WaitEntry(
            job=wait.first,
            reason=str(wait.reason),
            like_it=max(left.get(wait.job_class, 1) - 1, 0),
            predicted_start_s=wait.predicted_start_s,
            reserved=wait.reserved,
        )

    return PlanReport(
        policy=name,
        now_s=snapshot.now_s,
        took_s=took_s,
        starts=tuple(
            Entry(job=start.job, allocation=start.allocation, why=start.why)
            for start in plan.starts
        ),
        moves=tuple(
            Entry(job=move.job, allocation=move.allocation, why=move.why) for move in plan.moves
        ),
        waits=tuple(map(entry, plan.waits)),
        verdicts=plan.verdicts,
        again_s=plan.again_s,
    )


def _print(report: PlanReport, content: SnapshotFile) -> None:
    kept = content.snapshot
    waiting = sum(len(group.order) for group in kept.groups)
    began = (
        f"snapshot of {moment(report.now_s)}, gsched {content.gsched}: {len(kept.nodes)} nodes, "
        f"{waiting} waiting jobs, {len(kept.running)} running, {len(kept.profiles)} training jobs"
    )
    lines = [
        began,
        *(f"start    job {e.job} on {_places(e.allocation)}: {e.why}" for e in report.starts),
        *(f"move     job {e.job} to {_places(e.allocation)}: {e.why}" for e in report.moves),
    ]
    lines.extend(map(_wait, report.waits))
    lines.extend(f"verdict  {_verdict(each)}" for each in report.verdicts)
    if report.again_s is not None:
        lines.append(f"again    at {moment(report.again_s)}")
    lines.append(f"policy {report.policy} took {report.took_s:.3f} s")
    for line in lines:
        click.echo(printable(line))


def _wait(wait: WaitEntry) -> str:
    others = f" and {wait.like_it} like it" if wait.like_it else ""
    start_s = wait.predicted_start_s
    when = "" if start_s is None else f"; predicted start {moment(start_s)}"
    return f"wait     job {wait.job}{others}: {wait.reason}{when}"


def _places(allocation: Allocation) -> str:
    return ", ".join(map(describe_place, allocation)) or "its queue"


def _verdict(verdict: Forecast) -> str:
    words = "meets its deadline" if verdict.meets else "misses its deadline"
    if verdict.unsure_until_s is not None:
        words = "it is not known yet whether it meets its deadline"
    gpus = f", on {format_gpus(verdict.gpus)}" if verdict.gpus else ""
    end = "" if verdict.end_s is None else f", done by {moment(verdict.end_s)}"
    why = f": {verdict.why}" if verdict.why else ""
    return f"job {verdict.job} {words}{gpus}{end}{why}"
