"""Messages of the monitor, such as reports: a file each, until the notifier has taken it over.

The notifier alone writes its ledger. It takes a message into the ledger first and removes the file
then, so a kill loses none, and repeats one at most, with the same ``Message-ID``.
"""

import os
import re
from pathlib import Path
from typing import Final

from gsched.files import replace_file
from gschedd.notify.ledger import Ledger
from gschedd.notify.notices import MAIL, Address

#: Messages that wait at most.
LETTERS_MOST: Final = 100
_NAME: Final = re.compile(r"(?P<uid>[0-9]+)-[0-9a-f]{16}\.eml")


def letters_in(state_dir: str) -> Path:
    """Return the directory of messages."""
    return Path(state_dir) / "letters"


def put_letter(directory: Path, message: bytes, *, uid: int) -> bool:
    """Leave a message of a user for the notifier; return whether there is room."""
    directory.mkdir(mode=0o700, exist_ok=True)
    if sum(1 for _ in directory.iterdir()) >= LETTERS_MOST:
        return False
    name = f"{uid}-{os.urandom(8).hex()}.eml"
    replace_file(str(directory / name), message, mode=0o600, durable=True)
    return True


def take_letters(directory: Path, ledger: Ledger, now_s: float) -> None:
    """Take messages over, as far as there is room for them."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        found = _NAME.fullmatch(path.name)
        if found is None:
            continue
        with ledger.transaction():
            address = Address(way=MAIL, lane=f"{MAIL} {found['uid']}")
            taken = ledger.put(address, path.read_bytes(), now_s)
        if taken:
            path.unlink()
