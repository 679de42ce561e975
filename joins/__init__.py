"""Owns the stream-stream joins."""
