"""`logdict`, what users get, and what it can be turned into."""
