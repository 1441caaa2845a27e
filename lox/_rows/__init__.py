"""Rows, accumulators and how they are joined: data, without any transformation."""
