import java.io.IOException;
import java.net.URI;
import java.util.Arrays;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;

/**
 * Short files of the stock client, which the namenodes keep some seconds after they were closed: "case NAME", then what went wrong, which is nothing.
 *
 * Arguments: the URI of the filesystem, what the ids of the namenodes begin with where they stand for datanodes.
 */
public class SmallFilesDriver {
  private interface Deed {
    void run() throws Exception;
  }

  private final DistributedFileSystem fs;
  private final String door;

  private SmallFilesDriver(DistributedFileSystem fs, String door) {
    this.fs = fs;
    this.door = door;
  }

  public static void main(String[] args) throws Exception {
    org.apache.log4j.Logger.getRootLogger().setLevel(org.apache.log4j.Level.OFF); // what it warns of comes as an exception, too
    new SmallFilesDriver((DistributedFileSystem) FileSystem.newInstance(URI.create(args[0]), new Configuration()), args[1]).run();
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

  private static byte[] bytes(int n) {
    byte[] b = new byte[n];
    for (int i = 0; i < n; i++) {
      b[i] = (byte) (i * 31 + (i >> 8) * 7);
    }
    return b;
  }

  private void write(Path path, byte[] data) throws IOException {
    try (FSDataOutputStream out = fs.create(path, true, 4096, (short) 3, 1 << 20)) {
      out.write(data);
    }
  }

  private LocatedBlock block(Path path) throws IOException {
    return fs.getClient().getLocatedBlocks(path.toUri().getPath(), 0).get(0);
  }

  private boolean kept(Path path) throws IOException {
    return block(path).getLocations()[0].getDatanodeUuid().startsWith(door);
  }

  private void awaitKept(Path path) throws Exception {
    for (long end = System.nanoTime() + 120_000_000_000L; !kept(path); Thread.sleep(50)) {
      if (System.nanoTime() > end) {
        throw new IOException(path + " is not kept by the namenodes after two minutes");
      }
    }
  }

  private static void readsOn(FSDataInputStream in, byte[] want, String what) throws IOException {
    byte[] got = new byte[want.length - (int) in.getPos()];
    byte[] rest = Arrays.copyOfRange(want, (int) in.getPos(), want.length);
    in.readFully(got);
    want(Arrays.equals(rest, got), what + ": other bytes");
    byte[] all = new byte[want.length];
    in.readFully(0, all);
    want(Arrays.equals(want, all), what + ": other bytes by position");
    in.seek(0);
    in.readFully(all);
    want(Arrays.equals(want, all), what + ": other bytes from the beginning");
    in.close();
  }

  private void run() throws Exception {
    fs.mkdirs(new Path("/adopted"));
    for (int n : new int[] {1, 1024, 5000, 65536}) {
      Path path = new Path("/adopted/" + n);
      byte[] data = bytes(n);
      the(n + " bytes are kept by the namenodes after they were closed", () -> {
        write(path, data);
        FileStatus before = fs.getFileStatus(path);
        FileChecksum sum = fs.getFileChecksum(path);
        LocatedBlock block = block(path);
        FSDataInputStream fresh = fs.open(path);
        FSDataInputStream begun = fs.open(path);
        want(begun.read() == data[0] % 256, "another first byte");
        awaitKept(path);
        Thread.sleep(5000); // by then the datanodes have heard that nobody needs the block
        FileStatus after = fs.getFileStatus(path);
        want(after.equals(before) && after.getLen() == before.getLen() && after.getModificationTime() == before.getModificationTime() && after.getReplication() == 3
            && after.getOwner().equals(before.getOwner()) && after.getPermission().equals(before.getPermission()), after + ", before " + before);
        want(fs.getFileChecksum(path).equals(sum), "another checksum");
        want(block(path).getBlock().equals(block.getBlock()), "another block");
        try (FSDataInputStream in = fs.open(path)) {
          byte[] got = new byte[n];
          in.readFully(got);
          want(Arrays.equals(data, got) && in.read() == -1, "other bytes");
        }
        readsOn(fresh, data, "opened before");
        readsOn(begun, data, "begun before");
      });
    }
    the("what is flushed and open stays until it is closed", () -> {
      Path path = new Path("/adopted/open");
      FSDataOutputStream out = fs.create(path, true, 4096, (short) 3, 1 << 20);
      out.write(bytes(3000));
      out.hflush();
      write(new Path("/adopted/behind"), bytes(10));
      awaitKept(new Path("/adopted/behind"));
      want(!kept(path), "it is kept while it is open");
      out.write(bytes(1000));
      out.close();
      awaitKept(path);
      try (FSDataInputStream in = fs.open(path)) {
        byte[] got = new byte[4000];
        in.readFully(got);
        want(Arrays.equals(bytes(3000), Arrays.copyOf(got, 3000)) && Arrays.equals(bytes(1000), Arrays.copyOfRange(got, 3000, 4000)), "other bytes");
      }
    });
    the("what is kept is appended to", () -> {
      Path path = new Path("/adopted/5000");
      try (FSDataOutputStream out = fs.append(path)) {
        out.write(bytes(700));
      }
      try (FSDataInputStream in = fs.open(path)) {
        byte[] got = new byte[5700];
        in.readFully(got);
        want(Arrays.equals(bytes(5000), Arrays.copyOf(got, 5000)) && Arrays.equals(bytes(700), Arrays.copyOfRange(got, 5000, 5700)), "other bytes");
      }
    });
    the("what is appended to all the time keeps its bytes", () -> {
      Path path = new Path("/adopted/appended");
      write(path, bytes(10));
      byte[] want = bytes(10);
      for (int i = 0; i < 8; i++) {
        Thread.sleep(990 + 10 * i); // about when it is kept
        try (FSDataOutputStream out = fs.append(path)) {
          out.write(bytes(30));
        }
        want = Arrays.copyOf(want, want.length + 30);
        System.arraycopy(bytes(30), 0, want, want.length - 30, 30);
        byte[] got = new byte[want.length];
        try (FSDataInputStream in = fs.open(path)) {
          in.readFully(got);
        }
        want(Arrays.equals(want, got), "other bytes after " + (i + 1) + " appends");
      }
    });
  }
}
