"""Owns the change envelopes and their application."""
