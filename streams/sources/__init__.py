"""The sources: each gives the rows of one place as an endless table."""
