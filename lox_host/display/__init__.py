"""What people see: terminals, tables of runs, curves."""
