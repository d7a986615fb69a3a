"""``python -m airflow_batch_llm.server``: the same as ``batch-llm serve``."""

from __future__ import annotations

import argparse
import sys

from airflow_batch_llm.cli import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m airflow_batch_llm.server", description=serve.DESCRIPTION)
    serve.add_arguments(parser)
    sys.exit(serve.run(parser.parse_args()))
