"""Airflow building blocks for LLM work in bulk through the providers' batch APIs."""

from __future__ import annotations

__version__ = "0.1.0"
