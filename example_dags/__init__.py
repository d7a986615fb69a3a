"""Workloads as real DAGs; each runs against the local batch server."""
