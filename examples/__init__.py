"""Pipelines to read and to run."""
