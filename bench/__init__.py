"""Benchmarks. Each compares contenders in one run, in processes of their own, on the same files."""
