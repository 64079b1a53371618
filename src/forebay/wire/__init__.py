"""DECLARES: framing, text checks and MessagePack, shared by server and client."""
