import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryOneTime;

/**
 * Curator at the end of two pipes: one command on each line, one line in answer. {@code curator.rs} says which.
 *
 * <p>All locks are taken by one thread, as Curator's mutexes belong to threads. Another one reads, so that the end of
 * the input is the end of this program, whatever it waits for.
 */
public final class Curator {
    private static CuratorFramework client;
    private static final Map<String, InterProcessMutex> mutexes = new HashMap<>();
    private static final Map<String, InterProcessReadWriteLock> pairs = new HashMap<>();
    private static final Map<String, Lease> leases = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        int session = Integer.parseInt(arguments[1]);
        client = CuratorFrameworkFactory.newClient(arguments[0], session, 15_000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        say("connected");
        LinkedBlockingQueue<String> commands = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> read(commands));
        reader.setDaemon(true);
        reader.start();
        while (true) {
            String answer;
            try {
                answer = obey(commands.take().split(" "));
            } catch (Exception error) {
                answer = "failed " + error;
            }
            say(answer);
        }
    }

    private static void read(LinkedBlockingQueue<String> commands) {
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                if (line.equals("quit")) {
                    client.close();
                    break;
                }
                commands.add(line);
            }
        } catch (Exception error) {
            // The other end is gone.
        }
        Runtime.getRuntime().halt(0);
    }

    /** {@code lock KIND PATH MILLISECONDS [PERMITS]} or {@code release KIND PATH}. */
    private static String obey(String[] words) throws Exception {
        String kind = words[1];
        String path = words[2];
        if (words[0].equals("release")) {
            if (kind.equals("permit")) {
                leases.remove(path).close();
            } else {
                mutex(kind, path).release();
            }
            return "released";
        }
        long patience = Long.parseLong(words[3]);
        if (kind.equals("permit")) {
            int permits = Integer.parseInt(words[4]);
            Lease lease = new InterProcessSemaphoreV2(client, path, permits).acquire(patience, TimeUnit.MILLISECONDS);
            if (lease == null) {
                return "late";
            }
            leases.put(path, lease);
            return "locked";
        }
        return mutex(kind, path).acquire(patience, TimeUnit.MILLISECONDS) ? "locked" : "late";
    }

    private static InterProcessMutex mutex(String kind, String path) {
        if (kind.equals("mutex")) {
            return mutexes.computeIfAbsent(path, p -> new InterProcessMutex(client, p));
        }
        InterProcessReadWriteLock pair = pairs.computeIfAbsent(path, p -> new InterProcessReadWriteLock(client, p));
        return kind.equals("read") ? pair.readLock() : pair.writeLock();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
