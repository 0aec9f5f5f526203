// The unmodified client over a WebSocket: messages, requests, a large payload, a stream. Node needs
// --experimental-websocket before version 22.
import assert from "node:assert/strict";
import { wsconnect } from "@nats-io/nats-core";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";

const nc = await wsconnect({ servers: process.argv[2], reconnect: false });
const subject = `js.ws.${process.pid}`;

const received = [];
const all = (async () => {
  for await (const m of nc.subscribe(`${subject}.>`, { max: 500 })) received.push(m.string());
})();
for (let i = 0; i < 500; i++) nc.publish(`${subject}.${i}`, `message ${i}`);
await all;
assert.deepEqual(received, Array.from({ length: 500 }, (_, i) => `message ${i}`));

nc.subscribe(`${subject}:echo`, { callback: (_error, m) => m.respond(m.data) });
const large = new Uint8Array(900_000).map((_, i) => i % 251);
const answer = await nc.request(`${subject}:echo`, large, { timeout: 10000 });
assert.deepEqual(answer.data, large);

const name = `WS${process.pid}`;
const manager = await jetstreamManager(nc);
await manager.streams.add({ name, subjects: [`${name}.>`] });
const ack = await jetstream(nc).publish(`${name}.x`, "stored");
assert.equal(ack.seq, 1);
await manager.streams.delete(name);
await nc.drain();
console.log("ok");
