"""The six places of a message in a group, and the moves between them."""
