"""Files of the token daemon, in the directory of the runtime."""

from typing import Final

CONTROL_SOCKET: Final = "control.sock"
GROUPS_FILE: Final = "groups.json"
