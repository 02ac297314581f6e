"""A head that plans by any policy: ``-m scripts.reproduce.balance_head NAME --config FILE``."""

import asyncio
import logging
import sys

from baselines.registry import ALL
from gsched.config.load import read_config
from gschedd.daemon.service import Service


def main() -> int:
    """Run the head until it is stopped."""
    logging.basicConfig(level="INFO")
    name, _, path = sys.argv[1:]
    file = read_config(path)
    return asyncio.run(Service(file, chosen=ALL.choose(name, file.config)).run())


if __name__ == "__main__":
    sys.exit(main())
