import java.io.IOException;
import java.io.RandomAccessFile;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.EnumSet;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.ReadOption;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.ReadStatistics;
import org.apache.hadoop.hdfs.client.HdfsDataInputStream;
import org.apache.hadoop.io.ElasticByteBufferPool;
import org.apache.hadoop.net.unix.DomainSocket;
import org.apache.hadoop.util.NativeCodeLoader;

/**
 * Reads of the stock client by the Unix-domain socket of the datanodes, by descriptors and by the socket itself: "case NAME", then what went wrong, which is nothing.
 *
 * Arguments: the URI of the filesystem, the path of the sockets, the directories of the datanodes' blocks.
 */
public class ShortCircuitDriver {
  private interface Deed {
    void run() throws Exception;
  }

  private final URI uri;
  private final String socket;

  private ShortCircuitDriver(URI uri, String socket) {
    this.uri = uri;
    this.socket = socket;
  }

  public static void main(String[] args) throws Exception {
    org.apache.log4j.Logger.getRootLogger().setLevel(org.apache.log4j.Level.OFF); // what it warns of comes as an exception, too
    new ShortCircuitDriver(URI.create(args[0]), args[1]).run(Arrays.copyOfRange(args, 2, args.length));
    System.exit(0);
  }

  private static void the(String name, Deed deed) {
    System.out.println("case " + name);
    try {
      deed.run();
    } catch (Throwable e) {
      System.out.println(e.getClass().getName() + ": " + e.getMessage());
    }
    System.out.flush();
  }

  private static void want(boolean right, String what) {
    if (!right) {
      System.out.println("wrong: " + what);
    }
  }

  private DistributedFileSystem with(String... settings) throws IOException {
    Configuration conf = new Configuration();
    conf.set("dfs.domain.socket.path", socket);
    conf.set("dfs.client.read.shortcircuit", "true");
    conf.set("dfs.client.context", Arrays.toString(settings)); // a cache of descriptors of its own
    for (int i = 0; i < settings.length; i += 2) {
      conf.set(settings[i], settings[i + 1]);
    }
    return (DistributedFileSystem) FileSystem.newInstance(uri, conf);
  }

  private static byte[] bytes(int n) {
    byte[] b = new byte[n];
    for (int i = 0; i < n; i++) {
      b[i] = (byte) (i * 31 + (i >> 8) * 7 + (i >> 16));
    }
    return b;
  }

  /** Reads everything, and says how much of it came by descriptors. */
  private static ReadStatistics read(DistributedFileSystem fs, Path path, byte[] want) throws IOException {
    try (HdfsDataInputStream in = (HdfsDataInputStream) fs.open(path)) {
      byte[] got = new byte[want.length];
      in.readFully(got);
      want(Arrays.equals(want, got), "read other bytes of " + path);
      byte[] part = new byte[Math.min(1000, want.length / 2)];
      in.readFully(want.length / 3, part);
      want(Arrays.equals(Arrays.copyOfRange(want, want.length / 3, want.length / 3 + part.length), part), "read other bytes in the middle of " + path);
      ByteBuffer direct = ByteBuffer.allocateDirect(want.length);
      in.seek(0);
      while (direct.hasRemaining() && in.read(direct) > 0) {
      }
      direct.flip();
      want(direct.equals(ByteBuffer.wrap(want)), "read other bytes of " + path + " into a buffer");
      return in.getReadStatistics();
    }
  }

  private static void byDescriptors(ReadStatistics s, String what) {
    want(s.getTotalShortCircuitBytesRead() == s.getTotalBytesRead() && s.getTotalBytesRead() > 0, what + ": " + s.getTotalShortCircuitBytesRead() + " of " + s.getTotalBytesRead() + " bytes by descriptors");
  }

