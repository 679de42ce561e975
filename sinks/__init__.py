"""Owns one `foreachBatch` executor per target and the strategies append, truncate, merge and scd2."""
