"""Certificates of a cluster's hosts: who is at the other end of a TLS connection.

`names`: what a certificate says; `files`: where a daemon keeps its own; `contexts`: TLS with them,
by the standard library; `issuing`: keys, requests and certificates, by ``cryptography``, which only
daemons that have a TLS port, ``gsched init`` and ``gsched join`` import.
See docs/adr/0031-tls.md.
"""
