"""``gsched backup``, ``restore`` and ``upgrade``: they work on the head's own files."""

import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from gsched.cli.common import Callback, print_json, print_note, printable
from gsched.cli.local.config_show import load_found
from gsched.cli.local.options import subcommand
from gsched.clock import SystemClock
from gsched.config.tables import Config
from gsched.errors import CannotWriteError, InvalidRequestError, UnreadableScriptError
from gsched.model.units import format_duration, format_size
from gsched.model.wording import counted
from gschedd.store.queues import FILE as QUEUES
from gschedd.store.schema import SCHEMA_VERSION
from gschedd.upkeep.backups import (
    AUTHORITIES,
    CONFIG,
    DATABASE,
    BackupManifest,
    BackupSource,
    back_up,
    verify,
)
from gschedd.upkeep.databases import Progress
from gschedd.upkeep.restoring import RestoredBackup
from gschedd.upkeep.restoring import restore as put_back
from gschedd.upkeep.upgrading import Rehearsal
from gschedd.upkeep.upgrading import rehearse as try_step
from gschedd.upkeep.upgrading import upgrade as take_step

SHOWN_JOBS = 20

_BACKUP_EPILOG = """\b
Examples:
  gsched backup /var/backups/gsched --keep 14    make a backup; keep the newest 14
  gsched restore --check /var/backups/gsched/gsched-20261127T011500Z
"""
_RESTORE_EPILOG = """\b
Example:
  systemctl stop gschedd
  gsched restore /var/backups/gsched/gsched-20261127T011500Z
  systemctl start gschedd
  gsched recover
"""
_UPGRADE_EPILOG = """\b
Examples:
  gsched upgrade --rehearse    while the head runs: how long its next start takes
  gsched upgrade               with the head stopped
"""


def config_option(function: Callback) -> Callback:
    """Add ``--config FILE`` as the parameter ``config_path``."""
    return click.option(
        "--config", "config_path", metavar="FILE", help="Configuration of the head (gsched.toml)."
    )(function)


@subcommand("backup", epilog=_BACKUP_EPILOG)
@click.argument("directory", metavar="DIRECTORY")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep the newest N backups of this cluster in DIRECTORY and remove older ones.",
)
@config_option
def backup(*, directory: str, keep: int | None, config_path: str | None, as_json: bool) -> int:
    """Save the head's database, notifications, code snapshots, configuration and authority.

    The head may run. The backup is a new directory below DIRECTORY, named by its time. It is
    checked before it gets its name. Exits with 1 if rows of the database are damaged.
    """
    path, config = load_found(config_path)
    work_as_head(config, made=directory)
    started_s = SystemClock().monotonic_s()
    origin = BackupSource(state_dir=config.head.state_dir, config=path)
    with _shown(quiet=as_json) as progress:
        saved = back_up(
            origin,
            os.path.abspath(directory),
            now_s=SystemClock().wall_s(),
            keep=keep or 0,
            progress=progress,
        )
    took_s = SystemClock().monotonic_s() - started_s
    contents = saved.manifest.contents
    if as_json:
        print_json({"backup": saved, "took_s": took_s})
        return 1 if contents.damaged else 0
    print(
        f"saved {saved.path}: {format_size(saved.manifest.size_bytes)}, "
        f"{counted(contents.rows['jobs'], 'job')} up to {contents.next_job - 1}, checked, "
        f"in {took_s:.1f} s"
    )
    for each in saved.removed:
        print(f"removed {each}")
    for each in saved.left_out:
        print_note(f"left out: {each}", command="gsched")
    _warn_of_place(config, saved.path)
    return _warn_of_damage(contents.damaged)


def _warn_of_place(config: Config, path: str) -> None:
    if os.stat(config.head.state_dir).st_dev == os.stat(path).st_dev:
        print_note(
            "the backup is on the file system of the database: copy it to another machine",
            command="gsched",
        )


