"""Every native operation: the fields of its request and of its answer, once for all carriers."""
