"""The command line. Each command imports only what it needs, so that it starts quickly."""
