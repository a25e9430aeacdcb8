import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's locks: {@code mutex}, {@code write} (of a read-write lock) or {@code semaphore} (of one lease). A contender's
 * process: reads orders, carries them out, answers; src/orders.rs has the words. Tasks are threads with one client, whose
 * locks belong to threads; each has an object of its own, which Curator allows and does not ask for.
 */
public final class CuratorPeer {
    private static final int SESSION_MS = 10_000;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static CuratorFramework client;
    private static String kind;

    /** One task's handle. */
    private interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        kind = arguments[0];
        String hosts = arguments[1].replaceFirst("^zk://", "");
        client = CuratorFrameworkFactory.newClient(hosts, SESSION_MS, 15_000, new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        say(answer("ready"));
        Lock prepared = null;
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                JsonNode order = JSON.readTree(line);
                switch (order.get("order").asText()) {
                    case "solo" -> solo(order);
                    case "many" -> many(order);
                    case "contend" -> contend(order);
                    case "prepare" -> {
                        prepared = lock(order.get("name").asText());
                        say(answer("prepared"));
                    }
                    case "lock" -> {
                        long asked = System.nanoTime();
                        prepared.acquire();
                        say(answer("held").put("asked_ns", asked).put("at_ns", System.nanoTime()));
                    }
                    case "unlock" -> {
                        long called = System.nanoTime();
                        prepared.release();
                        say(answer("released").put("at_ns", called));
                    }
                    default -> throw new IllegalArgumentException(line);
                }
            } catch (Exception error) {
                say(answer("failed").put("why", error.toString()));
            }
        }
        // Threads may still wait for locks, and the server is thrown away: nothing to tidy.
        Runtime.getRuntime().halt(0);
    }

    private static Lock lock(String name) {
        String path = "/" + name;
        if (kind.equals("semaphore")) {
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, 1);
            return new Lock() {
                private Lease lease;

                public void acquire() throws Exception {
                    lease = semaphore.acquire();
                }

                public void release() throws Exception {
                    lease.close();
                }
            };
        }
        InterProcessMutex mutex =
                kind.equals("write") ? new InterProcessReadWriteLock(client, path).writeLock() : new InterProcessMutex(client, path);
        return new Lock() {
            public void acquire() throws Exception {
                mutex.acquire();
            }

            public void release() throws Exception {
                mutex.release();
            }
        };
    }

    private static void solo(JsonNode order) throws Exception {
        Lock lock = lock(order.get("name").asText());
        long countingFrom = System.nanoTime() + order.get("warm_ms").asLong() * 1_000_000;
        long until = countingFrom + order.get("ms").asLong() * 1_000_000;
        List<Long> pairs = new ArrayList<>();
        for (long began = System.nanoTime(); began < until; began = System.nanoTime()) {
            lock.acquire();
            lock.release();
            if (began >= countingFrom) {
                pairs.add(System.nanoTime() - began);
            }
        }
        ObjectNode seen = answer("solo").put("pairs", pairs.size());
        say(percentile(percentile(seen, "p50_ns", pairs, 0.5), "p99_ns", pairs, 0.99));
    }

    private static void many(JsonNode order) throws Exception {
        AtomicLong pairs = new AtomicLong();
        AtomicReference<Exception> trouble = new AtomicReference<>();
        for (int me = 0; me < order.get("tasks").asInt(); me++) {
            Lock lock = lock(order.get("name").asText() + "/" + me);
            start(trouble, () -> {
                while (true) {
                    lock.acquire();
                    lock.release();
                    pairs.incrementAndGet();
                }
            });
        }
        Thread.sleep(order.get("warm_ms").asLong());
        long began = System.nanoTime();
        long before = pairs.get();
        Thread.sleep(order.get("ms").asLong());
        double seconds = (System.nanoTime() - began) / 1e9;
        long after = pairs.get();
        check(trouble);
        say(answer("many").put("pairs", after - before).put("seconds", seconds));
    }

    private static void contend(JsonNode order) throws Exception {
        int tasks = order.get("tasks").asInt();
        long hold = order.get("hold_ms").asLong();
        Room room = new Room(tasks);
        AtomicReference<Exception> trouble = new AtomicReference<>();
        for (int task = 0; task < tasks; task++) {
            int me = task;
            Lock lock = lock(order.get("name").asText());
            start(trouble, () -> {
                while (true) {
                    lock.acquire();
                    room.enter(me);
                    if (hold > 0) {
                        Thread.sleep(hold);
                    }
                    room.leave();
                    lock.release();
                }
            });
        }
        Thread.sleep(order.get("warm_ms").asLong());
        long began = System.nanoTime();
        room.startCounting();
        say(answer("counting"));
        Thread.sleep(order.get("ms").asLong());
        ObjectNode seen = room.sumUp((System.nanoTime() - began) / 1e9);
        check(trouble);
        say(seen);
    }

    /** As in src/room.rs: counts who comes in, and notices when two are inside. */
    private static final class Room {
        private boolean counting;
        private int inside;
        private int last = -1;
        private Long freeSince;
        private final List<Long> gaps = new ArrayList<>();
        private final long[] perTask;
        private long handovers;
        private long violations;

        Room(int tasks) {
            perTask = new long[tasks];
        }

        synchronized void enter(int me) {
            if (inside++ > 0) {
                violations++;
            }
            boolean changed = last != me;
            last = me;
            Long gap = null;
            if (changed && freeSince != null) {
                gap = System.nanoTime() - freeSince;
                freeSince = null;
            }
            if (!counting) {
                return;
            }
            perTask[me]++;
            if (changed) {
                handovers++;
            }
            if (gap != null) {
                gaps.add(gap);
            }
        }

        synchronized void leave() {
            inside--;
            if (freeSince == null) {
                freeSince = System.nanoTime();
            }
        }

        synchronized void startCounting() {
            counting = true;
        }

        synchronized ObjectNode sumUp(double seconds) {
            counting = false;
            ObjectNode seen = answer("contend").put("seconds", seconds).put("acquisitions", Arrays.stream(perTask).sum());
            seen.put("handovers", handovers).put("violations", violations).put("gave_up", 0).put("lost", 0);
            seen.set("per_task", JSON.valueToTree(perTask));
            return percentile(percentile(seen, "gap_p50_ns", gaps, 0.5), "gap_p99_ns", gaps, 0.99);
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void start(AtomicReference<Exception> trouble, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                trouble.compareAndSet(null, error);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void check(AtomicReference<Exception> trouble) throws Exception {
        if (trouble.get() != null) {
            throw trouble.get();
        }
    }

    private static ObjectNode percentile(ObjectNode into, String key, List<Long> values, double share) {
        List<Long> ordered = new ArrayList<>(values);
        ordered.sort(null);
        int place = Math.max(1, (int) Math.ceil(ordered.size() * share)) - 1;
        return ordered.isEmpty() ? into.putNull(key) : into.put(key, ordered.get(place));
    }

    private static ObjectNode answer(String word) {
        return JSON.createObjectNode().put("answer", word);
    }

    private static void say(ObjectNode answer) {
        System.out.println(answer);
        System.out.flush();
    }
}
