import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.TrashPolicyDefault;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.server.mover.Mover;
import org.apache.hadoop.hdfs.tools.CacheAdmin;
import org.apache.hadoop.hdfs.tools.DFSAdmin;
import org.apache.hadoop.hdfs.tools.DFSHAAdmin;
import org.apache.hadoop.hdfs.tools.DFSck;
import org.apache.hadoop.hdfs.tools.DiskBalancerCLI;
import org.apache.hadoop.hdfs.tools.ECAdmin;
import org.apache.hadoop.hdfs.tools.StoragePolicyAdmin;
import org.apache.hadoop.hdfs.tools.snapshot.LsSnapshot;
import org.apache.hadoop.hdfs.tools.snapshot.LsSnapshottableDir;
import org.apache.hadoop.hdfs.tools.snapshot.SnapshotDiff;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;
import org.apache.log4j.AppenderSkeleton;
import org.apache.log4j.Level;
import org.apache.log4j.Logger;
import org.apache.log4j.spi.LoggingEvent;

/**
 * Runs many command lines of the unmodified FsShell, and of the operators' tools, in one JVM, each as the user and against the cluster that it names.
 *
 * Arguments: NAME=CONFDIR for each cluster. Standard input has one command a line: cluster, user, standard input and
 * arguments, separated by tabs, all but the first two in base64. Standard output has one answer a line: exit status,
 * standard output, standard error, the latter two in base64. An argument list that begins with an at sign is no command of
 * FsShell but a call of the Java API for which FsShell has none; one that begins with an exclamation mark is a command of the tool
 * that follows it.
 */
public class ShellDriver {
  /** How long a command may take before it counts as one that hangs: a busy machine is slow. */
  private static final long PATIENCE_MS = Long.getLong("compat.patience.ms", 300_000);

  private final Map<String, Configuration> clusters = new HashMap<>();
  private final Map<String, UserGroupInformation> users = new HashMap<>();

  public static void main(String[] args) throws Exception {
    ShellDriver driver = new ShellDriver();
    for (String arg : args) {
      int eq = arg.indexOf('=');
      Configuration conf = new Configuration();
      for (String site : new String[] {"core-site.xml", "hdfs-site.xml"}) {
        conf.addResource(new Path(new File(arg.substring(eq + 1), site).toURI()));
      }
      driver.clusters.put(arg.substring(0, eq), conf);
    }
    sayWhatGoesToTheTrash();
    driver.serve(System.in, System.out);
  }

  /** What was moved to the trash FsShell says in its log only, which users see on standard error. */
  private static void sayWhatGoesToTheTrash() {
    Logger log = Logger.getLogger(TrashPolicyDefault.class);
    log.setLevel(Level.INFO);
    log.addAppender(new AppenderSkeleton() {
      @Override
      protected void append(LoggingEvent event) {
        String message = event.getRenderedMessage();
        if (message.startsWith("Moved: ")) {
          System.err.println(message);
        }
      }

      @Override
      public void close() {
      }

      @Override
      public boolean requiresLayout() {
        return false;
      }
    });
  }

