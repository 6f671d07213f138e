import java.io.IOException;
import java.net.URI;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.zip.CRC32;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.ChecksumOpt;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.QuotaUsage;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DFSStripedOutputStream;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.client.HdfsDataOutputStream;
import org.apache.hadoop.util.DataChecksum;
import org.apache.hadoop.util.StringUtils;

/**
 * What the stock client makes of checksums and of storage types: "case NAME", then what happened. Ids and addresses are left out.
 *
 * Arguments: the URI of the filesystem, the address of its namenode's web server. With a path behind them: only what can be read there.
 */
public class StorageDriver {
  private interface Deed {
    void run() throws Exception;
  }

  private static final int BLOCK = 1 << 17;

  private final URI uri;
  private final DistributedFileSystem fs;
  private final DistributedFileSystem composite;
  private final FileSystem web;

  private StorageDriver(URI uri, String http) throws Exception {
    this.uri = uri;
    fs = with();
    composite = with("dfs.checksum.combine.mode", "COMPOSITE_CRC");
    web = FileSystem.newInstance(URI.create("webhdfs://" + http), new Configuration());
  }

  private DistributedFileSystem with(String... settings) throws IOException {
    Configuration conf = new Configuration();
    for (int i = 0; i < settings.length; i += 2) {
      conf.set(settings[i], settings[i + 1]);
    }
    return (DistributedFileSystem) FileSystem.newInstance(uri, conf);
  }

  public static void main(String[] args) throws Exception {
    org.apache.log4j.Logger.getRootLogger().setLevel(org.apache.log4j.Level.OFF); // what it warns of comes as an exception, too
    StorageDriver driver = new StorageDriver(URI.create(args[0]), args[1]);
    if (args.length > 2) {
      driver.tell(args[2]);
      System.exit(0);
    }
    driver.fs.delete(new Path("/storage"), true);
    driver.fs.mkdirs(new Path("/storage"));
    driver.checksums();
    driver.coded();
    driver.quotas();
    System.exit(0);
  }

  private static Path p(String name) {
    return new Path("/storage/" + name);
  }

  /** Runs a case. An exception is a line of it: its class and its words up to where they name blocks. */
  private static void the(String name, Deed deed) {
    System.out.println("case " + name);
    try {
      deed.run();
    } catch (Throwable e) {
      System.out.println(e.getClass().getName() + ": " + String.valueOf(e.getMessage()).split("\n")[0].replaceAll("LocatedBlock\\{.*|LocatedStripedBlock\\{.*", "BLOCK"));
    }
    System.out.flush();
  }

  private static byte[] bytes(int from, int n) {
    byte[] b = new byte[n];
    for (int i = 0; i < n; i++) {
      int at = from + i;
      b[i] = (byte) (at * 31 + (at >> 8) * 7 + (at >> 16));
    }
    return b;
  }

  private static void write(FSDataOutputStream out, int from, int n) throws IOException {
    byte[] b = bytes(from, n);
    int part = n / 3;
    out.write(b, 0, part);
    if (!(out.getWrappedStream() instanceof DFSStripedOutputStream)) {
      out.hflush();
    }
    out.write(b, part, n - part);
    out.close();
  }

  private void read(Path path, int n) throws IOException {
    byte[] want = bytes(0, n);
    byte[] got = new byte[n];
    try (FSDataInputStream in = fs.open(path)) {
      in.readFully(0, got);
      System.out.println("read " + (Arrays.equals(want, got) && in.read(n, new byte[1], 0, 1) == -1));
      int from = n / 2 + 1;
      int k = Math.min(1500, n - from);
      byte[] part = new byte[k];
      in.readFully(from, part);
      System.out.println("read a part " + Arrays.equals(Arrays.copyOfRange(want, from, from + k), part));
    }
  }

  private static String text(FileChecksum sum) {
    if (sum == null) {
      return "none";
    }
    return sum.getAlgorithmName() + " " + StringUtils.byteToHexString(sum.getBytes());
  }

