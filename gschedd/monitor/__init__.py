"""The monitor: a process beside the head that serves the page, metrics and reports.

It reads committed events and rows of the head's database, keeps what it derives from them in a
database of its own, and requests from the head only what nobody else knows: samples of use, and
the reasons of the jobs that are shown.
"""
