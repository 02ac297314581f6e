"""Starts an interpreter that collects garbage seldom: an import of a framework makes none.

This directory is in PYTHONPATH of a framework's training (`tests.support.frameworks`): collections
that find nothing take a seventh of the CPU time of its imports.
"""

import gc

gc.set_threshold(100_000, 50, 50)
