"""``gsim``: replay a trace, or a site's own history, under one policy or several."""

import gc
import random
import signal
import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from itertools import product
from pathlib import Path

import click
from msgspec import Struct, structs
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gsched.cli.common import QuickCommand, print_error, print_json, version_option
from gsched.cli.moments import parse_moment
from gsched.cli.running import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, complete_if_requested
from gsched.clock import SystemClock
from gsched.config.environment import environment
from gsched.config.load import load_config
from gsched.config.tables import Config
from gsched.errors import GschedError, InternalError, UsageError
from gschedd.plan.training import fabric_of
from gschedd.policies.registry import unknown_policy
from gschedd.sim import figures, output, report
from gschedd.sim.cluster import ClusterNode, read_cluster
from gschedd.sim.history import database_path, read_history
from gschedd.sim.planning import plan_command
from gschedd.sim.policies import SIMULATED
from gschedd.sim.recorder import DIGITS, SLOWDOWN_BOUND_S, Summary
from gschedd.sim.reservations import read_reservations
from gschedd.sim.simulation import BEGIN_S, MANY_MOVES, Options, Simulation
from gschedd.sim.sites import site_file
from gschedd.sim.traces import FORMS, Trace, read_trace
from gschedd.sim.work import WORK_MODELS
from gschedd.sim.workload import TraceJob

TURNS = 200  # moments between two looks at the progress bar, and at Ctrl-C

EPILOG = """\b
Examples:
  gsim run jobs.swf --cluster 64xcpus=32 --policy fifo
  gsim run jobs.csv --cluster cluster.toml --policy balance --work shared --csv results
  gsim replay --since 1d                             this site's policy and database
  gsim replay --since 30d --state-dir /var/lib/gsched --policy balance,fifo
  gsim replay --since 30d --config other.toml --database copy.db --policy balance
  gsim replay --since 30d --savings                  what [power] and [idle_gpus] give, and cost
  gsim plan snapshot.json --policy elasticflow
"""


class SimOptions(Struct, frozen=True, kw_only=True):
    """What the options common to all sub-commands say.

    Attributes:
        site: what ``config`` holds; the defaults where none is named.
    """

    policies: tuple[str, ...]
    work: str
    seed: int
    jitter_percent: float
    limit: int | None
    as_json: bool
    json_path: str
    csv_dir: str
    parquet: bool
    figures_dir: str
    config: str
    planning_s: float | None
    savings: bool
    boot_s: float
    reservations: str
    site: Config


