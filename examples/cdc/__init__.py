"""A mirror of a database: PostgreSQL, Debezium, Kafka, DuckDB."""
