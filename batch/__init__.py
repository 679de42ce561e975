"""Owns the bounded streams: SQL-database sources, backfills, schedules, the DAG, retries and feature views."""
