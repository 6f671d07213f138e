import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import javax.security.sasl.Sasl;
import javax.security.sasl.SaslClient;

/**
 * The client's end of an exchange of SASL's GSSAPI as the JDK has it, which is what Hadoop uses: SaslPeer PORT QOP SERVICE
 * HOST. Tokens are preceded by their length, four bytes. After the exchange come as many messages as were asked for, each sent
 * back; then the end.
 */
public final class SaslPeer {
  private static DataInputStream in;
  private static DataOutputStream out;

  public static void main(String[] args) throws Exception {
    System.setProperty("javax.security.auth.useSubjectCredsOnly", "false");
    Map<String, String> properties = new TreeMap<>();
    properties.put(Sasl.QOP, args[1]);
    properties.put(Sasl.SERVER_AUTH, "true");
    try (Socket socket = new Socket("127.0.0.1", Integer.parseInt(args[0]))) {
      socket.setSoTimeout(30_000);
      in = new DataInputStream(socket.getInputStream());
      out = new DataOutputStream(socket.getOutputStream());
      exchange(properties, args[2], args[3]);
    }
  }

  private static void exchange(Map<String, String> properties, String service, String host) throws Exception {
    SaslClient c = Sasl.createSaslClient(new String[] {"GSSAPI"}, null, service, host, properties, null);
    byte[] token = c.evaluateChallenge(new byte[0]);
    while (true) {
      send(token);
      if (c.isComplete()) {
        break;
      }
      token = c.evaluateChallenge(receive());
    }
    boolean layer = !"auth".equals(c.getNegotiatedProperty(Sasl.QOP));
    for (int size : new int[] {0, 1, 15, 16, 17, 1000, 60_000}) {
      byte[] message = new byte[size];
      Arrays.fill(message, (byte) size);
      send(layer ? c.wrap(message, 0, size) : message);
      byte[] back = receive();
      if (layer) {
        back = c.unwrap(back, 0, back.length);
      }
      if (!Arrays.equals(message, back)) {
        throw new IllegalStateException("a message of " + size + " bytes came back changed");
      }
    }
    System.out.println("qop " + c.getNegotiatedProperty(Sasl.QOP));
  }

  private static void send(byte[] token) throws Exception {
    byte[] t = token == null ? new byte[0] : token;
    out.writeInt(t.length);
    out.write(t);
    out.flush();
  }

  private static byte[] receive() throws Exception {
    byte[] token = new byte[in.readInt()];
    in.readFully(token);
    return token;
  }

  private SaslPeer() {}
}
