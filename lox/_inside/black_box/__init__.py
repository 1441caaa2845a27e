"""`lox.recorder`: the last records before something went wrong."""
