"""The commands, a module each.

No garbage is collected from here on: a command has one short life (`gsched.cli.running.end_with`).
"""

import gc

gc.disable()
