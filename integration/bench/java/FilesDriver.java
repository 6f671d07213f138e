import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Hadoop's client as the benchmark drives it: "write PATH BYTES", "read PATH BYTES" or "check PATH BYTES" a line of its input, and for each a line of output:
 * "ok", or what went wrong. "writes PATH BYTES THREADS MILLISECONDS" has threads write files of their own in a directory for so long, "reads" with the same
 * words read these; both answer "ok" with how many, how many a second, and milliseconds, p50 and p99. Files hold the pattern of the benchmark, again and again; "read" looks at the length alone, "check" at every byte.
 *
 * Argument: the URI of the filesystem.
 */
public class FilesDriver {
  private static final byte[] PATTERN = pattern();
  private static final byte[] BUFFER = new byte[PATTERN.length];
  private static int[] written; // files of each thread

  private static byte[] pattern() {
    byte[] p = new byte[1 << 20];
    int x = 1;
    for (int i = 0; i < p.length; i++) {
      x = x * 1664525 + 1013904223;
      p[i] = (byte) (x >>> 24);
    }
    return p;
  }

  public static void main(String[] args) throws Exception {
    FileSystem fs = FileSystem.get(URI.create(args[0]), new Configuration());
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String answer = "ok";
      try {
        String[] words = line.split(" ");
        Path path = new Path(words[1]);
        long bytes = Long.parseLong(words[2]);
        switch (words[0]) {
          case "write":
            write(fs, path, bytes);
            break;
          case "read":
            read(fs, path, bytes, false);
            break;
          case "check":
            read(fs, path, bytes, true);
            break;
          case "writes":
            answer += writes(fs, path, (int) bytes, Integer.parseInt(words[3]), Long.parseLong(words[4]));
            break;
          case "reads":
            answer += reads(fs, path, (int) bytes, Integer.parseInt(words[3]), Long.parseLong(words[4]));
            break;
          default:
            throw new IOException("no such command");
        }
      } catch (Exception e) {
        answer = (line + ": " + e).replaceAll("\\s+", " ");
      }
      System.out.println(answer);
      System.out.flush();
    }
    System.exit(0);
  }

  private static String writes(FileSystem fs, Path dir, int bytes, int threads, long millis) throws Exception {
    written = new int[threads];
    return each(threads, millis, (thread, n) -> {
      write(fs, new Path(dir, thread + "/" + n), bytes);
      written[thread] = n + 1;
    });
  }

  private static String reads(FileSystem fs, Path dir, int bytes, int threads, long millis) throws Exception {
    byte[][] buffers = new byte[threads][bytes];
    return each(threads, millis, (thread, n) -> {
      Path path = new Path(dir, thread + "/" + n % written[thread]);
      try (FSDataInputStream in = fs.open(path)) {
        in.readFully(buffers[thread]);
      }
      if (!Arrays.equals(buffers[thread], 0, bytes, PATTERN, 0, bytes)) {
        throw new IOException("wrong bytes in " + path);
      }
    });
  }

  private interface Step {
    void take(int thread, int n) throws IOException;
  }

  private static String each(int threads, long millis, Step step) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    long began = System.nanoTime();
    List<Future<long[]>> all = new ArrayList<>();
    for (int i = 0; i < threads; i++) {
      int thread = i;
      all.add(pool.submit(() -> {
        long[] took = new long[1024];
        int n = 0;
        for (long start = began, end; start - began < millis * 1000000L; start = end) {
          step.take(thread, n);
          end = System.nanoTime();
          if (n == took.length) {
            took = Arrays.copyOf(took, 2 * n);
          }
          took[n++] = end - start;
        }
        return Arrays.copyOf(took, n);
      }));
    }
    pool.shutdown();
    long[] took = {};
    for (Future<long[]> one : all) {
      long[] more = one.get();
      took = Arrays.copyOf(took, took.length + more.length);
      System.arraycopy(more, 0, took, took.length - more.length, more.length);
    }
    double seconds = (System.nanoTime() - began) / 1e9;
    Arrays.sort(took);
    return String.format(Locale.ROOT, " %d %.1f %.3f %.3f", took.length, took.length / seconds, took[took.length / 2] / 1e6, took[took.length * 99 / 100] / 1e6);
  }

  private static void write(FileSystem fs, Path path, long bytes) throws IOException {
    try (FSDataOutputStream out = fs.create(path, true)) {
      for (long left = bytes; left > 0; left -= PATTERN.length) {
        out.write(PATTERN, 0, (int) Math.min(PATTERN.length, left));
      }
    }
  }

  private static void read(FileSystem fs, Path path, long bytes, boolean check) throws IOException {
    long done = 0;
    try (FSDataInputStream in = fs.open(path)) {
      for (int n = in.read(BUFFER); n > 0; n = in.read(BUFFER, 0, Math.min(BUFFER.length, check ? (int) (PATTERN.length - done % PATTERN.length) : BUFFER.length))) {
        int at = (int) (done % PATTERN.length);
        if (check && !Arrays.equals(BUFFER, 0, n, PATTERN, at, at + n)) {
          throw new IOException("wrong bytes between " + done + " and " + (done + n));
        }
        done += n;
      }
    }
    if (done != bytes) {
      throw new IOException(done + " bytes in place of " + bytes);
    }
  }
}
