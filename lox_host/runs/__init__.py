"""What a run is: its id, name and config, where it runs, and which runs a logger has."""
