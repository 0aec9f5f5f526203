// A micro service: answers, errors, discovery, statistics.
import assert from "node:assert/strict";
import { connect } from "@nats-io/transport-node";
import { Svcm } from "@nats-io/services";

const nc = await connect({ servers: process.argv[2], reconnect: false });
const name = `S${process.pid}`;
const services = new Svcm(nc);
const service = await services.add({ name, version: "1.2.3", description: "doubles" });
const group = service.addGroup(name);
group.addEndpoint("double", (error, message) => {
  const value = Number(message.string());
  if (Number.isNaN(value)) message.respondError(400, "no number");
  else message.respond(String(2 * value));
});
await nc.flush();
assert.equal((await nc.request(`${name}.double`, "21")).string(), "42");
const failed = await nc.request(`${name}.double`, "x");
assert.equal(failed.headers.get("Nats-Service-Error-Code"), "400");
const client = services.client();
for (const ask of ["ping", "info", "stats"]) {
  const found = [];
  for await (const each of await client[ask](name)) found.push(each);
  assert.deepEqual(found.map((each) => each.id), [service.info().id]);
}
await service.stop();
await nc.close();
console.log("ok");
