"""Migrations: requested by people or policies, throttled, carried out, measured."""
