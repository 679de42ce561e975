"""Owns running it: command line, daemon, supervisor, metrics, tracing, alerts, secrets, doctor and web UI."""
