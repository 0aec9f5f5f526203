// A key-value bucket: create, put, get, update, delete. Watching needs consumers.
import assert from "node:assert/strict";
import { connect } from "@nats-io/transport-node";
import { Kvm } from "@nats-io/kv";

const nc = await connect({ servers: process.argv[2], reconnect: false });
const bucket = `B${process.pid}`;
const kv = await new Kvm(nc).create(bucket, { history: 3 });
assert.equal(await kv.put("a", "1"), 1);
assert.equal(await kv.create("b", "2"), 2);
await assert.rejects(kv.create("b", "3"));
assert.equal((await kv.get("a")).string(), "1");
assert.equal(await kv.update("a", "4", 1), 3);
await assert.rejects(kv.update("a", "5", 1));
await kv.delete("a");
assert.equal((await kv.get("a")).operation, "DEL");
assert.equal(await kv.get("missing"), null);
await kv.purge("b");
assert.equal((await kv.get("b")).operation, "PURGE");
assert.equal((await kv.status()).values, 4);
assert.equal(await kv.destroy(), true);
await nc.close();
console.log("ok");
