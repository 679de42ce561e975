"""Owns what must survive: checkpoints and state, fences, the dead-letter store, run history and leases."""
