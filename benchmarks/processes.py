"""What a process needed: the peak of its resident memory and its processor time, from /proc (Linux)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path


def peak_mb(pid: int | str = "self") -> float:
    """Return VmHWM, the largest resident set the process ever had, in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1_000_000
    raise LookupError(f"/proc/{pid}/status has no VmHWM")


def forget_peak() -> None:
    """Let VmHWM of this process begin anew at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def cpu_seconds(pid: int | str = "self") -> float:
    """Return the processor time, user and system, that a process has had so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb_of(code: str) -> float:
    """Return VmHWM of a fresh interpreter that ran ``code``, in MB."""
    program = f"{code}\nfrom benchmarks.processes import peak_mb\nprint('peak', peak_mb())"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(run.stdout.rpartition("peak ")[2])


def machine() -> str:
    """Describe the machine in one line."""
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    cores, model = len(os.sched_getaffinity(0)), ", ".join(sorted(models)) or platform.machine()
    return f"{cores} cores ({model}), Python {platform.python_version()}"
