"""What operators have changed of queues, in a file beside the database."""

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from gsched.files import replace_file
from gschedd.core.requests.queues import Overrides

log = logging.getLogger("gschedd.queues")

FILE: Final = "queues.json"


def read_overrides(state_dir: str) -> Overrides:
    """Return what was written last; nothing where there is no file, or none that can be read."""
    path = Path(state_dir, FILE)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Overrides)
    except FileNotFoundError:
        return Overrides()
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read: %s; queues are as configured", path, error)
        return Overrides()


def write_overrides(state_dir: str, overrides: Overrides) -> None:
    """Write it so that a crash leaves the old file or the new one.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    body = msgspec.json.format(msgspec.json.encode(overrides), indent=2) + b"\n"
    replace_file(os.path.join(state_dir, FILE), body, durable=True)
