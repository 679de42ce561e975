"""Owns the tumbling, hopping and session operators."""
