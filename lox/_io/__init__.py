"""`lox.save`, `lox.load` and `lox.export`."""
