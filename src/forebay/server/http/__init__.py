"""HTTP: the native API, events, health and metrics."""
