"""Private parts of JAX, and questions about its version: the only place that has any."""
