"""Where messages stand in a group: the six places, and moves between them."""
