// An object store: put, get, list, delete.
import assert from "node:assert/strict";
import { connect } from "@nats-io/transport-node";
import { Objm } from "@nats-io/obj";

const nc = await connect({ servers: process.argv[2], reconnect: false });
const os = await new Objm(nc).create(`O${process.pid}`);
const content = new Uint8Array(1_000_000).map((_, at) => (at * at) % 251);
const info = await os.putBlob({ name: "a", description: "some bytes" }, content);
assert.equal(info.size, content.length);
assert.deepEqual(Buffer.from(await os.getBlob("a")), Buffer.from(content));
assert.equal((await os.info("a")).description, "some bytes");
await os.putBlob({ name: "b" }, new TextEncoder().encode("text"));
assert.deepEqual((await os.list()).map((each) => each.name).sort(), ["a", "b"]);
assert.equal((await os.delete("a")).success, true);
assert.equal(await os.get("a"), null);
assert.equal((await os.status()).sealed, false);
assert.equal((await os.seal()).sealed, true);
assert.equal(await os.destroy(), true);
await nc.close();
console.log("ok");
