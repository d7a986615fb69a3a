"""Measurements. Never part of the tests: a number depends on the machine."""
