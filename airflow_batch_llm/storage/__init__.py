"""The ledger (SQL) and the workspace (files). Nothing here imports Airflow."""