def _warn_of_damage(damaged: tuple[str, ...]) -> int:
    for each in damaged[:SHOWN_JOBS]:
        print_note(f"damaged in the database: {printable(each)}", command="gsched")
    if not damaged:
        return 0
    print_note(
        f"{counted(len(damaged), 'row')} of the database are damaged, see Damaged records in "
        "gsched(1); older backups are kept",
        command="gsched",
    )
    return 1


@subcommand("restore", epilog=_RESTORE_EPILOG)
@click.argument("backup_path", metavar="BACKUP")
@click.option("--check", is_flag=True, help="Only check the backup; the head may run.")
@config_option
def restore(*, backup_path: str, check: bool, config_path: str | None, as_json: bool) -> int:
    """Put a backup in place of the head's database; the head must not run.

    The backup is checked first, and the files that are there are kept. The head then starts in
    safe mode: `gsched recover` shows what its nodes know, and ends it.
    """
    found, config = load_found(config_path)
    path = os.path.abspath(backup_path)
    if not check:
        work_as_head(config)
    if not os.access(path, os.R_OK | os.X_OK):
        account = pwd.getpwuid(os.geteuid()).pw_name
        raise UnreadableScriptError(
            f"{path} does not exist, or {account}, the account of the head, cannot read it",
            hint=f"name a backup; give it to the account with chown -R {account}: {path}",
        )
    with _shown(quiet=as_json) as progress:
        if check:
            manifest = verify(path, progress)
            restored = None
        else:
            now_s = SystemClock().wall_s()
            restored = put_back(path, config.head.state_dir, now_s=now_s, progress=progress)
            manifest = restored.manifest
    if as_json:
        print_json({"manifest": manifest, "restored": restored})
        return 0
    _print_manifest(path, manifest)
    if restored is not None:
        _print_restored(restored, config)
        _print_differences(path, found, config)
    return 0


def _print_manifest(path: str, manifest: BackupManifest) -> None:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.made_s))
    contents = manifest.contents
    print(
        f"checked {path}: of {made} on {manifest.host}, gsched {manifest.version}, schema "
        f"{contents.schema}, {format_size(manifest.size_bytes)}, "
        f"{counted(contents.rows['jobs'], 'job')} up to {contents.next_job - 1}"
    )
    if contents.schema != SCHEMA_VERSION:
        print(f"the head makes schema {SCHEMA_VERSION} of schema {contents.schema} at its start")
    _warn_of_damage(contents.damaged)


def _print_restored(restored: RestoredBackup, config: Config) -> None:
    first = restored.manifest.contents.next_job
    print(f"restored {os.path.join(config.head.state_dir, DATABASE)}")
    if restored.kept:
        print(f"kept {restored.kept}: the files that were there; remove them when all is well")
    if restored.next_job > first:
        print(
            f"jobs {first} to {restored.next_job - 1} are newer than the backup: the nodes know "
            "those that have started, and no number is given out twice"
        )
    if restored.waiting:
        print("these were waiting; their users must submit them again:")
        for job in restored.waiting[:SHOWN_JOBS]:
            print(f"  {job.id}  {printable(job.user)}  {printable(job.name)}")
        if len(restored.waiting) > SHOWN_JOBS:
            print(f"  and {len(restored.waiting) - SHOWN_JOBS} more")
    print(
        "next: start the head. It is in safe mode until its nodes have confirmed the database or "
        "an operator accepts the loss: see `gsched recover`"
    )


def _print_differences(path: str, found: str, config: Config) -> None:
    """Say which of configuration, authority and queues differ from the backup, and are kept."""
    state = config.head.state_dir
    for name, current in (
        (CONFIG, found),
        *((name, os.path.join(state, name)) for name in (QUEUES, *AUTHORITIES)),
    ):
        saved = os.path.join(path, name)
        if os.path.exists(saved) and _content(saved) != _content(current):
            why = "hosts that joined by that of the backup are refused; "
            why = why if name in AUTHORITIES else ""
            print_note(
                f"{current} differs from {saved}; {why}it is left as it is", command="gsched"
            )


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


