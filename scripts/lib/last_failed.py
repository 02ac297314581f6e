"""Print the tests that failed in the last run, one on a line, as pytest takes them."""

import json
import pathlib
import re

_CACHE = pathlib.Path(".pytest_cache/v/cache/lastfailed")
#: What xdist writes behind the name of a test that has a group.
_GROUP = re.compile(r"@[^\[\]]*$")


def main() -> None:
    """Print them; nothing if none failed."""
    if _CACHE.exists():
        for name in json.loads(_CACHE.read_text()):
            print(_GROUP.sub("", name))


if __name__ == "__main__":
    main()
