"""Apache Kafka as a broker, through confluent-kafka."""
