"""``gsched init``: makes what a new site lacks: configuration, authority and directories."""

import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path

from gsched.cli.common import (
    option,
    print_json,
)
from gsched.cli.local.cluster import host_name
from gsched.cli.local.options import subcommand
from gsched.cli.local.toml import write_file
from gsched.clock import SystemClock
from gsched.config.environment import (
    DEFAULT_CONFIG,
    DEFAULT_NODE_STATE_DIR,
    DEFAULT_SOCKET,
    DEFAULT_STATE_DIR,
    HEAD_ACCOUNT,
)
from gsched.config.load import load_config, parse_config
from gsched.config.tables import Config
from gsched.config.words import (
    node_socket_of,
)
from gsched.errors import CannotWriteError, ConfigError, InvalidRequestError
from gsched.pki.files import AUTHORITY, DIRECTORY, check_file

TEMPLATE = """# Configuration of gsched; every key is described in gsched.toml(5).
# Check it with: gsched config check {path}

[head]
server_name = "{name}"
socket = "{socket}"
# node_host = "0.0.0.0" # nodes of other hosts connect here, over TLS: see gsched(1), gsched token
# node_port = 15010
state_dir = "{state}"
# operators = ["alice"] # may do everything, besides root
{single_user}
[[queue]]
name = "batch"
# max_walltime_s = "7d"

[node] # for gnode on this machine
head = "unix:{node_socket}"
state_dir = "{node_state}"
# cpus = 16 # default: all of this machine's
# Setuid programs gain no rights in jobs, so sudo, ping, newgrp and mount.fuse fail in them. Remove
# the line if jobs need one of these.
no_new_privileges = true
"""
SINGLE_USER = "single_user = true # without root the daemons run jobs of this user only\n"


@dataclass(frozen=True, kw_only=True)
class SitePaths:
    """Where a configuration that is written anew puts everything."""

    config: Path
    socket: Path
    state: Path
    node_state: Path


@dataclass(kw_only=True)
class Done:
    """What was made, what was there already and left as it was, and what should be looked at."""

    made: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@subcommand("init")
@option(
    "--dir",
    "directory",
    metavar="D",
    default=None,
    help="Create all files below D instead of /etc/gsched, /run/gsched and /var/lib/gsched.",
)
@option("--name", metavar="SERVER", default="", help="Name of the head in job ids.")
@option(
    "--user",
    metavar="USER",
    default="",
    help="Account of the head [default: gsched, or with --dir your own].",
)
@option("--force", is_flag=True, help="Overwrite the configuration; the authority is always kept.")
def init(*, directory: str | None, name: str, user: str, force: bool, as_json: bool) -> int:
    """Create what a new site lacks: a configuration, an authority and the head's directories.

    The authority issues the certificates of the cluster's hosts.

    Existing files are left unchanged, so it is safe to run this again at any time.
    """
    site = _site(directory)
    account = _account(user, directory)
    done = Done()
    _make_directory(site.config.parent, 0o755, None, done)
    config = _configuration(site, name=name, force=force, done=done)
    _make_directory(Path(config.head.state_dir), 0o700, account, done)
    _make_directory(Path(config.head.socket).parent, 0o755, account, done)
    authority, is_made = _authority(config, account, done)
    if as_json:
        print_json(
            {
                "config": str(site.config),
                "authority": authority,
                "made_authority": is_made,
                "made": done.made,
                "left": done.left,
                "warnings": done.warnings,
            }
        )
        return 0
    for what in done.made:
        print(f"created {what}")
    for what in done.left:
        print(f"kept {what}")
    for warning in done.warnings:
        print(f"warning: {warning}")
    print("next: start gschedd and gnode; other hosts join with the line of gsched token create")
    return 0