  private void run(String[] stores) throws Exception {
    the("the library is there", () -> {
      want(NativeCodeLoader.isNativeCodeLoaded(), "it is not loaded");
      want(DomainSocket.getLoadingFailureReason() == null, DomainSocket.getLoadingFailureReason());
    });
    DistributedFileSystem fs = with();
    fs.mkdirs(new Path("/sc"));
    for (String[] kind : new String[][] {{"CRC32C", "512"}, {"CRC32", "512"}, {"CRC32", "1024"}, {"NULL", "512"}}) {
      DistributedFileSystem by = with("dfs.checksum.type", kind[0], "dfs.bytes-per-checksum", kind[1]);
      for (int n : new int[] {1, 700, 300_001, 3_000_000}) {
        Path path = new Path("/sc/" + kind[0] + kind[1] + "-" + n);
        the("read " + n + " bytes with " + kind[0] + " of " + kind[1], () -> {
          try (FSDataOutputStream out = by.create(path, true, 4096, (short) 1, 1 << 20)) {
            out.write(bytes(n));
          }
          byDescriptors(read(fs, path, bytes(n)), "a file");
          byDescriptors(read(fs, path, bytes(n)), "again");
        });
      }
    }
    Path grows = new Path("/sc/CRC32C512-700");
    the("an append is seen by who has descriptors", () -> {
      try (HdfsDataInputStream before = (HdfsDataInputStream) fs.open(grows)) {
        before.readFully(new byte[700]);
        try (FSDataOutputStream out = fs.append(grows)) {
          out.write(bytes(5000), 700, 4300);
        }
        before.seek(0);
        byte[] old = new byte[700];
        before.readFully(old);
        want(Arrays.equals(bytes(700), old), "other bytes");
      }
      byDescriptors(read(fs, grows, bytes(5000)), "after an append");
    });
    the("what is being written is read otherwise", () -> {
      Path open = new Path("/sc/open");
      FSDataOutputStream out = fs.create(open, true, 4096, (short) 1, 1 << 20);
      out.write(bytes(3000));
      out.hflush();
      ReadStatistics s = read(fs, open, bytes(3000));
      want(s.getTotalShortCircuitBytesRead() == 0, s.getTotalShortCircuitBytesRead() + " bytes by descriptors");
      out.close();
    });
    the("a file that is deleted is read on", () -> {
      Path gone = new Path("/sc/CRC32512-300001");
      try (HdfsDataInputStream in = (HdfsDataInputStream) fs.open(gone)) {
        byte[] got = new byte[300_001];
        in.readFully(got, 0, 1000);
        fs.delete(gone, false);
        in.readFully(got, 1000, got.length - 1000);
        want(Arrays.equals(bytes(got.length), got), "other bytes");
      }
    });
    the("without checksums", () -> {
      DistributedFileSystem skip = with("dfs.client.read.shortcircuit.skip.checksum", "true");
      byDescriptors(read(skip, new Path("/sc/CRC32C512-300001"), bytes(300_001)), "a file");
    });
    the("mapped into memory", () -> {
      try (HdfsDataInputStream in = (HdfsDataInputStream) fs.open(new Path("/sc/CRC32C512-3000000"))) {
        ElasticByteBufferPool pool = new ElasticByteBufferPool();
        ByteBuffer b = in.read(pool, 1 << 20, EnumSet.of(ReadOption.SKIP_CHECKSUMS));
        want(b.equals(ByteBuffer.wrap(bytes(3_000_000), 0, b.remaining())) && b.remaining() > 0, "other bytes");
        in.releaseBuffer(b);
        want(in.getReadStatistics().getTotalZeroCopyBytesRead() > 0, "it is copied");
      }
    });
    the("by the socket, without descriptors", () -> {
      DistributedFileSystem traffic = with("dfs.client.read.shortcircuit", "false", "dfs.client.domain.socket.data.traffic", "true");
      ReadStatistics s = read(traffic, new Path("/sc/CRC32C512-3000000"), bytes(3_000_000));
      want(s.getTotalShortCircuitBytesRead() == 0 && s.getTotalLocalBytesRead() == s.getTotalBytesRead(), s.getTotalLocalBytesRead() + " of " + s.getTotalBytesRead() + " bytes from this machine");
    });
    for (String kind : new String[] {"CRC32C512", "CRC32512", "CRC321024", "NULL512"}) {
      the("damage is found with " + kind, () -> {
        Path path = new Path("/sc/" + kind + "-3000000");
        long id = fs.getClient().getLocatedBlocks(path.toString(), 0).get(1).getBlock().getBlockId();
        int flipped = 0;
        for (String store : stores) {
          flipped += flip(new java.io.File(store), "blk_" + id);
        }
        want(flipped == 1, flipped + " files are damaged");
        try {
          read(with("dfs.client.retry.window.base", "1", "damage", kind), path, bytes(3_000_000));
          want(false, "it is not");
        } catch (IOException e) {
          want(e instanceof org.apache.hadoop.fs.ChecksumException || e instanceof org.apache.hadoop.hdfs.BlockMissingException, e.toString());
        }
      });
    }
  }

  private static int flip(java.io.File dir, String name) throws IOException {
    int n = 0;
    for (java.io.File f : dir.listFiles()) {
      if (f.isDirectory()) {
        n += flip(f, name);
      } else if (f.getName().equals(name)) {
        try (RandomAccessFile file = new RandomAccessFile(f, "rw")) {
          file.seek(77_777);
          int b = file.read();
          file.seek(77_777);
          file.write(b ^ 4);
        }
        n++;
      }
    }
    return n;
  }
}
