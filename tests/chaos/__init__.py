"""Chaos: seeded schedules of faults against the whole engine, and three records that must agree afterwards.

``python -m tests.chaos`` runs them; ``docs/chaos.md`` says what is tried and what is counted.
"""
