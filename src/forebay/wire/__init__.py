"""DECLARES: framing and text that server and client share."""
