"""Native operations of the HTTP API, one module per resource."""
