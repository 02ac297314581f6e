"""The nodes: their registration and identity, probes of drained ones, lost GPUs, leases."""
