"""One module per command; `infra.cli` imports the one that runs."""
