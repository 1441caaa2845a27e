"""How logs leave each higher-order primitive, and how JAX is kept exact around them."""
