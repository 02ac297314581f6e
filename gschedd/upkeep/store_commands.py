"""``gsched store``: the replicated store of two heads, and the way there and back."""

import os
import sqlite3
from contextlib import closing

import click

from gsched.cli.common import print_json
from gsched.cli.local.config_show import load_found
from gsched.cli.local.options import subcommand
from gsched.clock import SystemClock
from gsched.config.tables import Config
from gsched.errors import BadStateError, InvalidRequestError
from gsched.model.units import format_duration, format_size
from gschedd.daemon.head_lease import open_log
from gschedd.daemon.lock import no_head
from gschedd.store.journal import ReplicatedLog
from gschedd.store.schema import SCHEMA_VERSION
from gschedd.store.sqlite import DATABASE
from gschedd.store.standby import Follower, leave_log, publish, reached
from gschedd.upkeep.commands import config_option, work_as_head

_EPILOG = """\b
Examples:
  gsched store copy           before two heads use the PostgreSQL database of [store] url
  gsched store copy --back    before one head goes on without it
  gsched store status
"""


@click.group(name="store", epilog=_EPILOG)
def store() -> None:
    """Show or fill the PostgreSQL database that two heads share."""


def _shared(config: Config) -> ReplicatedLog:
    """Return the replicated log that the configuration names.

    Raises:
        InvalidRequestError: it names none.
    """
    if not config.store.url:
        raise InvalidRequestError(
            "the configuration names no store that two heads share",
            hint='set url = "postgresql://USER@HOST/DATABASE" in [store]',
        )
    return open_log(config.store, config.head)


@subcommand("copy")
@click.option("--back", is_flag=True, help="Copy the shared store to the database of this host.")
@click.option("--replace", is_flag=True, help="Replace what the shared store has.")
@config_option
def copy(*, back: bool, replace: bool, config_path: str | None, as_json: bool) -> int:
    """Copy the database of this host's head to the shared store, or back; no head may run."""
    _, config = load_found(config_path)
    work_as_head(config)
    path = os.path.join(config.head.state_dir, DATABASE)
    shared = _shared(config)
    with no_head(config.head.state_dir):
        ruler = shared.ruler()
        number = shared.acquire()
        if not number:
            raise BadStateError(
                f"the head {ruler.holder} rules the cluster",
                hint="stop it first: systemctl stop gschedd",
            )
        try:
            position = _copy_back(path, shared) if back else _copy(path, shared, number, replace)
        finally:
            shared.release(number)
    size_bytes = os.path.getsize(path)
    if as_json:
        print_json({"position": position, "bytes": size_bytes, "back": back})
    elif back:
        print(f"copied record {position} to {path}: {format_size(size_bytes)}")
        print("next: remove url from [store] and start the head")
    else:
        print(f"copied {path} as record {position}: {format_size(size_bytes)}")
        print(
            "next: start the head; gsched token create --role head prints a line for a second one"
        )
    return 0


def _copy(path: str, shared: ReplicatedLog, number: int, replace: bool) -> int:  # noqa: FBT001 # an option
    if not os.path.exists(path):
        raise InvalidRequestError(
            f"{path} does not exist", hint="run it on the machine of the head that has the jobs"
        )
    newest = shared.newest()
    if newest and not replace:
        raise BadStateError(
            f"the shared store has {newest} records already",
            hint="--replace replaces them; --back copies them to this host",
        )
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        schema = db.execute("PRAGMA user_version").fetchone()[0]
        if schema != SCHEMA_VERSION:
            raise BadStateError(
                f"{path} has schema {schema}, this gsched has {SCHEMA_VERSION}",
                hint="bring it to this schema first: gsched upgrade",
            )
        position = max(newest, reached(db)[0]) + 1
        publish(db, path, shared, number, position)
    return position


def _copy_back(path: str, shared: ReplicatedLog) -> int:
    if not shared.newest():
        raise BadStateError("the shared store is empty", hint="there is nothing to copy")
    position = Follower(path, shared, SystemClock()).catch_up()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        leave_log(db)
    return position


@subcommand("status")
@config_option
def status(*, config_path: str | None, as_json: bool) -> int:
    """Show which head rules, and how far the shared store and this host are."""
    _, config = load_found(config_path)
    work_as_head(config)
    shared = _shared(config)
    ruler, newest = shared.ruler(), shared.newest()
    path = os.path.join(config.head.state_dir, DATABASE)
    here = -1
    if os.path.exists(path):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            here, _ = reached(db)
    if as_json:
        print_json({"ruler": ruler, "newest": newest, "here": here})
        return 0
    left = format_duration(ruler.left_s) if ruler.left_s > 0 else "over"
    print(f"head:          {ruler.holder or 'none yet'}")
    print(f"lease:         {f'{ruler.number}, {left}' if ruler.number else 'none'}")
    print(f"newest record: {newest or 'none'}")
    print(f"this host:     {f'record {here}' if here >= 0 else 'not part of it'}")
    return 0


for _command in (copy, status):
    store.add_command(_command)
