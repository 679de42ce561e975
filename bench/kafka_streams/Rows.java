import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.DeserializationContext;
import com.fasterxml.jackson.databind.JsonDeserializer;
import com.fasterxml.jackson.databind.JsonSerializer;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import com.fasterxml.jackson.databind.SerializerProvider;
import com.fasterxml.jackson.databind.module.SimpleModule;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Instant;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** The rows of the topics with their types, and how they are read and written. */
final class Rows {
    interface Row {
        Instant time();

        double worth();
    }

    /** As `bench.kafka` sends them. */
    static final class Order implements Row {
        public long id;
        public String customer;
        public double amount;
        public String country;
        public boolean paid;
        public Instant ts;

        public Instant time() {
            return ts;
        }

        public double worth() {
            return amount;
        }
    }

    /** As `bench.latency` sends them. */
    static final class Sent implements Row {
        public long id;
        public String customer;
        public Instant at;

        public Instant time() {
            return at;
        }

        public double worth() {
            return 0;
        }
    }

    /** What comes out of a window. */
    static final class Result {
        public Instant window_start;
        public Instant window_end;
        public String customer;
        public long orders;
        public double amount;

        Result(long start, long end, String customer, Sum sum) {
            this.window_start = Instant.ofEpochMilli(start);
            this.window_end = Instant.ofEpochMilli(end);
            this.customer = customer;
            this.orders = sum.rows;
            this.amount = sum.worth;
        }
    }

    /** What a window holds of one customer. */
    static final class Sum {
        final long rows;
        final double worth;

        Sum(long rows, double worth) {
            this.rows = rows;
            this.worth = worth;
        }

        Sum and(Row row) {
            return new Sum(rows + 1, worth + row.worth());
        }
    }

    static final Serde<Sum> SUMS = Serdes.serdeFrom(
        (topic, sum) -> sum == null ? null : ByteBuffer.allocate(16).putLong(sum.rows).putDouble(sum.worth).array(),
        (topic, bytes) -> bytes == null ? null : sum(ByteBuffer.wrap(bytes)));

    private static final ObjectMapper JSON = new ObjectMapper().registerModule(new SimpleModule()
        .addSerializer(Instant.class, new JsonSerializer<>() {
            @Override
            public void serialize(Instant value, JsonGenerator out, SerializerProvider provider) throws IOException {
                out.writeString(value.toString());
            }
        })
        .addDeserializer(Instant.class, new JsonDeserializer<>() {
            @Override
            public Instant deserialize(JsonParser in, DeserializationContext context) throws IOException {
                return Instant.parse(in.getText());
            }
        }));

    static <T> Serde<T> json(Class<? extends T> kind) {
        ObjectReader reader = JSON.readerFor(kind);
        ObjectWriter writer = JSON.writerFor(kind);
        return Serdes.serdeFrom(
            (topic, row) -> {
                try {
                    return row == null ? null : writer.writeValueAsBytes(row);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            },
            (topic, bytes) -> {
                try {
                    return bytes == null ? null : reader.readValue(bytes);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            });
    }

    private static Sum sum(ByteBuffer bytes) {
        return new Sum(bytes.getLong(), bytes.getDouble());
    }
}
