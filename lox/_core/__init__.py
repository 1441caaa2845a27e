"""Logging, the interpreter, and the transformations that collect."""