@subcommand("upgrade", epilog=_UPGRADE_EPILOG)
@click.option(
    "--rehearse", is_flag=True, help="Only try the step on a copy; the head may run meanwhile."
)
@config_option
def upgrade(*, rehearse: bool, config_path: str | None, as_json: bool) -> int:
    """Bring the head's database to the schema of this gsched, after a rehearsal on a copy.

    A head does this at its start, too. With --rehearse the database is left as it is, and the
    command prints how long the next start of the head takes.
    """
    _, config = load_found(config_path)
    work_as_head(config)
    with _shown(quiet=as_json) as progress:
        work = try_step if rehearse else take_step
        done = work(config.head.state_dir, clock=SystemClock(), progress=progress)
    if as_json:
        print_json({"rehearsal": done, "schema_of_gsched": SCHEMA_VERSION, "done": not rehearse})
        return 0
    path = os.path.join(config.head.state_dir, DATABASE)
    if done is None:
        state = f"has schema {SCHEMA_VERSION}, that of this gsched"
        print(
            f"{path} {state if os.path.exists(path) else 'does not exist'}: there is nothing to do"
        )
    else:
        _print_rehearsal(done, path, is_done=not rehearse)
    return 0


def _print_rehearsal(done: Rehearsal, path: str, *, is_done: bool) -> None:
    print(
        f"rehearsed on a copy of {path}: {format_size(done.size_bytes)}, "
        f"{counted(sum(done.contents.rows.values()), 'row')}, checked; copied in "
        f"{done.copy_s:.1f} s, started in {done.start_s:.1f} s"
    )
    if is_done:
        print(f"schema {done.before} is now schema {done.contents.schema}")
        print(f"kept {path}.schema-{done.before}: the database before; remove it when all is well")
    else:
        print(
            f"schema {done.before} becomes schema {done.contents.schema} at the next start of the "
            f"head, which takes about {format_duration(done.start_s + done.copy_s)} longer; a copy "
            "is kept"
        )
    if done.contents.damaged:
        print_note(
            f"{counted(len(done.contents.damaged), 'damaged row')} left unchanged; see gsched "
            "doctor",
            command="gsched",
        )


def work_as_head(config: Config, *, made: str = "") -> None:
    """Go on as the account that owns the head's state directory; make a directory for it first.

    So root follows no link that this account has made.

    Raises:
        InvalidRequestError: the state directory is missing.
        CannotWriteError: the directory cannot be made, or written by this account.
    """
    state = config.head.state_dir
    try:
        owner = os.stat(state).st_uid
    except OSError as error:
        raise InvalidRequestError(
            f"{state}, the state directory of the head: {error.strerror}",
            hint="run it on the head's machine; `gsched init` creates the directory; --config "
            "names another configuration",
        ) from None
    os.umask(0o077)
    account = pwd.getpwuid(owner)
    _check_access(state, account.pw_name)
    try:
        if made and not os.path.isdir(made):
            os.mkdir(made, 0o700)
            os.chown(made, owner, account.pw_gid)
    except OSError as error:
        raise CannotWriteError(
            f"{made}: cannot be created: {error.strerror}",
            hint=f"name a directory that {account.pw_name}, the account of the head, can write",
        ) from None
    if os.geteuid() == 0 and owner != 0:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(owner)
    for path in filter(None, (state, made)):
        _check_access(path, account.pw_name)


def _check_access(path: str, account: str) -> None:
    """Check that this account can write a directory.

    Raises:
        CannotWriteError: it cannot.
    """
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        user = pwd.getpwuid(os.geteuid()).pw_name
        whom = "root" if account == "root" else f"root or as {account}"
        raise CannotWriteError(
            f"{path}: {user} cannot write it",
            hint=f"run this as {whom}, the account of the head, which must be able to write {path}",
        )


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Progress]:
    """Yield a function that draws bars on a terminal on stderr."""
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not Console(stderr=True).is_terminal,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show
