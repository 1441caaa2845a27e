"""`lox.watch` and `lox.scopes`: what flows through a program without log calls."""
