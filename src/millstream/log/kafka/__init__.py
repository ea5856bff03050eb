"""Apache Kafka as a broker, by confluent-kafka."""
