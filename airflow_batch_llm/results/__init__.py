"""Answers after the job: read by programs, published as Parquet."""
