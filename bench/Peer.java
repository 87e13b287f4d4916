// What bench.throughput measures against: the same sums by Kafka Streams, in its RocksDB store with its changelog topic.
//
//   java -cp 'jars/*' Peer.java BOOTSTRAP TOPIC FOLDER GUARANTEE EVENTS
//
// Ends, all committed, when it has summed so many events. They are partitioned by their key, so that nothing has to be sent
// through another topic first.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

public class Peer {
    public static void main(String[] given) throws Exception {
        long events = Long.parseLong(given[4]);
        AtomicLong seen = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        ObjectMapper json = new ObjectMapper();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(given[1], Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .mapValues(payload -> {
                try {
                    return json.readTree(payload).get("n").longValue();
                } catch (java.io.IOException error) {
                    return null;
                }
            })
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
            .aggregate(() -> 0L, (key, n, total) -> {
                if (seen.incrementAndGet() == events) {
                    done.countDown();
                }
                return total + n;
            }, Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("total")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()));
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer-" + given[3]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, given[3]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put("auto.offset.reset", "earliest");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        done.await();
        streams.close();
    }
}
