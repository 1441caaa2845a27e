"""Delivering records to the host while the program runs."""
