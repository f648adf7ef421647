/** A server that answers over HTTP and WebSocket as a test defines, to test a client's handling of invalid answers. */

import { createHash } from "node:crypto";
import { once } from "node:events";
import http from "node:http";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

export class Rogue {
  connections = 0;
  requests = [];
  #server;
  #raws = new Set();

  /**
   * @param {{answer?: (request: object, response: object) => void, socket?: (socket: RogueSocket, number: number) => void}} parts
   */
  static async started({ answer, socket, protocol = "tidelog.v1.json" }) {
    const rogue = new Rogue();
    rogue.#server = http.createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      rogue.requests.push({ method: request.method, url: request.url, headers: request.headers, body });
      answer(request, response);
    });
    rogue.#server.on("upgrade", (request, raw) => {
      rogue.connections += 1;
      rogue.#raws.add(raw);
      const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + GUID).digest("base64");
      const lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", `Sec-WebSocket-Accept: ${accept}`];
      if (protocol) lines.push(`Sec-WebSocket-Protocol: ${protocol}`);
      raw.write(`${lines.join("\r\n")}\r\n\r\n`);
      socket(new RogueSocket(raw), rogue.connections);
    });
    rogue.#server.listen(0, "127.0.0.1");
    await once(rogue.#server, "listening");
    rogue.url = `http://127.0.0.1:${rogue.#server.address().port}`;
    return rogue;
  }

  async close() {
    this.#server.closeAllConnections();
    for (const raw of this.#raws) raw.destroy();
    this.#server.close();
    await once(this.#server, "close");
  }
}

/** The server's side of a WebSocket: the part of RFC 6455 that the tests need. */
export class RogueSocket {
  received = [];
  onMessage = () => {};
  #raw;
  #pending = Buffer.alloc(0);

  constructor(raw) {
    this.#raw = raw;
    raw.on("error", () => {});
    raw.on("data", (data) => {
      this.#pending = Buffer.concat([this.#pending, data]);
      while (this.#takeFrame());
    });
  }

  #takeFrame() {
    const data = this.#pending;
    if (data.length < 6) return false;
    let [length, at] = [data[1] & 0x7f, 2];
    if (length === 126) [length, at] = [data.readUInt16BE(2), 4];
    if (data.length < at + 4 + length) return false;
    const mask = data.subarray(at, at + 4);
    const payload = Buffer.from(data.subarray(at + 4, at + 4 + length)).map((byte, index) => byte ^ mask[index % 4]);
    this.#pending = data.subarray(at + 4 + length);
    if ((data[0] & 0x0f) === 8) this.#raw.end();
    if ((data[0] & 0x0f) === 1) {
      const message = JSON.parse(payload.toString());
      this.received.push(message);
      this.onMessage(message);
    }
    return true;
  }

  /** Send a text; an object is sent as JSON. */
  send(message) {
    this.frame(0x81, Buffer.from(typeof message === "string" ? message : JSON.stringify(message)));
  }

  /** Send one frame with this first byte. */
  frame(first, payload) {
    const length = payload.length < 126 ? Buffer.from([payload.length]) : Buffer.from([126, payload.length >> 8, payload.length & 0xff]);
    this.#raw.write(Buffer.concat([Buffer.from([first]), length, payload]));
  }

  close(code) {
    const payload = Buffer.alloc(2);
    payload.writeUInt16BE(code);
    this.frame(0x88, payload);
    this.#raw.end();
  }

  /** Send bytes that are not WebSocket frames. */
  write(bytes) {
    this.#raw.write(bytes);
  }

  cut() {
    this.#raw.destroy();
  }
}
