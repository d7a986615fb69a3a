"""The vendors own SDKs against the local server, and our backends over real HTTP."""
