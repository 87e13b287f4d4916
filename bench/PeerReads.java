// What bench.reads measures against: a table of a topic's keys in Kafka Streams' RocksDB store, read over HTTP as its
// interactive queries are, with the JDK's own server.
//
//   java -cp 'jars/*' PeerReads.java BOOTSTRAP TOPIC FOLDER KEYS
//
// Prints its port when it has the newest keys. It ends, all committed, when its input does.

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.Executors;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

public class PeerReads {
    static final int NEWEST = 200;

    public static void main(String[] given) throws Exception {
        int keys = Integer.parseInt(given[3]);
        StreamsBuilder builder = new StreamsBuilder();
        builder.table(given[1], Consumed.with(Serdes.String(), Serdes.String()),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("last"));
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer-reads");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given[2]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        // The topic is its own changelog: nothing is written twice, and it is restored from it.
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put("auto.offset.reset", "earliest");
        // A process that ends does not leave its group: the next one waits for as long.
        settings.put("session.timeout.ms", 6000);
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.start();
        ReadOnlyKeyValueStore<String, String> store = ready(streams, keys);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 128);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/keys/", exchange -> {
            String value = store.get(exchange.getRequestURI().getPath().substring("/keys/".length()));
            byte[] body = (value == null ? "" : value).getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(value == null ? 404 : 200, body.length == 0 ? -1 : body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        System.out.println(server.getAddress().getPort());
        System.in.read();
        streams.close();
        System.exit(0);
    }

    static ReadOnlyKeyValueStore<String, String> ready(KafkaStreams streams, int keys) throws InterruptedException {
        while (true) {
            try {
                ReadOnlyKeyValueStore<String, String> store = streams.store(
                    StoreQueryParameters.fromNameAndType("last", QueryableStoreTypes.<String, String>keyValueStore()));
                int newest = keys - 1;
                while (newest > keys - NEWEST && store.get("key-" + newest) != null) {
                    newest--;
                }
                if (newest == keys - NEWEST) {
                    return store;
                }
            } catch (InvalidStateStoreException error) {
                // It is being restored.
            }
            Thread.sleep(20);
        }
    }
}
