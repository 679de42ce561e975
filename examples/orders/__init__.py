"""A web shop's order events, from JSON lines to a DuckDB table."""
