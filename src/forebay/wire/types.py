"""Types of fields that many operations share."""

Id = int | str
"""A message id: a number, sent as a decimal string from 2**53 on. UUIDs are accepted, too."""
RequestId = str | int
"""What a pipelined request is known by: its answer has the same."""
KeyPart = str | int | float | bool
Key = str | list[KeyPart]
"""Key of a value; a string is a key of one part."""
