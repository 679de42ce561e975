"""Tables and queries of SQL databases as streams: full snapshots, or what is new by an incremental column."""
