"""Inventory and sampling: psutil, NVML, control groups."""
