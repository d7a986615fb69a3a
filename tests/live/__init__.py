"""``make live``: jobs of twenty rows against the real services, with keys from the environment.

Opt-in and paid for: pytest collects nothing here. What it is made of is tested against the local server by
``tests/integration/live``.
"""
