"""The OpenAPI document and the reference page, both generated from the classes that validate requests."""
