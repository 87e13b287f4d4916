// What bench.throughput measures against: the same sums by Kafka Streams, in its RocksDB store with its changelog topic.
//
//   java -cp 'jars/*' Peer.java BOOTSTRAP TOPIC FOLDER GUARANTEE EVENTS [TOLD]
//
// Ends, all committed, when it has summed so many events. They are partitioned by their key, so that nothing has to be sent
// through another topic first. With a topic TOLD each event goes there, with the sum before and after it, as bench.store_route has it.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
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
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public class Peer {
    public static void main(String[] given) throws Exception {
        long events = Long.parseLong(given[4]);
        AtomicLong seen = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        ObjectMapper json = new ObjectMapper();
        StreamsBuilder builder = new StreamsBuilder();
        if (given.length > 5) {
            tell(builder, given[1], given[5], json, () -> {
                if (seen.incrementAndGet() == events) {
                    done.countDown();
                }
            });
        } else {
            sum(builder, given[1], json, () -> {
                if (seen.incrementAndGet() == events) {
                    done.countDown();
                }
            });
        }
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

    static void sum(StreamsBuilder builder, String topic, ObjectMapper json, Runnable count) {
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .mapValues(payload -> {
                try {
                    return json.readTree(payload).get("n").longValue();
                } catch (java.io.IOException error) {
                    return null;
                }
            })
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
            .aggregate(() -> 0L, (key, n, total) -> {
                count.run();
                return total + n;
            }, Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("total")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()));
    }

    static void tell(StreamsBuilder builder, String topic, String told, ObjectMapper json, Runnable count) {
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("total"), Serdes.String(), Serdes.Long()));
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .processValues(() -> new ContextualFixedKeyProcessor<String, byte[], byte[]>() {
                private KeyValueStore<String, Long> totals;

                @Override
                public void init(FixedKeyProcessorContext<String, byte[]> context) {
                    super.init(context);
                    totals = context.getStateStore("total");
                }

                @Override
                public void process(FixedKeyRecord<String, byte[]> record) {
                    try {
                        JsonNode event = json.readTree(record.value());
                        Long had = totals.get(record.key());
                        long before = had == null ? 0 : had, after = before + event.get("n").longValue();
                        totals.put(record.key(), after);
                        ObjectNode made = json.createObjectNode();
                        made.put("key", record.key()).put("n", event.get("n").longValue()).put("had", before).put("has", after);
                        context().forward(record.withValue(json.writeValueAsBytes(made)));
                    } catch (java.io.IOException error) {
                        throw new java.io.UncheckedIOException(error);
                    }
                    count.run();
                }
            }, "total")
            .to(told, Produced.with(Serdes.String(), Serdes.ByteArray()));
    }
}
