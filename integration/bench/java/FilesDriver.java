import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Hadoop's client as the benchmark drives it: "write PATH BYTES", "read PATH BYTES" or "check PATH BYTES" a line of its input, and for each a line of output:
 * "ok", or what went wrong. Files hold the pattern of the benchmark, again and again; "read" looks at the length alone, "check" at every byte.
 *
 * Argument: the URI of the filesystem.
 */
public class FilesDriver {
  private static final byte[] PATTERN = pattern();
  private static final byte[] BUFFER = new byte[PATTERN.length];

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
