"""Print the tests that failed in the last run, one on a line, as pytest names them."""

import json
import pathlib

_CACHE = pathlib.Path(".pytest_cache/v/cache/lastfailed")


def main() -> None:
    """Print them; nothing if none failed."""
    if _CACHE.exists():
        for name in json.loads(_CACHE.read_text()):
            print(name)


if __name__ == "__main__":
    main()
