// Consumers through nats.js: fetch, consume, push, ordered; acknowledgements; many messages.
import assert from "node:assert";
import { connect } from "@nats-io/transport-node";
import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";

const nc = await connect({ servers: process.argv[2] });
const jsm = await jetstreamManager(nc);
const js = jetstream(nc);
const name = `JS${process.pid}`;
await jsm.streams.add({ name, subjects: [`${name}.>`] });
for (let i = 0; i < 100; i++) await js.publish(`${name}.${i % 4}`, `m${i}`);

// A durable pull consumer: fetch, acknowledge, refuse.
await jsm.consumers.add(name, { durable_name: "pull", ack_policy: AckPolicy.Explicit });
const pull = await js.consumers.get(name, "pull");
const first = [];
for await (const m of await pull.fetch({ max_messages: 10, expires: 20000 })) {
  first.push(m.seq);
  if (m.seq === 3) m.nak();
  else assert.equal(await m.ackAck(), true);
}
assert.deepEqual(first, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
const again = await pull.next({ expires: 20000 });
assert.deepEqual([again.seq, again.info.deliveryCount], [3, 2]);
again.ack();

// Consume to the end.
const rest = [];
const messages = await pull.consume({ max_messages: 20 });
for await (const m of messages) {
  rest.push(m.seq);
  m.ack();
  if (m.info.pending === 0) break;
}
await messages.close();
assert.deepEqual(rest, Array.from({ length: 90 }, (_, i) => i + 11));
assert.equal((await pull.info()).num_pending, 0);

// Limits by bytes.
await jsm.consumers.add(name, { durable_name: "bytes", ack_policy: AckPolicy.None });
const bytes = await js.consumers.get(name, "bytes");
let sum = 0;
await assert.rejects(async () => {
  for await (const _ of await bytes.fetch({ max_bytes: 1000, expires: 20000 })) sum++;
}, /message size exceeds maxbytes/);
assert.ok(sum > 5 && sum < 20, `${sum}`);

// An ordered consumer with a filter, and a new message for it.
const ordered = await js.consumers.get(name, { filter_subjects: `${name}.2` });
const seen = [];
const watch = await ordered.consume();
for await (const m of watch) {
  seen.push(m.seq);
  if (seen.length === 25) js.publish(`${name}.2`, "new");
  if (seen.length === 26) break;
}
await watch.close();
assert.deepEqual(seen, [...Array.from({ length: 25 }, (_, i) => 4 * i + 3), 101]);

// Push with heartbeats and flow control.
await jsm.consumers.add(name, {
  durable_name: "push",
  deliver_subject: `${name}-deliver`,
  deliver_policy: DeliverPolicy.LastPerSubject,
  filter_subject: `${name}.*`,
  ack_policy: AckPolicy.Explicit,
  flow_control: true,
  idle_heartbeat: 1_000_000_000,
});
const push = await js.consumers.getPushConsumer(name, "push");
const lasts = [];
const pushed = await push.consume();
for await (const m of pushed) {
  lasts.push(m.seq);
  m.ack();
  if (lasts.length === 4) break;
}
assert.deepEqual(lasts, [97, 98, 100, 101]);

// Pause, list, delete.
const paused = await jsm.consumers.pause(name, "pull", new Date(Date.now() + 60_000));
assert.equal(paused.paused, true);
assert.equal((await jsm.consumers.resume(name, "pull")).paused, false);
const names = [];
for await (const info of jsm.consumers.list(name)) names.push(info.name);
assert.ok(names.includes("pull") && names.includes("push"));
assert.equal(await jsm.consumers.delete(name, "pull"), true);
await jsm.streams.delete(name);
await nc.close();
console.log("ok");
