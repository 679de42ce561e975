"""A shop that wants to hear of suspicious orders, from one Kafka topic to another."""
