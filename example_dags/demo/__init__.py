"""The demo: a real Airflow, the local batch server, 200 support tickets. ``python -m example_dags.demo``."""
