"""Whole jobs against servers that other people wrote: ``make test-peers``. Not part of ``make test``."""
