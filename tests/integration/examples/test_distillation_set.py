from __future__ import annotations

import json
from pathlib import Path

from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Traffic


def test_the_training_file_has_every_sample_of_every_topic(
    examples: Examples, traffic: Traffic, tmp_path: Path
) -> None:
    params = {"topics": ["returns", "gift cards"], "folder": str(tmp_path / "training")}
    run = examples.run("distillation_set", params=params)
    assert run.state == "success"
    lines = (tmp_path / "training" / "train.jsonl").read_text().splitlines()
    assert len(lines) == 6 == traffic.sent
    for line in lines:
        roles = [(message["role"], bool(message["content"])) for message in json.loads(line)["messages"]]
        assert roles == [("user", True), ("assistant", True)]
    assert examples.runs.xcom(run, "write_training_file") == 6
