// One node of OpenSearch, from its jars alone: what its own launcher does besides is for servers that stay.
//
// usage: java -cp 'JARS/*' Server.java FOLDER HTTP_PORT TRANSPORT_PORT

import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;
import org.opensearch.transport.Netty4Plugin;

public class Server {
    static class OneNode extends Node {
        OneNode(Environment environment, Collection<Class<? extends Plugin>> plugins) {
            super(environment, plugins, true);
        }
    }

    public static void main(String[] given) throws Exception {
        String folder = given[0];
        Settings settings = Settings.builder()
            .put("path.home", folder)
            .put("path.data", folder + "/data")
            .put("path.logs", folder + "/logs")
            .put("network.host", "127.0.0.1")
            .put("http.port", given[1])
            .put("transport.port", given[2])
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("discovery.type", "single-node")
            .put("cluster.name", "tests")
            .put("node.name", "one")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        Environment environment =
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), Path.of(folder, "config"), () -> "one");
        Node node = new OneNode(environment, List.of(Netty4Plugin.class));
        node.start();
        Thread.currentThread().join();
    }
}
