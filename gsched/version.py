"""The version, in one place that is cheap to import."""

VERSION = "0.2.0"