def _site(directory: str | None) -> SitePaths:
    if directory is None:
        config = Path(DEFAULT_CONFIG)
        return SitePaths(
            config=config,
            socket=Path(DEFAULT_SOCKET),
            state=Path(DEFAULT_STATE_DIR),
            node_state=Path(DEFAULT_NODE_STATE_DIR),
        )
    base = Path(directory).expanduser().absolute()
    return SitePaths(
        config=base / "gsched.toml",
        socket=base / "run" / "head.sock",
        state=base / "state",
        node_state=base / "node",
    )


def _account(user: str, directory: str | None) -> pwd.struct_passwd | None:
    """Return the account that the head's files are to belong to; None: the caller's.

    Raises:
        InvalidRequestError: there is no such account, or only root can give files to it.
    """
    if not user and (directory is not None or os.geteuid() != 0):
        return None
    name = user or HEAD_ACCOUNT
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise InvalidRequestError(
            f"unknown account {name!r}, which the head is to run as",
            hint="create it with systemd-sysusers or useradd --system, or give another --user",
        ) from None
    if account.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise InvalidRequestError(
            f"only root can give files to {name!r}", hint="run it as root, or omit --user"
        )
    return account


def _configuration(site: SitePaths, *, name: str, force: bool, done: Done) -> Config:
    """Return the configuration that is there, or one that is made now."""
    if site.config.exists() and not force:
        config = load_config(str(site.config))
        done.left.append(str(site.config))
        if name and config.head.server_name != name:
            done.warnings.append(
                f"server_name in {site.config} is {config.head.server_name!r}, not {name!r}: edit "
                "it, or give --force to overwrite it"
            )
        return config
    text = TEMPLATE.format(
        path=site.config,
        name=name or host_name(),
        socket=site.socket,
        state=site.state,
        node_socket=node_socket_of(str(site.socket)),
        node_state=site.node_state,
        single_user=SINGLE_USER if os.geteuid() != 0 else "",
    )
    config = parse_config(text, where=str(site.config))
    write_file(site.config, text)
    done.made.append(str(site.config))
    return config


def _authority(config: Config, account: pwd.struct_passwd | None, done: Done) -> tuple[str, bool]:
    """Make the authority if there is none; return its file, and whether it was made."""
    if config.tls.certificate:
        done.left.append(f"the site's own certificate {config.tls.certificate}")
        return "", False
    from gsched.pki.issuing import make_authority_file

    directory = os.path.join(config.head.state_dir, DIRECTORY)
    path = os.path.join(directory, AUTHORITY)
    name = config.head.server_name or host_name()
    is_made = make_authority_file(directory, name, SystemClock().wall_s(), account)
    (done.made if is_made else done.left).append(f"the cluster's authority {path}")
    if not is_made:
        try:
            wanted = account.pw_uid if account is not None else os.geteuid()
            if os.stat(path).st_uid != wanted:
                owner = account.pw_name if account is not None else str(wanted)
                done.warnings.append(
                    f"the head runs as {owner} and cannot read {path}: "
                    f"chown -R {owner}: {directory}"
                )
            check_file(path, is_secret=True)
        except ConfigError as error:
            done.warnings.append(f"{error}: {error.hint}")
    return path, is_made


def _make_directory(
    path: Path, mode: int, account: pwd.struct_passwd | None, done: Done, *, quiet: bool = False
) -> None:
    hint = "run it as root, or use a directory of your own with --dir"
    if path.is_dir():
        if not quiet:
            done.left.append(str(path))
        if account is not None and path.stat().st_uid != account.pw_uid:
            done.warnings.append(
                f"{path} does not belong to {account.pw_name}, who runs the head: "
                f"chown {account.pw_name}: {path}"
            )
        return
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.mkdir(mode=mode)
        path.chmod(mode)  # whatever the umask is
        if account is not None:
            os.chown(path, account.pw_uid, account.pw_gid)
    except OSError as error:
        raise CannotWriteError(f"{path}: cannot be created: {error.strerror}", hint=hint) from error
    done.made.append(str(path))
