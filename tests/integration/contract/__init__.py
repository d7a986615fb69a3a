"""What every backend promises, whatever its protocol: one set of tests, run over each of them."""
