// A small client of flashQ's HTTP API, as its documentation describes it, that lives a whole life.
//
// usage: node client.mjs HOST:PORT QUEUE
// It prints one line, "done", or fails with what was not as it should be.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import net from "node:net";

const [address, queue] = process.argv.slice(2);
const base = `http://${address}`;

async function call(method, path, body) {
  const response = await fetch(base + path, {
    method,
    headers: { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const answer = await response.json();
  if (!answer.ok) throw new Error(answer.error);
  return answer.data;
}

/** Server-sent events, read from the stream of a fetch. */
class Events {
  static async open(path) {
    const events = new Events();
    events.stopped = new AbortController();
    const response = await fetch(base + path, { signal: events.stopped.signal });
    assert.equal(response.headers.get("content-type"), "text/event-stream");
    events.reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    events.text = "";
    await events.block();
    return events;
  }

  async block() {
    let end;
    while ((end = this.text.indexOf("\n\n")) < 0) {
      const { value, done } = await this.reader.read();
      assert(!done, "the stream is over");
      this.text += value;
    }
    const block = this.text.slice(0, end);
    this.text = this.text.slice(end + 2);
    return block;
  }

  /** The next event of a type; others are passed over. */
  async next(type) {
    for (;;) {
      const lines = (await this.block()).split("\n");
      const named = lines.find((line) => line.startsWith("event: "))?.slice(7);
      if (named === type) return JSON.parse(lines.find((line) => line.startsWith("data: ")).slice(6));
    }
  }

  close() {
    this.stopped.abort();
  }
}

/** A WebSocket that only listens: Node 20 has none of its own. */
class Frames {
  static open(path) {
    const frames = new Frames();
    const [host, port] = address.split(":");
    const key = randomBytes(16).toString("base64");
    frames.bytes = Buffer.alloc(0);
    frames.waiting = [];
    frames.socket = net.connect(Number(port), host, () => {
      frames.socket.write(
        `GET ${path} HTTP/1.1\r\nHost: ${address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n` +
          `Sec-WebSocket-Key: ${key}\r\nSec-WebSocket-Version: 13\r\n\r\n`,
      );
    });
    frames.socket.on("data", (chunk) => {
      frames.bytes = Buffer.concat([frames.bytes, chunk]);
      for (const wake of frames.waiting.splice(0)) wake();
    });
    return frames.#opened(key);
  }

  async #opened(key) {
    let end;
    while ((end = this.bytes.indexOf("\r\n\r\n")) < 0) await this.#more();
    const head = this.bytes.subarray(0, end).toString();
    this.bytes = this.bytes.subarray(end + 4);
    assert(head.startsWith("HTTP/1.1 101"), head);
    const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    const accepted = createHash("sha1").update(key + guid).digest("base64");
    assert(head.includes(accepted), "the server did not accept this key");
    return this;
  }

  #more() {
    return new Promise((wake) => this.waiting.push(wake));
  }

  async #take(count) {
    while (this.bytes.length < count) await this.#more();
    const taken = this.bytes.subarray(0, count);
    this.bytes = this.bytes.subarray(count);
    return taken;
  }

  /** The next text frame. */
  async next() {
    for (;;) {
      const [first, second] = await this.#take(2);
      let length = second & 0x7f;
      if (length === 126) length = (await this.#take(2)).readUInt16BE();
      else if (length === 127) length = Number((await this.#take(8)).readBigUInt64BE());
      const payload = await this.#take(length);
      if ((first & 0x0f) === 1) return JSON.parse(payload.toString());
    }
  }

  close() {
    this.socket.destroy();
  }
}

const jobs = `/queues/${encodeURIComponent(queue)}`;
const events = await Events.open(`/events/${queue}`);
const frames = await Frames.open(`/ws/${queue}`);

// Push, pull, report and acknowledge.
const pushed = await call("POST", `${jobs}/jobs`, { data: { to: "a" }, priority: 5, remove_on_complete: false });
assert.deepEqual((await events.next("pushed")).data, { to: "a" });
assert.equal((await frames.next()).job_id, pushed.id);
const [job] = await call("GET", `${jobs}/jobs?count=1`);
assert.equal(job.id, pushed.id);
assert.equal(job.priority, 5);
await call("POST", `/jobs/${job.id}/progress`, { progress: 40, message: "under way" });
assert.equal((await events.next("progress")).progress, 40);
assert.equal((await frames.next()).event, "job:progress");
const finished = call("GET", `/jobs/${job.id}/wait?timeout=30000`);
await call("POST", `/jobs/${job.id}/ack`, { result: { sent: true } });
assert.deepEqual(await finished, { sent: true });
assert.deepEqual((await events.next("completed")).data, { sent: true });
assert.equal((await frames.next()).event_type, "completed");

// Fail, and retry the dead letter.
const bad = await call("POST", `${jobs}/jobs`, { data: 1, max_attempts: 1 });
await call("GET", `${jobs}/jobs?count=1`);
await call("POST", `/jobs/${bad.id}/fail`, { error: "no such address" });
assert.equal((await events.next("failed")).error, "no such address");
assert.deepEqual((await call("GET", `${jobs}/dlq?count=100`)).map((each) => each.id), [bad.id]);
assert.equal(await call("POST", `${jobs}/dlq/${bad.id}/retry`), 1);
assert.equal((await call("GET", `${jobs}/jobs?count=1`))[0].id, bad.id);
await call("POST", `/jobs/${bad.id}/ack`, {});
await assert.rejects(call("POST", `/jobs/${bad.id}/ack`, {}), /not found/);

// Workers in parallel over a batch.
const ids = await call("POST", `${jobs}/jobs/batch`, { jobs: Array.from({ length: 200 }, (_, n) => ({ data: n })) });
const done = new Set();
async function work() {
  for (;;) {
    const mine = await call("GET", `${jobs}/jobs?count=10&timeout=0`);
    if (!mine.length) return;
    await call("POST", "/jobs/ack/batch", { ids: mine.map((each) => each.id) });
    for (const each of mine) done.add(each.id);
  }
}
await Promise.all([work(), work(), work(), work()]);
assert.deepEqual([...done].sort(), [...ids].sort());

// A flow and a cron.
const children = [{ queue, data: "c1" }, { queue, data: "c2" }];
const flow = await call("POST", "/flows", { queue: `${queue}-flow`, parent_data: "p", children });
assert.equal(flow.children_ids.length, 2);
for (const each of await call("GET", `${jobs}/jobs?count=2`)) await call("POST", `/jobs/${each.id}/ack`, {});
assert.equal((await call("GET", `/queues/${queue}-flow/jobs?count=1`))[0].id, flow.parent_id);
await call("PUT", `/crons/${queue}`, { queue, data: {}, repeat_every: 3600000 });
assert((await call("GET", "/crons")).some((each) => each.name === queue));
assert.equal(await call("DELETE", `/crons/${queue}`), true);

events.close();
frames.close();
console.log("done");
