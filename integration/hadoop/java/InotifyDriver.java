import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.concurrent.TimeUnit;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DFSInotifyEventInputStream;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.client.HdfsAdmin;
import org.apache.hadoop.hdfs.inotify.Event;
import org.apache.hadoop.hdfs.inotify.EventBatch;

/**
 * Changes a filesystem and prints what the stock client's inotify tells of it: "case NAME", then a line for each event. What differs between two
 * runs, times and transaction ids, is left out.
 *
 * Arguments: the URI of the filesystem.
 */
public class InotifyDriver {
  private interface Change {
    void run() throws Exception;
  }

  private final DistributedFileSystem fs;
  private final DFSInotifyEventInputStream events;
  private int marks;

  private InotifyDriver(URI uri) throws Exception {
    Configuration conf = new Configuration();
    fs = (DistributedFileSystem) new Path(uri).getFileSystem(conf);
    fs.mkdirs(new Path("/inotify"));
    events = new HdfsAdmin(uri, conf).getInotifyEventStream();
  }

  public static void main(String[] args) throws Exception {
    new InotifyDriver(URI.create(args[0])).run();
    System.exit(0);
  }

  private static Path p(String name) {
    return new Path("/inotify/" + name);
  }

  private void run() throws Exception {
    the("mkdir", () -> fs.mkdirs(p("a/b/c"), new FsPermission((short) 0750)));
    the("write", () -> write(fs.create(p("a/f"), true, 4096, (short) 1, 1 << 20), 3000));
    the("overwrite", () -> write(fs.create(p("a/f"), true, 4096, (short) 1, 1 << 20), 2000));
    the("append", () -> write(fs.append(p("a/f")), 10));
    the("append, a new block", () -> write(fs.append(p("a/f"), EnumSet.of(CreateFlag.APPEND, CreateFlag.NEW_BLOCK), 4096, null), 10));
    the("truncate to the end of a block", () -> fs.truncate(p("a/f"), 2010));
    the("truncate", () -> {
      fs.truncate(p("a/f"), 5);
      while (!fs.isFileClosed(p("a/f"))) {
        Thread.sleep(50);
      }
    });
    the("rename", () -> fs.rename(p("a/f"), p("g")));
    the("rename into a directory", () -> fs.rename(p("g"), p("a")));
    the("rename, overwriting", () -> {
      write(fs.create(p("h"), true, 4096, (short) 1, 1 << 20), 1);
      fs.rename(p("a/g"), p("h"), Options.Rename.OVERWRITE);
    });
    the("set replication", () -> fs.setReplication(p("h"), (short) 2));
    the("set permission", () -> fs.setPermission(p("h"), new FsPermission((short) 0601)));
    the("set owner", () -> fs.setOwner(p("h"), "alice", null));
    the("set owner and group", () -> fs.setOwner(p("h"), "bob", "staff"));
    the("set times", () -> fs.setTimes(p("h"), 1000000000000L, 1100000000000L));
    the("set the modification time", () -> fs.setTimes(p("h"), 1200000000000L, -1));
    the("set an attribute", () -> fs.setXAttr(p("h"), "user.tag", "v".getBytes("UTF-8")));
    the("replace an attribute", () -> fs.setXAttr(p("h"), "user.tag", "w".getBytes("UTF-8")));
    the("remove an attribute", () -> fs.removeXAttr(p("h"), "user.tag"));
    the("set an ACL", () -> fs.modifyAclEntries(p("h"), AclEntry.parseAclSpec("user:carol:r-x", true)));
    the("remove an ACL", () -> fs.removeAcl(p("h")));
    the("concat", () -> {
      for (String name : new String[] {"one", "two", "three"}) {
        write(fs.create(p(name), true, 4096, (short) 1, 1 << 20), 1 << 20);
      }
      fs.concat(p("one"), new Path[] {p("two"), p("three")});
    });
    the("snapshots", () -> {
      fs.allowSnapshot(p("a"));
      fs.createSnapshot(p("a"), "s");
      fs.deleteSnapshot(p("a"), "s");
      fs.disallowSnapshot(p("a"));
    });
    the("quota", () -> fs.setQuota(p("a"), 100, Long.MAX_VALUE));
    the("delete", () -> fs.delete(p("h"), false));
    the("delete a tree", () -> fs.delete(p("a"), true));
    the("what fails", () -> fs.delete(p("nothing"), true));
  }

