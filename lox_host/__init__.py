"""The host half of lox: runs, writers, the store, the command line. Without JAX."""
