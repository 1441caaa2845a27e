"""What the viewer reads: stores, their sessions, and curves of runs as matrices."""