  private static void write(FSDataOutputStream out, int n) throws Exception {
    out.write(new byte[n]);
    out.close();
  }

  /** Makes a change, then a directory as a mark, and prints what is told in front of the mark. */
  private void the(String name, Change change) throws Exception {
    System.out.println("case " + name);
    change.run();
    String mark = "/inotify/mark" + marks++;
    fs.mkdirs(new Path(mark));
    List<String> lines = new ArrayList<>();
    long until = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);
    while (System.nanoTime() < until) {
      EventBatch batch = events.poll(1, TimeUnit.SECONDS);
      if (batch == null) {
        continue;
      }
      if (batch.getTxid() <= 0) {
        lines.add("a batch has transaction id " + batch.getTxid());
      }
      List<String> told = new ArrayList<>();
      for (Event event : batch.getEvents()) {
        if (event instanceof Event.CreateEvent && ((Event.CreateEvent) event).getPath().equals(mark)) {
          lines.forEach(System.out::println);
          return;
        }
        told.add(line(event));
      }
      lines.add(String.join(" + ", told));
    }
    System.out.println("the mark is not told within a minute; before it: " + lines);
  }

  private static String line(Event event) {
    switch (event.getEventType()) {
      case CREATE:
        Event.CreateEvent c = (Event.CreateEvent) event;
        return "CREATE " + c.getiNodeType() + " " + c.getPath() + " " + c.getOwnerName() + " " + c.getGroupName() + " " + c.getPerms() + " " + c.getReplication()
            + " " + c.getOverwrite() + " " + c.getDefaultBlockSize() + " " + c.getSymlinkTarget() + " " + (c.getCtime() > 0);
      case CLOSE:
        Event.CloseEvent e = (Event.CloseEvent) event;
        return "CLOSE " + e.getPath() + " " + e.getFileSize() + " " + (e.getTimestamp() > 0);
      case APPEND:
        Event.AppendEvent a = (Event.AppendEvent) event;
        return "APPEND " + a.getPath() + " " + a.toNewBlock();
      case RENAME:
        Event.RenameEvent r = (Event.RenameEvent) event;
        return "RENAME " + r.getSrcPath() + " " + r.getDstPath() + " " + (r.getTimestamp() > 0);
      case UNLINK:
        Event.UnlinkEvent u = (Event.UnlinkEvent) event;
        return "UNLINK " + u.getPath() + " " + (u.getTimestamp() > 0);
      case TRUNCATE:
        Event.TruncateEvent t = (Event.TruncateEvent) event;
        return "TRUNCATE " + t.getPath() + " " + t.getFileSize() + " " + (t.getTimestamp() > 0);
      case METADATA:
        Event.MetadataUpdateEvent m = (Event.MetadataUpdateEvent) event;
        List<String> attributes = new ArrayList<>();
        if (m.getxAttrs() != null) {
          m.getxAttrs().forEach(x -> attributes.add(x.getNameSpace() + "." + x.getName() + "=" + Arrays.toString(x.getValue())));
        }
        return "METADATA " + m.getMetadataType() + " " + m.getPath() + " " + m.getMtime() + " " + m.getAtime() + " " + m.getReplication() + " " + m.getOwnerName() + " "
            + m.getGroupName() + " " + m.getPerms() + " " + m.getAcls() + " " + attributes + " " + m.isxAttrsRemoved();
      default:
        return event.getEventType().toString();
    }
  }
}
