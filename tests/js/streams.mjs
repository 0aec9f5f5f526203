// Managing streams, publishing and getting messages with the unmodified JetStream client.
import assert from "node:assert/strict";
import { connect } from "@nats-io/transport-node";
import { jetstream, JetStreamApiError, jetstreamManager, StorageType } from "@nats-io/jetstream";

const nc = await connect({ servers: process.argv[2], reconnect: false });
const jsm = await jetstreamManager(nc);
const js = jetstream(nc);
const name = `JS${process.pid}`;
const failsWith = (code) => (error) => error instanceof JetStreamApiError && error.code === code;

const info = await jsm.streams.add({ name, subjects: [`${name}.>`], allow_direct: true, storage: StorageType.File });
assert.equal(info.config.max_msgs, -1);
await assert.rejects(jsm.streams.add({ name, subjects: [`${name}.x`] }), failsWith(10058));

for (let i = 1; i <= 5; i++) {
  const ack = await js.publish(`${name}.${i % 2}`, `m${i}`, { msgID: `id-${i}` });
  assert.deepEqual([ack.stream, ack.seq, ack.duplicate], [name, i, false]);
}
assert.equal((await js.publish(`${name}.1`, "again", { msgID: "id-3" })).duplicate, true);
await assert.rejects(js.publish(`${name}.1`, "", { expect: { lastSequence: 9 } }), failsWith(10071));
await assert.rejects(js.publish(`${name}.1`, "", { expect: { streamName: "other" } }), failsWith(10060));

const state = (await jsm.streams.info(name, { subjects_filter: ">" })).state;
assert.deepEqual([state.messages, state.subjects], [5, { [`${name}.0`]: 2, [`${name}.1`]: 3 }]);
assert.equal((await jsm.streams.getMessage(name, { seq: 2 })).string(), "m2");
assert.equal((await jsm.streams.getMessage(name, { last_by_subj: `${name}.1` })).string(), "m5");
assert.equal((await jsm.direct.getMessage(name, { last_by_subj: `${name}.0` })).string(), "m4");
assert.equal(await jsm.direct.getMessage(name, { seq: 99 }), null);

const batch = [];
for await (const m of await jsm.direct.getBatch(name, { seq: 2, batch: 3 })) batch.push(m.string());
assert.deepEqual(batch, ["m2", "m3", "m4"]);
const last = [];
for await (const m of await jsm.direct.getLastMessagesFor(name, { multi_last: [`${name}.>`] })) last.push(m.seq);
assert.deepEqual(last, [4, 5]);

assert.equal(await jsm.streams.find(`${name}.x`), name);
const names = [];
for await (const listed of jsm.streams.list(`${name}.x`)) names.push(listed.config.name);
assert.deepEqual(names, [name]);
const updated = await jsm.streams.update(name, { max_msgs_per_subject: 1 });
assert.equal(updated.state.messages, 2);
assert.equal(await jsm.streams.deleteMessage(name, 5), true);
assert.equal((await jsm.streams.purge(name)).purged, 1);
assert.ok((await jsm.getAccountInfo()).streams >= 1);
assert.equal(await jsm.streams.delete(name), true);
await assert.rejects(jsm.streams.info(name));
await nc.close();
console.log("ok");
