"""``gsched join --as-head``: gives this host the authority, so that it can stand by as a head."""

import os
import pwd
from pathlib import Path
from typing import Final

from gsched.cli.common import print_json
from gsched.config.environment import DEFAULT_STATE_DIR, HEAD_ACCOUNT
from gsched.config.load import load_config
from gsched.errors import BadStateError, CannotWriteError
from gsched.files import replace_file
from gsched.pki.files import AUTHORITY, DIRECTORY, NEXT
from gsched.protocol.joining import JoinedHead

_NEXT: Final = (
    "next: copy gsched.toml of the first head here, with [store] url; then "
    "systemctl enable --now gschedd: it stands by"
)


def state_dir_of(config_path: Path) -> str:
    """Return where the authority is to be, if that is possible.

    Raises:
        BadStateError: there is an authority already.
        CannotWriteError: the directory cannot be written.
    """
    config = load_config(str(config_path)) if config_path.exists() else None
    state_dir = config.head.state_dir if config is not None else DEFAULT_STATE_DIR
    path = os.path.join(state_dir, DIRECTORY, AUTHORITY)
    if os.path.exists(path):
        raise BadStateError(
            f"there is an authority already: {path}",
            hint="if it is of another cluster, or made by gsched init or scripts/install on this "
            f"host, stop gschedd and move {os.path.dirname(path)} away: no host trusts it",
        )
    parent = state_dir
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CannotWriteError(f"{parent} cannot be written", hint="run it as root")
    return state_dir


def keep_authority(state_dir: str, joined: JoinedHead, *, as_json: bool) -> int:
    """Write the authority, for the account of the head, and say what is next."""
    directory = Path(state_dir, DIRECTORY)
    account = _account(state_dir)
    made = [each for each in (directory.parent, directory) if not each.is_dir()]
    for each in made:
        each.mkdir(mode=0o700, parents=True)
    for name, text in ((AUTHORITY, joined.authority), (NEXT, joined.next)):
        if text:
            replace_file(str(directory / name), text.encode(), durable=True)
            made.append(directory / name)
    for each in made:
        if account is not None:
            os.chown(each, account.pw_uid, account.pw_gid)
    authority = str(directory / AUTHORITY)
    if as_json:
        print_json({"role": "head", "server": joined.server, "authority": authority})
        return 0
    print(f"this host has the authority of the cluster {joined.server}: {authority}")
    print(_NEXT)
    return 0


def _account(state_dir: str) -> pwd.struct_passwd | None:
    """Return whose the files are to be: who owns the state directory, or the head's account."""
    if os.geteuid() != 0:
        return None
    try:
        if os.path.exists(state_dir):
            return pwd.getpwuid(os.stat(state_dir).st_uid)
        return pwd.getpwnam(HEAD_ACCOUNT)
    except KeyError:
        return None
