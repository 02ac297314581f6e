"""What daemons and commands import or compute at their first use, for the server of forks.

Each fork finds it in memory: modules that are imported late, and what msgspec and ``re`` keep of
the types and patterns of a configuration.
"""

# ruff: noqa: F401 - imported to be there
import encodings.ascii
import encodings.idna
import ssl

import apscheduler.executors.asyncio
import cryptography.hazmat.backends.openssl

import gsched.pki.issuing
from gsched.config.load import parse_config

parse_config(
    '[head]\nserver_name = "x"\nnode_timeout_s = 15.0\n'
    '[node]\nname = "x"\nmemory = "8gb"\n[[node.gpu]]\ncount = 1\n[[queue]]\nname = "x"\n',
    where="",
)
ssl.cert_time_to_seconds("Jan  1 00:00:00 2026 GMT")  # by time.strptime
