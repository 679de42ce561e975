import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * Kafka Streams, told over its standard input what to do, so that one warm process serves all runs.
 *
 * <p>A line `start` (JSON with the work, the topics and the settings) begins; `finish` ends when all that is there was
 * passed on and committed, and says so as soon as it is; `stop` ends at once.
 */
public final class Rival {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration SECOND = Duration.ofSeconds(1);

    private final JsonNode work;
    private final LongAdder seen = new LongAdder();
    private final KafkaStreams streams;

    private Rival(JsonNode work) {
        this.work = work;
        Properties settings = new Properties();
        work.get("settings").fields().forEachRemaining(one -> settings.put(one.getKey(), one.getValue().asText()));
        StreamsBuilder builder = new StreamsBuilder();
        describe(builder);
        streams = new KafkaStreams(builder.build(settings), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
    }

    public static void main(String[] bootstrap) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Rival rival = null;
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap[0]))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.equals("finish")) {
                    rival.finish(admin);
                } else if (line.equals("stop")) {
                    rival.streams.close();
                } else {
                    rival = new Rival(JSON.readTree(line));
                }
                System.out.println("done");
            }
        }
    }

    private void describe(StreamsBuilder builder) {
        Class<? extends Rows.Row> kind = work.get("rows").asText().equals("sent") ? Rows.Sent.class : Rows.Order.class;
        Serde<Rows.Row> rows = Rows.json(kind);
        String target = work.get("target").asText();
        Consumed<String, Rows.Row> read = Consumed.with(Serdes.String(), rows);
        if (work.get("windows").asBoolean()) {
            read = read.withTimestampExtractor((record, before) -> ((Rows.Row) record.value()).time().toEpochMilli());
        }
        KStream<String, Rows.Row> given =
            builder.stream(work.get("source").asText(), read).peek((key, row) -> seen.increment());
        if (!work.get("windows").asBoolean()) {
            given.to(target, Produced.with(Serdes.String(), rows));
            return;
        }
        // The key of a record is the customer, so that nothing has to be sent elsewhere first.
        given.groupByKey(Grouped.with(Serdes.String(), rows))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(SECOND))
            .aggregate(
                () -> new Rows.Sum(0, 0), (key, row, sum) -> sum.and(row), Materialized.with(Serdes.String(), Rows.SUMS))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream()
            .map((at, sum) -> KeyValue.pair(
                at.key(), new Rows.Result(at.window().start(), at.window().end(), at.key(), sum)))
            .to(target, Produced.with(Serdes.String(), Rows.json(Rows.Result.class)));
    }

    /** Closing commits at once what an interval would commit a little later; the clock does not wait for the rest. */
    private void finish(Admin admin) throws Exception {
        long there = there(admin);
        while (seen.sum() < there) {
            Thread.sleep(1);
        }
        Thread closing = new Thread(streams::close);
        closing.start();
        while (committed(admin) < there) {
            Thread.sleep(1);
        }
        System.out.println("committed");
        closing.join();
    }

    private long there(Admin admin) throws Exception {
        String topic = work.get("source").asText();
        int partitions = admin.describeTopics(java.util.List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        Map<TopicPartition, OffsetSpec> asked = java.util.stream.IntStream.range(0, partitions).boxed()
            .collect(Collectors.toMap(number -> new TopicPartition(topic, number), number -> OffsetSpec.latest()));
        return admin.listOffsets(asked).all().get().values().stream().mapToLong(one -> one.offset()).sum();
    }

    private long committed(Admin admin) throws Exception {
        String group = work.get("settings").get("application.id").asText(), topic = work.get("source").asText();
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().entrySet().stream()
            .filter(one -> one.getKey().topic().equals(topic) && one.getValue() != null)
            .mapToLong(one -> one.getValue().offset()).sum();
    }
}