  private interface Sum {
    FileChecksum get() throws IOException;
  }

  private static void print(String what, Sum sum) {
    try {
      System.out.println(what + ": " + text(sum.get()));
    } catch (IOException e) {
      System.out.println(what + ": " + e.getClass().getSimpleName() + " " + String.valueOf(e.getMessage()).split("\n")[0].replaceAll("LocatedBlock\\{.*|LocatedStripedBlock\\{.*", "BLOCK"));
    }
  }

  private void sums(Path path, int n, boolean byWeb) {
    print("MD5", () -> fs.getFileChecksum(path));
    print("composite", () -> composite.getFileChecksum(path));
    for (int length : new int[] {1, n / 2, n - 1, n + 5}) {
      if (length > 0) {
        print("MD5 of " + length, () -> fs.getFileChecksum(path, length));
        print("composite of " + length, () -> composite.getFileChecksum(path, length));
      }
    }
    if (byWeb) {
      print("WebHDFS", () -> web.getFileChecksum(path));
    }
  }

  /** Says how long a file is, and what is read of it to its end. */
  private void tell(String path) throws IOException {
    System.out.println("case length");
    System.out.println(fs.getFileStatus(new Path(path)).getLen());
    CRC32 crc = new CRC32();
    long n = 0;
    try (FSDataInputStream in = fs.open(new Path(path))) {
      byte[] b = new byte[1 << 16];
      for (int k = in.read(b); k > 0; k = in.read(b)) {
        crc.update(b, 0, k);
        n += k;
      }
    }
    System.out.println("case read");
    System.out.println(n + " " + Long.toHexString(crc.getValue()));
    System.out.println("case checksum");
    print("composite", () -> composite.getFileChecksum(new Path(path)));
  }

  private FSDataOutputStream create(FileSystem by, Path path, int blockSize) throws IOException {
    return by.create(path, true, 4096, (short) 2, blockSize);
  }

