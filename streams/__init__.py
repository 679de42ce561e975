"""Owns spec to running query: sources, decode, SQL transform, lookups, watermark and ticks, the micro-batch runner."""
