"""The OpenAPI document and the reference page, both made from the classes that validate."""