  private void checksums() throws Exception {
    String[][] kinds = {
      {"CRC32C", "512"}, {"CRC32", "512"}, {"CRC32", "1024"}, {"CRC32C", "4096"}, {"CRC32", "1000"}, {"CRC32C", "100"}, {"CRC32", "1"}, {"CRC32C", "65536"}, {"NULL", "512"},
    };
    for (String[] kind : kinds) {
      DistributedFileSystem by = with("dfs.checksum.type", kind[0], "dfs.bytes-per-checksum", kind[1]);
      int per = Integer.parseInt(kind[1]);
      int block = BLOCK % per == 0 ? BLOCK : 120 * 1000;
      boolean byWeb = !kind[0].equals("NULL");
      for (int n : new int[] {0, 700, 300_001}) {
        String name = kind[0] + "-" + kind[1] + "-" + n;
        the("write " + n + " bytes with " + kind[0] + " of " + kind[1], () -> {
          write(create(by, p(name), block), 0, n);
          if (n > 0) {
            read(p(name), n);
          }
          sums(p(name), n, byWeb);
        });
        if (n > 0) {
          the("append to " + n + " bytes with " + kind[0] + " of " + kind[1], () -> {
            write(by.append(p(name)), n, 5000);
            read(p(name), n + 5000);
            sums(p(name), n + 5000, byWeb);
          });
        }
      }
    }
    DistributedFileSystem crc32 = with("dfs.checksum.type", "CRC32");
    DistributedFileSystem none = with("dfs.checksum.type", "NULL");
    the("append with CRC32 to a block with CRC32C", () -> {
      write(create(fs, p("keeps"), BLOCK), 0, 1300);
      write(crc32.append(p("keeps")), 1300, 3000);
      read(p("keeps"), 4300);
      sums(p("keeps"), 4300, true);
    });
    the("append with CRC32C to a block with CRC32", () -> {
      write(create(crc32, p("keeps32"), BLOCK), 0, 1300);
      write(fs.append(p("keeps32")), 1300, 3000);
      read(p("keeps32"), 4300);
      sums(p("keeps32"), 4300, true);
    });
    the("append without checksums to a block with CRC32", () -> {
      write(create(crc32, p("keeps0"), BLOCK), 0, 1024);
      write(none.append(p("keeps0")), 1024, 3000);
      read(p("keeps0"), 4024);
      sums(p("keeps0"), 4024, true);
    });
    the("blocks of different types in a file", () -> {
      write(create(fs, p("mixed"), BLOCK), 0, 1300);
      write(crc32.append(p("mixed"), EnumSet.of(CreateFlag.APPEND, CreateFlag.NEW_BLOCK), 4096, null), 1300, 3000);
      read(p("mixed"), 4300);
      sums(p("mixed"), 4300, false);
    });
    the("blocks of different chunks in a file", () -> {
      write(create(fs, p("chunks"), BLOCK), 0, 1300);
      write(with("dfs.bytes-per-checksum", "1024").append(p("chunks"), EnumSet.of(CreateFlag.APPEND, CreateFlag.NEW_BLOCK), 4096, null), 1300, 3000);
      read(p("chunks"), 4300);
      sums(p("chunks"), 4300, false);
    });
    the("create with an option", () -> {
      FSDataOutputStream out = fs.create(p("option"), FsPermission.getFileDefault(), EnumSet.of(CreateFlag.CREATE), 4096, (short) 1, BLOCK, null,
          new ChecksumOpt(DataChecksum.Type.CRC32, 2048));
      write(out, 0, 200_000);
      read(p("option"), 200_000);
      sums(p("option"), 200_000, true);
    });
    the("chunks that do not divide the block", () -> write(create(with("dfs.bytes-per-checksum", "1000"), p("odd"), BLOCK), 0, 10));
    the("hsync with CRC32", () -> {
      try (FSDataOutputStream out = create(crc32, p("hsync"), BLOCK)) {
        out.write(bytes(0, 1000));
        ((HdfsDataOutputStream) out).hsync(EnumSet.of(HdfsDataOutputStream.SyncFlag.UPDATE_LENGTH));
        read(p("hsync"), 1000);
        out.write(bytes(1000, 4000));
      }
      sums(p("hsync"), 5000, true);
    });
    the("truncate with CRC32", () -> {
      write(create(crc32, p("cut"), BLOCK), 0, 150_000);
      fs.truncate(p("cut"), 140_001);
      while (!fs.isFileClosed(p("cut"))) {
        Thread.sleep(50);
      }
      read(p("cut"), 140_001);
      sums(p("cut"), 140_001, true);
    });
    the("concat of files with CRC32", () -> {
      write(create(crc32, p("first"), BLOCK), 0, BLOCK);
      write(create(crc32, p("second"), BLOCK), BLOCK, 1000);
      fs.concat(p("first"), new Path[] {p("second")});
      read(p("first"), BLOCK + 1000);
      sums(p("first"), BLOCK + 1000, true);
    });
    the("a snapshot", () -> {
      fs.mkdirs(p("snap"));
      fs.allowSnapshot(p("snap"));
      write(create(crc32, p("snap/f"), BLOCK), 0, 1500);
      fs.createSnapshot(p("snap"), "s");
      write(crc32.append(p("snap/f")), 1500, 1500);
      write(crc32.append(p("snap/f")), 3000, 1000);
      read(p("snap/f"), 4000);
      sums(p("snap/.snapshot/s/f"), 1500, true);
      print("composite", () -> composite.getFileChecksum(p("snap/f")));
    });
    the("MD5 of a file that was appended to and is in a snapshot", () -> {
      print("MD5", () -> fs.getFileChecksum(p("snap/f")));
      fs.deleteSnapshot(p("snap"), "s");
    });
  }

