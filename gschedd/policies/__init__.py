"""Pure: one module per policy; none imports another."""
