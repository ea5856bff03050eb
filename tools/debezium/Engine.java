// Prints the changes that Debezium's embedded engine captures from a Postgres, one JSON document per line.
//
// usage: java -cp 'JARS/*' Engine.java NAME=VALUE...   with the settings of the connector

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

public class Engine {
    public static void main(String[] settings) {
        Properties properties = new Properties();
        properties.setProperty("name", "engine");
        properties.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        properties.setProperty("key.converter.schemas.enable", "false");
        properties.setProperty("value.converter.schemas.enable", "false");
        for (String setting : settings) {
            int place = setting.indexOf('=');
            properties.setProperty(setting.substring(0, place), setting.substring(place + 1));
        }
        PrintStream lines = new PrintStream(
            new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)), false, StandardCharsets.UTF_8);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .notifying((events, committer) -> {
                for (ChangeEvent<String, String> event : events) {
                    lines.print(event.value() + "\n");
                    committer.markProcessed(event);
                }
                lines.flush();
                committer.markBatchFinished();
            })
            .using((isFine, message, error) -> {
                if (!isFine) {
                    System.err.println(message);
                    if (error != null) {
                        error.printStackTrace();
                    }
                    System.exit(1);
                }
            })
            .build();
        engine.run();
    }
}
