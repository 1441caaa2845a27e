"""Runs of loggers: from a program to the host half."""
