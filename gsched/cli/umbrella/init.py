"""``gsched init``: configuration, cluster key and directories of a new site."""

import os
from pathlib import Path

import click

from gsched.cli.common import print_json
from gsched.cli.umbrella.cluster import host_name, make_key
from gsched.cli.umbrella.options import subcommand
from gsched.cli.umbrella.toml import write_file
from gsched.config import DEFAULT_NODE_STATE_DIR, DEFAULT_STATE_DIR, parse_config
from gsched.errors import CannotWriteError, InvalidRequestError

DEFAULT_DIRECTORY = "/etc/gsched"

TEMPLATE = """# Configuration of gsched; every key is described in gsched.toml(5).
# Check it with: gsched config check {path}

[head]
server_name = "{name}"
socket = "{socket}"
node_host = "127.0.0.1" # nodes connect here; the channel is not encrypted yet, so keep to loopback
node_port = 15010
state_dir = "{state}"
key_file = "{key}"
# operators = ["alice"] # may do everything, besides root

[[queue]]
name = "batch"
# max_walltime_s = 604800.0

[node] # for gnode on this machine
head = "127.0.0.1:15010"
state_dir = "{node_state}"
key_file = "{key}"
# cpus = 16 # default: all of this machine's
"""


@subcommand("init")
@click.option(
    "--dir",
    "directory",
    metavar="D",
    default=None,
    help="Put everything below D instead of /etc/gsched, /run/gsched and /var/lib/gsched.",
)
@click.option("--name", metavar="SERVER", default="", help="Name of the head in job ids.")
@click.option("--force", is_flag=True, help="Write the configuration anew; a key is always kept.")
def init(*, directory: str | None, name: str, force: bool, as_json: bool) -> int:
    """Write a configuration and make the cluster's key for a new site."""
    base = Path(directory or DEFAULT_DIRECTORY).expanduser().absolute()
    state = base / "state" if directory else Path(DEFAULT_STATE_DIR)
    node_state = base / "node" if directory else Path(DEFAULT_NODE_STATE_DIR)
    run_directory = base / "run" if directory else Path("/run/gsched")
    config, key = base / "gsched.toml", base / "cluster.key"
    if config.exists() and not force:
        raise InvalidRequestError(
            f"{config} is there already", hint="edit it, or give --force to write it anew"
        )
    text = TEMPLATE.format(
        path=config,
        name=name or host_name(),
        socket=run_directory / "head.sock",
        state=state,
        node_state=node_state,
        key=key,
    )
    parse_config(text, where=str(config))
    _make_directory(base, 0o755)
    _make_directory(state, 0o750)
    _make_directory(run_directory, 0o755)
    made_key = make_key(key)
    write_file(config, text)
    if as_json:
        print_json({"config": str(config), "key": str(key), "made_key": made_key})
        return 0
    print(f"wrote {config}")
    print(f"{'made' if made_key else 'kept'} the cluster's key {key}: copy it to every node")
    print(f"next: gschedd --config {config}, and on every node gnode --config FILE")
    return 0


def _make_directory(path: Path, mode: int) -> None:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWriteError(
            f"{path}: cannot be made: {error.strerror}",
            hint="run it as root, or put everything below a directory of yours with --dir",
        ) from error
    if not os.access(path, os.W_OK):
        raise CannotWriteError(
            f"{path}: you may not write there",
            hint="run it as root, or put everything below a directory of yours with --dir",
        )
