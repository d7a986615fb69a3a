from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.local_server import LocalServer
from tests.unit.server.api import Api, ids, lines


def test_a_killed_server_goes_on_and_charges_no_row_twice(tmp_path: Path) -> None:
    """Killed in the middle of execution, again and again, with faults that count."""
    scenario = {
        "rows": [{"fault": "server_error", "match": {"every": 3}, "times": 1}],
        "results": {"shuffle": 3},
    }
    count = 30_000
    with LocalServer(tmp_path, scenario=scenario) as server:
        api = Api(server)
        batch_id = api.start(lines(count))["id"]
        kills = 0
        for done in (1, 4_000, 12_000, 20_000):
            batch = api.until(batch_id, ["in_progress", "finalizing", "completed"], rows=done)
            kills += batch["status"] != "completed"
            server.kill9()
            server.start()
        batch = api.until(batch_id)
        assert kills >= 1
        assert batch["request_counts"] == {"total": count, "completed": 20_000, "failed": 10_000}
        assert sorted(ids(api.output(batch) + api.errors(batch))) == sorted(
            f"r-{i}" for i in range(1, count + 1)
        )
        summary = server.summary()
        assert (summary["executed"], summary["charged"]) == (count, 20_000)
        assert summary["answered_twice"] == 0
        assert summary["output_tokens"] == batch["usage"]["output_tokens"]


def test_a_killed_server_remembers_batches_files_waits_and_counters(tmp_path: Path) -> None:
    scenario = {
        "rows": [{"fault": "server_error", "times": 1}],
        "batches": [{"fault": "queue_full", "times": 1}],
        "pace": {"seconds": 86_400, "hold_at": 0.5},
    }
    with LocalServer(tmp_path, scenario=scenario) as server:
        api = Api(server)
        assert api.run(lines(1))["status"] == "failed"
        held = api.until(api.start(lines(4))["id"], ["in_progress"], rows=2)
        server.kill9()
        server.start()
        assert api.get(held["id"]) == held
        server.release()
        ended = api.until(held["id"])
        assert (ended["status"], len(api.errors(ended))) == ("completed", 4)
        server.restart()
        assert api.get(held["id"]) == ended
        again = api.start(lines(4))["id"]
        server.release()
        assert api.errors(api.until(again)) == []


def test_what_a_killed_server_left_half_done_is_cleared_away(tmp_path: Path) -> None:
    with LocalServer(tmp_path) as server:
        kept = Api(server).file(lines(1))
        state = server.folder / "state"
        server.kill9()
        (state / "tmp" / "upload-x").write_bytes(b"half")
        (state / "files" / "file-unrecorded").write_bytes(b"renamed, not recorded")
        server.start()
        assert not list((state / "tmp").iterdir())
        assert [path.name for path in (state / "files").iterdir()] == [kept]


def test_a_scenario_file_does_not_start_again_with_each_restart(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text('{"rows": [{"fault": "server_error", "times": 1}]}')
    with LocalServer(tmp_path / "s", args=("--scenario", str(file))) as server:
        api = Api(server)
        assert len(api.errors(api.run(lines(1)))) == 1
        server.restart()
        assert api.errors(api.run(lines(1))) == []


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with LocalServer(tmp_path) as server:
        command = [
            sys.executable,
            "-m",
            "airflow_batch_llm.server",
            "--port",
            "0",
            "--dir",
            str(tmp_path / "state"),
        ]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode == 2
        assert "another server is using" in second.stderr
        assert Api(server).http.get("/models").status_code == 200


def test_a_server_that_is_asked_to_end_says_so_and_finishes_its_work_later(tmp_path: Path) -> None:
    with LocalServer(tmp_path) as server:
        api = Api(server)
        batch_id = api.start(lines(20_000))["id"]
        assert server.stop() == 0
        server.start()
        assert len(api.output(api.until(batch_id))) == 20_000
