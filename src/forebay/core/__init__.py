"""DECIDES: state + command + now -> reply and records. Pure; imports nothing of ours."""
