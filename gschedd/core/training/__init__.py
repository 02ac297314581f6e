"""Training jobs as policies see them: measured step and start-up times, remaining work, sizes."""
