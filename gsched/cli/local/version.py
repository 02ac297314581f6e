"""``gsched version``: which versions are at work here."""

import platform
import sqlite3

from gsched.cli.common import head_option, print_json
from gsched.cli.local.options import subcommand
from gsched.client import HeadClient
from gsched.errors import GschedError
from gsched.protocol.api import API_VERSION
from gsched.version import VERSION


@subcommand("version")
@head_option
def version(*, head_address: str, as_json: bool) -> int:
    """Show the versions of these commands, the API, Python, SQLite and the head."""
    try:
        head = HeadClient(head_address, patience_s=0.0).status().version
    except GschedError as error:
        head = f"none ({error.message})"
    versions = {
        "gsched": VERSION,
        "api": str(API_VERSION),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "head": head,
    }
    if as_json:
        print_json(dict(versions))
    else:
        for name, text in versions.items():
            print(f"{name} {text}")
    return 0
