/** A TCP proxy that can cut its connections, or let them hang as a lost network does. */

import { once } from "node:events";
import net from "node:net";

export class Proxy {
  connections = 0;
  #server;
  #pairs = new Set();

  static async before(target) {
    const proxy = new Proxy();
    const { hostname, port } = new URL(target);
    proxy.#server = net.createServer((client) => {
      proxy.connections += 1;
      const server = net.connect(Number(port), hostname);
      const pair = { client, server };
      proxy.#pairs.add(pair);
      client.pipe(server);
      server.pipe(client);
      for (const socket of [client, server]) {
        socket.on("error", () => {});
        socket.on("close", () => {
          if (pair.isHung) return;
          client.destroy();
          server.destroy();
          proxy.#pairs.delete(pair);
        });
      }
    });
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    proxy.url = `http://127.0.0.1:${proxy.#server.address().port}`;
    return proxy;
  }

  /** Cut all connections. */
  cut() {
    for (const { client, server } of this.#pairs) {
      client.resetAndDestroy();
      server.destroy();
    }
  }

  /** Stop forwarding over the existing connections without closing them. */
  hang() {
    for (const pair of this.#pairs) {
      pair.isHung = true;
      pair.client.unpipe(pair.server);
      pair.server.unpipe(pair.client);
      pair.client.resume();
      pair.server.destroy();
    }
  }

  async close() {
    this.cut();
    this.#server.close();
    await once(this.#server, "close");
  }
}
