"""Certificates of hosts, issued by the authority of a head that has started, as a join would."""

import time
from pathlib import Path

from gsched.config.tls import LIFETIME_S, TlsConfig
from gsched.pki import issuing
from gsched.pki.files import AUTHORITY, DIRECTORY, OWN, TRUSTED, CertificateFiles, files_of
from gsched.pki.names import Identity, Role


def cluster_of(head: Path) -> str:
    """Return the id of the cluster of a head that has started once."""
    return issuing.identity_in((head / DIRECTORY / OWN).read_bytes()).cluster


def give_certificate(
    head: Path,
    state: Path,
    name: str,
    *,
    role: Role = "node",
    cluster: str = "",
    shift_s: float = 0.0,
    lifetime_s: float = LIFETIME_S,
    again: bool = False,
) -> CertificateFiles:
    """Issue a certificate, unless there is one; return the files.

    Args:
        head: state directory of the head.
        state: of the host.
        cluster: empty: that of the head.
        shift_s: how much later than now it is issued.
        again: also if there is one.
    """
    files = files_of(str(state), TlsConfig())
    if files.exist and not again:
        return files
    authority = issuing.read_authority((head / DIRECTORY / AUTHORITY).read_bytes())
    identity = Identity(cluster=cluster or cluster_of(head), role=role, name=name)
    now_s = time.time() + shift_s
    own = issuing.issue_with_key(authority, identity, now_s=now_s, lifetime_s=lifetime_s)
    files.write(own=own, trusted=(head / DIRECTORY / TRUSTED).read_bytes())
    return files