  private void coded() throws Exception {
    fs.enableErasureCodingPolicy("XOR-2-1-1024k");
    fs.mkdirs(p("coded"));
    fs.setErasureCodingPolicy(p("coded"), "XOR-2-1-1024k");
    for (String[] kind : new String[][] {{"CRC32C", "512"}, {"CRC32", "512"}, {"CRC32", "4096"}, {"NULL", "512"}}) {
      DistributedFileSystem by = with("dfs.checksum.type", kind[0], "dfs.bytes-per-checksum", kind[1]);
      for (int n : new int[] {700, 2_500_000, 5_000_000}) {
        String name = "coded/" + kind[0] + "-" + kind[1] + "-" + n;
        the("write " + n + " bytes, coded, with " + kind[0] + " of " + kind[1], () -> {
          write(create(by, p(name), 2 << 20), 0, n);
          read(p(name), n);
          sums(p(name), n, !kind[0].equals("NULL"));
        });
      }
    }
    the("append to a coded file", () -> write(fs.append(p("coded/CRC32-512-700")), 700, 1000));
    the("append another group to a coded file", () -> {
      write(fs.append(p("coded/CRC32-512-700"), EnumSet.of(CreateFlag.APPEND, CreateFlag.NEW_BLOCK), 4096, null), 700, 1000);
      read(p("coded/CRC32-512-700"), 1700);
      sums(p("coded/CRC32-512-700"), 1700, false);
    });
    the("hflush and hsync of a coded file", () -> {
      try (FSDataOutputStream out = create(fs, p("coded/flushed"), 2 << 20)) {
        out.write(bytes(0, 1000));
        out.hflush();
        out.hsync();
        System.out.println(out.hasCapability("hflush") + " " + out.hasCapability("hsync"));
      }
      read(p("coded/flushed"), 1000);
    });
  }

  private static void usage(DistributedFileSystem fs, Path path) throws IOException {
    QuotaUsage u = fs.getQuotaUsage(path);
    for (StorageType t : StorageType.getTypesSupportingQuota()) {
      System.out.println(t + " " + u.getTypeQuota(t) + " " + u.getTypeConsumed(t));
    }
    System.out.println("space " + u.getSpaceQuota() + " " + u.getSpaceConsumed());
  }

  private void quotas() throws Exception {
    Path dir = p("quota");
    fs.mkdirs(dir);
    the("a quota of a type", () -> {
      fs.setStoragePolicy(dir, "HOT");
      fs.setQuotaByStorageType(dir, StorageType.DISK, 300_000);
      fs.setQuotaByStorageType(dir, StorageType.SSD, 100_000);
      usage(fs, dir);
    });
    the("what it counts", () -> {
      write(fs.create(p("quota/f"), true, 4096, (short) 1, 1000), 0, 2500);
      usage(fs, dir);
    });
    the("a quota that is exceeded", () -> write(fs.create(p("quota/g"), true, 4096, (short) 1, 1 << 20), 0, 10));
    the("a policy without such a quota", () -> {
      fs.setStoragePolicy(dir, "COLD");
      usage(fs, dir);
    });
    the("a policy with one that is exceeded", () -> {
      fs.setStoragePolicy(dir, "ALL_SSD");
      write(fs.create(p("quota/h"), true, 4096, (short) 1, 1 << 20), 0, 10);
    });
    the("no quota of a type any more", () -> {
      fs.setQuotaByStorageType(dir, StorageType.SSD, -1);
      fs.setStoragePolicy(dir, "HOT");
      usage(fs, dir);
    });
    the("a quota of a type that has none", () -> fs.setQuotaByStorageType(dir, StorageType.RAM_DISK, 1000));
    the("a quota of no type", () -> fs.setQuotaByStorageType(dir, null, 1000));
    the("a quota of a file", () -> fs.setQuotaByStorageType(p("quota/f"), StorageType.DISK, 1000));
    the("a quota of the root", () -> fs.setQuotaByStorageType(new Path("/"), StorageType.DISK, 1L << 50));
    the("a quota of nothing", () -> fs.setQuotaByStorageType(p("nothing"), StorageType.DISK, 1000));
  }
}