def common_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of every sub-command, handed over as one `Wanted`."""

    def gathered(**values: object) -> int:
        fields = {name: values.pop(name) for name in SimOptions.__struct_fields__ if name in values}
        named = str(fields["policies"] or "")
        if not named:
            fields["config"] = site_file(str(fields["config"]))
        own = named == "" or fields["config"]
        site = load_config(str(fields["config"]) or None) if own else Config()
        fields["site"] = site
        if fields["savings"]:
            _check_savings(site)
        fields["policies"] = chosen_policies(named) if named else (site.queue[0].policy,)
        wanted = SimOptions(**fields)  # type: ignore[arg-type] # as click has checked them
        if wanted.parquet:
            if not wanted.csv_dir:
                raise UsageError("--parquet goes with --csv", hint="say where with --csv DIR")
            output.require("pyarrow", option="--parquet", extra="'.[parquet]'")
        if wanted.figures_dir:
            output.require("matplotlib", option="--figures", extra="'.[figures]'")
        return function(wanted, **values)

    wrapped = update_wrapper(gathered, function)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_OPTIONS = (
    click.option(
        "--policy",
        "policies",
        metavar="NAME[,NAME...]",
        help=f"Policies to compare: {', '.join(SIMULATED.names)} [default: the site's own].",
    ),
    click.option(
        "--work",
        type=click.Choice(sorted(WORK_MODELS)),
        default="fixed",
        show_default=True,
        metavar="MODEL",
        help="fixed: a job takes its time; shared: it slows down where CPUs are over-used.",
    ),
    click.option(
        "--seed",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Random seed for --jitter.",
    ),
    click.option(
        "--jitter",
        "jitter_percent",
        type=click.FloatRange(0, 99),
        default=0.0,
        show_default=True,
        metavar="PERCENT",
        help="Vary every job's duration at random by up to this much.",
    ),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs."),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    click.option(
        "--json-file", "json_path", default="", metavar="FILE", help="Write the report as JSON."
    ),
    click.option(
        "--csv", "csv_dir", default="", metavar="DIR", help="Write each job's result as CSV."
    ),
    click.option("--parquet", is_flag=True, help="Write the results as Parquet, too."),
    click.option(
        "--figures", "figures_dir", default="", metavar="DIR", help="Draw PNG and SVG figures."
    ),
    click.option(
        "--config",
        default="",
        metavar="FILE",
        help="A site's gsched.toml, for what it says of policies and of its network.",
    ),
    click.option(
        "--planning-time",
        "planning_s",
        type=click.FloatRange(min=0, max=86400),
        metavar="SECONDS",
        help="Model the time of each plan for training jobs [default: none].",
    ),
    click.option(
        "--savings",
        is_flag=True,
        help="Run each policy also with the site's power saving and its rules for idle GPUs.",
    ),
    click.option(
        "--boot-time",
        "boot_s",
        type=click.FloatRange(min=0, max=86400),
        default=180.0,
        show_default=True,
        metavar="SECONDS",
        help="With --savings: until a node that is powered up has registered.",
    ),
    click.option(
        "--reservations",
        default="",
        metavar="FILE",
        help="TOML file with [[reservation]] tables: what is kept for whom.",
    ),
    click.help_option("--help", help="Print a summary of the options and exit."),
)


def _check_savings(site: Config) -> None:
    """Check that a site saves something.

    Raises:
        UsageError: it does not, or its file does not say so.
    """
    if not site.power.is_on and site.idle_gpus.action in {"report", "warn"}:
        raise UsageError(
            "--savings: the configuration has no power saving, and ends no jobs with idle GPUs",
            hint="set suspend_program and resume_program in [power], or action in [idle_gpus], of "
            "the file that --config names: see gsched.toml(5)",
        )


@click.group(
    name="gsim",
    epilog=EPILOG,
    no_args_is_help=False,
    context_settings={"help_option_names": ["--help"], "max_content_width": 100},
)
@version_option
def gsim() -> None:
    """Replay jobs in simulated time, with the scheduling code of the head."""


@gsim.command(name="run", cls=QuickCommand)
@click.argument("trace_path", metavar="TRACE")
@click.option(
    "--cluster",
    required=True,
    metavar="CLUSTER",
    help="A TOML file, or a text like 1000xcpus=32,gpus=4,memory=128gb.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMS)),
    metavar="FORM",
    help=f"Format of the trace, if its name does not tell it: {', '.join(FORMS)}.",
)
@click.option("--strict", is_flag=True, help="Refuse a trace with a line that cannot be read.")
@common_options
def run_command(
    wanted: SimOptions, /, *, trace_path: str, cluster: str, form: str | None, strict: bool
) -> int:
    """Replay the trace TRACE (SWF, CSV, JSONL or the Philly log) on a described cluster."""
    nodes = read_cluster(cluster)
    trace = read_trace(trace_path, form=form or "", limit=wanted.limit)
    if strict and trace.malformed:
        _print_faults(trace, Console(stderr=True, soft_wrap=True))
        raise UsageError(
            f"trace {trace_path} has {_count(trace.malformed, 'malformed line')}",
            hint="correct them, or leave out --strict to pass them over",
        )
    return compare(wanted, trace, nodes, cluster=cluster)


@gsim.command(name="replay", cls=QuickCommand)
@click.option(
    "--since",
    required=True,
    metavar="MOMENT",
    help="Jobs submitted at or after: 2026-11-20, '2026-11-20 08:00', 30d, yesterday.",
)
@click.option("--until", metavar="MOMENT", help="Submitted before that moment.")
@click.option("--database", default="", metavar="FILE", help="The head's database, or a copy.")
@click.option("--state-dir", default="", metavar="DIR", help="The head's state directory.")
@click.option(
    "--cluster", default="", metavar="CLUSTER", help="Another cluster than the site's own nodes."
)
@common_options
def replay_command(
    wanted: SimOptions,
    /,
    *,
    since: str,
    until: str | None,
    database: str,
    state_dir: str,
    cluster: str,
) -> int:
    """Replay a site's own past jobs from the head's database."""
    now_s = SystemClock().wall_s()
    since_s = parse_moment(since, now_s=now_s, option="--since")
    until_s = None if until is None else parse_moment(until, now_s=now_s, option="--until")
    path = database_path(database=database, state_dir=state_dir, config=wanted.config)
    trace, own_nodes = read_history(path, since_s=since_s, until_s=until_s, limit=wanted.limit)
    nodes = read_cluster(cluster) if cluster else own_nodes
    return compare(wanted, trace, nodes, cluster=cluster or path)


gsim.add_command(plan_command)


class StopRequest:
    """Takes the first Ctrl-C (or TERM) for a wish to end with what there is; the second ends it."""

    def __init__(self) -> None:
        self.wanted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.wanted = True
        signal.signal(number, signal.default_int_handler)


def chosen_policies(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas, each once.

    Raises:
        UsageError: one is not known, or there is none.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in SIMULATED.names:
            error = unknown_policy(name, SIMULATED.names)
            raise UsageError(error.message, hint=error.hint)
    if not names:
        raise UsageError("no policy is named", hint=f"valid: {', '.join(SIMULATED.names)}")
    return names


def compare(
    wanted: SimOptions, trace: Trace, nodes: tuple[ClusterNode, ...], *, cluster: str
) -> int:
    """Run every policy on one trace, write what was requested, print the report."""
    console = Console(soft_wrap=True)
    errors = Console(stderr=True, soft_wrap=True)
    _print_faults(trace, errors)
    for directory in filter(None, (wanted.csv_dir, wanted.figures_dir)):
        output.make_directory(directory)
    jobs = with_jitter(trace.jobs, seed=wanted.seed, percent=wanted.jitter_percent)
    stop = StopRequest()
    summaries: list[Summary] = []
    interrupted = False
    kinds = (False, True) if wanted.savings else (False,)
    for policy, savings in product(wanted.policies, kinds):
        this = structs.replace(wanted, savings=savings)
        summary, interrupted = _replay(this, jobs, nodes, policy, errors, stop)
        if summary.savings is not None:
            added_s = summary.waiting_s.mean - summaries[-1].waiting_s.mean
            summary.savings.wait_added_s = round(added_s, DIGITS)
        summaries.append(summary)
        if interrupted:
            break
    document = output.SimReport(
        schema=output.SCHEMA,
        slowdown_bound_s=SLOWDOWN_BOUND_S,
        trace=trace.path,
        cluster=cluster,
        nodes=len(nodes),
        work=wanted.work,
        seed=wanted.seed,
        jitter_percent=wanted.jitter_percent,
        malformed=trace.malformed,
        skipped=dict(sorted(trace.skipped.items())),
        interrupted=interrupted,
        results=summaries,
    )
    _write(wanted, document)
    if wanted.as_json:
        print_json(document)
    else:
        report.print_report(summaries, console)
    if interrupted:
        _print_interruption(wanted, summaries[-1], len(jobs), errors)
        return EXIT_INTERRUPTED
    refused = summaries[0].refused
    if sum(refused.values()) == len(jobs):
        most = max(refused, key=lambda text: refused[text])
        raise UsageError(
            f"none of the {len(jobs)} jobs could ever run on this cluster: {most}",
            hint="compare what they ask for with the nodes of --cluster",
        )
    return 0


def with_jitter(jobs: list[TraceJob], *, seed: int, percent: float) -> list[TraceJob]:
    """Return the jobs with durations varied by up to ``percent``, the same ones for a seed."""
    if not percent:
        return jobs
    chance = random.Random(seed)
    width = percent / 100
    return [
        structs.replace(job, duration_s=job.duration_s * chance.uniform(1 - width, 1 + width))
        for job in jobs
    ]


def _replay(
    wanted: SimOptions,
    jobs: list[TraceJob],
    nodes: tuple[ClusterNode, ...],
    policy: str,
    errors: Console,
    stop: "StopRequest",
) -> tuple[Summary, bool]:
    """Run one policy to its end or to Ctrl-C; return the results, and whether it was stopped."""
    name = f"{policy}+savings" if wanted.savings else policy
    writer = (
        output.ResultWriter(Path(wanted.csv_dir) / f"results-{name}.csv")
        if wanted.csv_dir
        else None
    )
    site = wanted.site
    chosen = SIMULATED.choose(policy, site)
    simulation = Simulation(
        nodes,
        jobs,
        chosen.plan,
        options=Options(
            policy=policy,
            work=wanted.work,
            make_model=chosen.make_model,
            heartbeats=chosen.reads_loads,
            plans_training=chosen.plans_training,
            plans_adaptive=chosen.plans_adaptive,
            fabric=fabric_of(site.fabric),
            move_s=site.training.move_s,
            max_moves=site.moves.at_once if wanted.config else MANY_MOVES,
            predicted_times=site.balance.predicted_times and chosen.predicts_run_times,
            site=site,
            planning_s=wanted.planning_s,
            savings=wanted.savings,
            boot_s=wanted.boot_s,
            reservations=(
                read_reservations(wanted.reservations, BEGIN_S) if wanted.reservations else ()
            ),
        ),
        on_result=writer.write if writer is not None else None,
    )
    interrupted = False
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} jobs"))
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        bar = progress.add_task(name, total=len(jobs))
        try:
            while simulation.run(turns=TURNS):
                progress.update(bar, completed=simulation.recorder.done)
                if stop.wanted:
                    interrupted = True
                    break
        finally:
            if writer is not None:
                writer.close()
    return simulation.summary(name), interrupted


def _write(wanted: SimOptions, document: output.SimReport) -> None:
    if wanted.csv_dir:
        directory = Path(wanted.csv_dir)
        for summary in document.results:
            output.write_series(directory / f"series-{summary.policy}.csv", summary)
            if wanted.parquet:
                output.write_parquet(directory / f"results-{summary.policy}.csv")
    if wanted.json_path:
        output.write_json(Path(wanted.json_path), document)
    if wanted.figures_dir:
        figures.draw(document.results, Path(wanted.figures_dir))


def _print_faults(trace: Trace, errors: Console) -> None:
    for fault in trace.faults:
        errors.print(f"gsim: {fault}", highlight=False, markup=False)
    if trace.malformed:
        more = trace.malformed - len(trace.faults)
        rest = f", {more} of them not shown" if more else ""
        count = _count(trace.malformed, "malformed line")
        errors.print(f"gsim: {count}{rest}", highlight=False)
    for reason, skipped in sorted(trace.skipped.items()):
        errors.print(f"gsim: {_count(skipped, 'job')} left out: {reason}", highlight=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _print_interruption(wanted: SimOptions, summary: Summary, total: int, errors: Console) -> None:
    kept = ", ".join(path for path in (wanted.csv_dir, wanted.json_path) if path)
    errors.print(
        f"gsim: interrupted in policy {summary.policy}: {summary.done} of {total} jobs were done; "
        + (f"what was written so far is in {kept}" if kept else "nothing was to be written"),
        highlight=False,
    )


def main() -> None:
    """Run the command; a user never sees a traceback, except with $GSCHED_DEBUG set."""
    # Few objects of a run are garbage in cycles, and looking for those among millions costs time.
    gc.set_threshold(200_000, 20, 20)
    complete_if_requested(gsim)
    sys.exit(status_of(sys.argv[1:]))


def status_of(arguments: Sequence[str]) -> int:
    """Run the command with these arguments, print its error if it has one, return its status."""
    try:
        with gsim.make_context("gsim", list(arguments)) as context:
            status = gsim.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except GschedError as error:
        print_error(error, command="gsim")
        return error.exit_code
    except click.ClickException as error:
        where = error.ctx if isinstance(error, click.UsageError) else None
        path = where.command_path if where is not None else "gsim"
        failure = UsageError(error.format_message(), hint=f"see `{path} --help`")
        print_error(failure, command="gsim")
        return failure.exit_code
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if environment("GSCHED_DEBUG"):
            raise
        fault = InternalError(
            f"a fault of gsim itself: {type(error).__name__}: {error}",
            hint="run it again with GSCHED_DEBUG=1 and report what it prints",
        )
        print_error(fault, command="gsim")
        return fault.exit_code
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
