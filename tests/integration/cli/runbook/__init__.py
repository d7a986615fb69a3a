"""Every red run of the runbook, brought to its end by the commands that the runbook names."""
