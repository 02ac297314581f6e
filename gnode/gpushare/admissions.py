"""The jobs that the token daemon has admitted, in the file that the next daemon reads."""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from gnode.gpushare.addresses import GROUPS_FILE
from gnode.gpushare.node_tokens import Admission
from gsched.files import replace_file
from gsched.model.states import ShareClass

log = logging.getLogger(__name__)


class AdmissionsFile:
    """``groups.json``.

    Args:
        directory: of the daemon's files.

    Attributes:
        is_behind: it could not be written, and lacks what was decided since.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / GROUPS_FILE
        self.is_behind = False

    def save(self, admissions: Iterable[Admission]) -> None:
        """Write the file; an error, such as a full file system, is logged and does not raise."""
        rows = [
            {
                "group": one.group,
                "gpu": one.gpu,
                "share_class": str(one.share_class),
                "memory_bytes": one.memory_bytes,
                "secret_hash": one.secret_hash,
            }
            for one in admissions
        ]
        try:
            replace_file(str(self._path), json.dumps(rows).encode())
        except OSError as error:
            if not self.is_behind:
                log.error(
                    "%s cannot be written: %s. The jobs go on; a restarted token daemon would not "
                    "know those of now: make room or repair the file system",
                    *(self._path, error.strerror),
                )
            self.is_behind = True
            return
        if self.is_behind:
            log.info("%s is written again", self._path)
        self.is_behind = False

    def load(self) -> list[Admission]:
        """Return what the last daemon had admitted; nothing if the file cannot be used."""
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))
            return [admission_of(row) for row in rows]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("%s cannot be used: %s", GROUPS_FILE, error)
            return []


def admission_of(fields: Mapping[str, object]) -> Admission:
    """Return an admission from the fields of a message or of the file."""
    return Admission(
        group=str(fields["group"]),
        gpu=str(fields["gpu"]),
        share_class=ShareClass(str(fields["share_class"])),
        memory_bytes=int(cast("int", fields["memory_bytes"])),
        secret_hash=str(fields["secret_hash"]),
    )