  private void serve(InputStream in, PrintStream out) throws Exception {
    BufferedReader lines = new BufferedReader(new InputStreamReader(in, StandardCharsets.US_ASCII));
    Base64.Encoder encoder = Base64.getEncoder();
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] fields = line.split("\t", -1);
      List<String> argv = new ArrayList<>();
      for (int i = 3; i < fields.length; i++) {
        argv.add(text(fields[i]));
      }
      ByteArrayOutputStream stdout = new ByteArrayOutputStream();
      ByteArrayOutputStream stderr = new ByteArrayOutputStream();
      int status = run(fields[0], fields[1], Base64.getDecoder().decode(fields[2]), argv, stdout, stderr);
      out.println(status + "\t" + encoder.encodeToString(stdout.toByteArray()) + "\t" + encoder.encodeToString(stderr.toByteArray()));
      out.flush();
    }
  }

  private static String text(String base64) {
    return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
  }

  /** Runs one command in a thread of its own, so that one that hangs ends with an answer that shows where. */
  private int run(String cluster, String user, byte[] stdin, List<String> argv,
      ByteArrayOutputStream stdout, ByteArrayOutputStream stderr) throws Exception {
    Configuration conf = new Configuration(clusters.get(cluster));
    UserGroupInformation ugi = users.computeIfAbsent(user, UserGroupInformation::createRemoteUser);
    PrintStream out = new PrintStream(stdout, true, "UTF-8");
    PrintStream err = new PrintStream(stderr, true, "UTF-8");
    System.setIn(new ByteArrayInputStream(stdin));
    System.setOut(out);
    System.setErr(err);
    int[] status = {-1000};
    Thread worker = new Thread(() -> {
      try {
        status[0] = ugi.doAs((PrivilegedExceptionAction<Integer>) () ->
            argv.get(0).startsWith("@") ? api(conf, argv) : argv.get(0).startsWith("!") ? operate(conf, argv, out) : shell(conf, argv));
      } catch (Throwable t) {
        Throwable cause = t.getCause() != null && t instanceof java.lang.reflect.UndeclaredThrowableException ? t.getCause() : t;
        err.println(String.valueOf(cause.getMessage()).split("\n", 2)[0]);
        status[0] = 1;
      }
    }, "command");
    worker.setDaemon(true);
    worker.start();
    worker.join(PATIENCE_MS);
    if (worker.isAlive()) {
      err.println("no end within " + PATIENCE_MS + " ms; it is at");
      for (StackTraceElement frame : worker.getStackTrace()) {
        err.println("  in " + frame);
      }
      worker.interrupt();
      status[0] = -1000;
    }
    out.flush();
    err.flush();
    return status[0];
  }

  private static int shell(Configuration conf, List<String> argv) throws Exception {
    FsShell shell = new FsShell(conf);
    try {
      return ToolRunner.run(shell, argv.toArray(new String[0]));
    } finally {
      shell.close();
      // A process of its own would have no file system from the command before, with its options.
      FileSystem.closeAllForUGI(UserGroupInformation.getCurrentUser());
    }
  }

  private static int operate(Configuration conf, List<String> argv, PrintStream out) throws Exception {
    try {
      return tool(conf, argv, out);
    } finally {
      FileSystem.closeAllForUGI(UserGroupInformation.getCurrentUser()); // as behind a command of FsShell
    }
  }

  /** Runs an operators' tool, as its main method does. */
  private static int tool(Configuration conf, List<String> argv, PrintStream out) throws Exception {
    String[] args = argv.subList(1, argv.size()).toArray(new String[0]);
    switch (argv.get(0)) {
      case "!dfsadmin":
        return ToolRunner.run(new DFSAdmin(conf), args);
      case "!ec":
        return ToolRunner.run(conf, new ECAdmin(conf), args);
      case "!cacheadmin":
        return ToolRunner.run(new CacheAdmin(conf), args);
      case "!storagepolicies":
        return ToolRunner.run(conf, new StoragePolicyAdmin(conf), args);
      case "!fsck":
        return ToolRunner.run(new DFSck(conf, out), args);
      case "!haadmin":
        return ToolRunner.run(conf, new DFSHAAdmin(), args);
      case "!lsSnapshottableDir":
        return ToolRunner.run(conf, new LsSnapshottableDir(), args);
      case "!lsSnapshot":
        return ToolRunner.run(conf, new LsSnapshot(), args);
      case "!snapshotDiff":
        return ToolRunner.run(conf, new SnapshotDiff(), args);
      case "!diskbalancer":
        return ToolRunner.run(conf, new DiskBalancerCLI(conf, out), args);
      case "!mover":
        DefaultMetricsSystem.setMiniClusterMode(true); // it registers its metrics again with each run
        return ToolRunner.run(conf, new Mover.Cli(), args);
      case "!balancer":
        DefaultMetricsSystem.setMiniClusterMode(true);
        Constructor<?> balancer = Class.forName("org.apache.hadoop.hdfs.server.balancer.Balancer$Cli").getDeclaredConstructor();
        balancer.setAccessible(true);
        try {
          return ToolRunner.run(conf, (Tool) balancer.newInstance(), args);
        } catch (IllegalArgumentException e) { // its main method ends with -1
          System.err.println(e.getMessage());
          return -1;
        }
      default:
        throw new IllegalArgumentException("no tool is named " + argv.get(0));
    }
  }

  private static int api(Configuration conf, List<String> argv) throws Exception {
    try (FileSystem fs = FileSystem.newInstance(URI.create(conf.get("fs.defaultFS")), conf)) {
      DistributedFileSystem dfs = (DistributedFileSystem) fs;
      Path path = new Path(argv.get(1));
      switch (argv.get(0)) {
        case "@allowSnapshot":
          dfs.allowSnapshot(path);
          return 0;
        case "@disallowSnapshot":
          dfs.disallowSnapshot(path);
          return 0;
        case "@quota":
          dfs.setQuota(path, Long.parseLong(argv.get(2)), Long.parseLong(argv.get(3)));
          return 0;
        case "@closed": // wait until the datanodes have cut it
          for (int i = 0; i < 600 && !dfs.isFileClosed(path); i++) {
            Thread.sleep(100);
          }
          return dfs.isFileClosed(path) ? 0 : 1;
        case "@storagePolicy":
          dfs.setStoragePolicy(path, argv.get(2));
          return 0;
        default:
          throw new IllegalArgumentException("no call of the API is named " + argv.get(0));
      }
    }
  }
}
