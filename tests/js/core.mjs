// Core publish, subscribe, queue groups, request and headers with the unmodified Node client.
import assert from "node:assert/strict";
import { connect, headers, NoRespondersError, RequestError } from "@nats-io/transport-node";

const nc = await connect({ servers: process.argv[2], reconnect: false });
const subject = `js.core.${process.pid}`;

const received = [];
const all = (async () => {
  for await (const m of nc.subscribe(`${subject}.>`, { max: 3 })) received.push([m.subject, m.string()]);
})();
for (const word of ["one", "two", "three"]) nc.publish(`${subject}.${word}`, word);
await all;
assert.deepEqual(received, ["one", "two", "three"].map((w) => [`${subject}.${w}`, w]));

nc.subscribe(`${subject}:service`, {
  queue: "workers",
  callback: (_error, m) => {
    const h = headers();
    h.set("asked", m.headers?.get("question") ?? "");
    m.respond(`echo ${m.string()}`, { headers: h });
  },
});
const question = headers();
question.set("question", "why");
const answer = await nc.request(`${subject}:service`, "hello", { headers: question, timeout: 5000 });
assert.equal(answer.string(), "echo hello");
assert.equal(answer.headers.get("asked"), "why");

await assert.rejects(nc.request(`${subject}:nobody`, "", { timeout: 5000 }), (error) => {
  return error instanceof NoRespondersError || (error instanceof RequestError && error.isNoResponders());
});

assert.equal(nc.info.headers, true);
await nc.drain();
console.log("ok");
