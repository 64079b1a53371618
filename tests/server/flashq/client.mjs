// A client of flashQ in Node, written after its documented wire, and the lives that it lives.
//
//   node client.mjs life HOST PORT FORM       a whole life; prints what it saw as one line of JSON
//   node client.mjs survive HOST PORT FORM    prints a line when its jobs are confirmed, then works on them
//                                             through the loss of all connections, and prints their results
//
// FORM is framed (a 4-byte length before each body) or lines.

import net from "node:net";

class Connection {
  constructor(host, port, form) {
    Object.assign(this, { host, port, form, number: 0, waiting: new Map(), events: [], hear: null });
    this.connects = 0;
    this.socket = null;
  }

  async connect() {
    if (!this.connecting) {
      this.connecting = this.tryToConnect().finally(() => (this.connecting = null));
    }
    await this.connecting;
  }

  async tryToConnect() {
    for (let left = 300; this.socket === null; left--) {
      const socket = net.connect(this.port, this.host);
      const error = await new Promise((resolve) => {
        socket.once("connect", () => resolve(null));
        socket.once("error", resolve);
      });
      if (error === null) {
        this.listen(socket);
      } else if (left === 0) {
        throw error;
      } else {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  }

  listen(socket) {
    let got = Buffer.alloc(0);
    this.socket = socket;
    this.connects += 1;
    socket.setNoDelay(true);
    socket.on("error", () => {});
    socket.on("data", (data) => {
      got = Buffer.concat([got, data]);
      for (let body = this.cut(got); body !== null; body = this.cut(got)) {
        got = got.subarray(body.end);
        this.take(JSON.parse(body.text));
      }
    });
    socket.on("close", () => {
      this.socket = null;
      const lost = [...this.waiting.values()];
      this.waiting.clear();
      lost.forEach(({ reject }) => reject(Object.assign(new Error("lost"), { lost: true })));
    });
  }

  cut(got) {
    if (this.form === "lines") {
      const end = got.indexOf(10);
      return end < 0 ? null : { text: got.subarray(0, end).toString(), end: end + 1 };
    }
    if (got.length < 4 || got.length < 4 + got.readUInt32BE(0)) return null;
    const end = 4 + got.readUInt32BE(0);
    return { text: got.subarray(4, end).toString(), end };
  }

  take(reply) {
    if (reply.event !== undefined) {
      this.events.push(reply);
      this.hear?.();
      return;
    }
    const { resolve, reject } = this.waiting.get(reply.reqId);
    this.waiting.delete(reply.reqId);
    reply.ok ? resolve(reply) : reject(new Error(reply.error));
  }

  async call(cmd, fields = {}) {
    if (this.socket === null) await this.connect();
    const reqId = String(++this.number);
    const answer = new Promise((resolve, reject) => this.waiting.set(reqId, { resolve, reject }));
    const body = Buffer.from(JSON.stringify({ cmd, ...fields, reqId }));
    const head = Buffer.alloc(4);
    head.writeUInt32BE(body.length);
    this.socket.write(this.form === "lines" ? Buffer.concat([body, Buffer.from("\n")]) : Buffer.concat([head, body]));
    return answer;
  }

  async told(count) {
    while (this.events.length < count) await new Promise((resolve) => (this.hear = resolve));
    return this.events.splice(0, count);
  }
}

class Client {
  constructor(host, port, form, size = 3) {
    this.pool = Array.from({ length: size }, () => new Connection(host, port, form));
    this.turn = 0;
  }

  call(cmd, fields) {
    return this.pool[this.turn++ % this.pool.length].call(cmd, fields);
  }

  async again(cmd, fields) {
    for (;;) {
      try {
        return await this.call(cmd, fields);
      } catch (error) {
        if (!error.lost) throw error;
      }
    }
  }

  async push(queue, data, options = {}) {
    const usual = { priority: 0, lifo: false, remove_on_complete: false, remove_on_fail: false };
    return (await this.again("PUSH", { queue, data, ...usual, ...options })).id;
  }

  async finished(id) {
    return (await this.again("WAITJOB", { id, timeout: 30000 })).result;
  }

  close() {
    this.pool.forEach(({ socket }) => socket?.destroy());
  }
}

class Worker {
  constructor(client, queue, handler, concurrency = 4) {
    Object.assign(this, { client, queue, handler, begun: [] });
    this.runs = Array.from({ length: concurrency }, () => this.run());
  }

  async run() {
    for (;;) {
      const { jobs } = await this.client.again("PULLB", { queue: this.queue, count: 5, timeout: 5000 });
      for (const job of jobs) {
        try {
          this.begun.push(job.data);
          const result = await this.handler(job);
          await this.client.again("ACK", { id: job.id, result });
        } catch (error) {
          await this.client.again("FAIL", { id: job.id, error: error.message }).catch(() => {});
        }
      }
    }
  }
}

const error = (promise) => promise.then(() => null, ({ message }) => message);

async function life(client) {
  const saw = {};
  const doubles = new Worker(client, "doubles", ({ data }) => ({ twice: 2 * data.n }), 5);
  const numbers = Array.from({ length: 100 }, (_, n) => n);
  const ids = await Promise.all(numbers.map((n) => client.push("doubles", { n })));
  const results = await Promise.all(ids.map((id) => client.finished(id)));
  saw.results = results.every(({ twice }, n) => twice === 2 * n);
  saw.once = new Set(doubles.begun.map(({ n }) => n)).size === 100 && doubles.begun.length === 100;

  new Worker(client, "parts", ({ data }) => data);
  new Worker(client, "wholes", (job) => job.children_ids);
  const children = [1, 2, 3].map((data) => ({ queue: "parts", data }));
  const flow = await client.call("FLOW", { queue: "wholes", data: {}, children });
  saw.flow = JSON.stringify(await client.finished(flow.parent_id)) === JSON.stringify(flow.children_ids);

  new Worker(client, "bad", () => { throw new Error("Fail"); });
  const bad = await client.push("bad", {}, { max_attempts: 2 });
  saw.failed = (await error(client.finished(bad))) === `Job ${bad} failed: Fail`;
  saw.dead = (await client.call("DLQ", { queue: "bad", count: 100 })).jobs.map(({ id, attempts }) => [id === bad, attempts]);

  await client.push("keys", {}, { unique_key: "k" });
  saw.duplicate = await error(client.push("keys", {}, { unique_key: "k" }));
  const named = await client.push("keys", {}, { job_id: "mine" });
  saw.named = (await client.push("keys", {}, { job_id: "mine" })) === named;

  await client.call("CRON", { name: "node", queue: "ticks", data: { cron: true }, repeat_every: 100, priority: 0, limit: 1 });
  saw.cron = (await client.call("PULL", { queue: "ticks", timeout: 10000 })).job.data;

  const [listening] = client.pool;
  await listening.call("SUBSCRIBE", { queue: "doubles", events: ["completed"] });
  const last = await client.push("doubles", { n: 1 });
  const [event] = await listening.told(1);
  saw.event = [event.event, event.queue, event.job_id === last];

  const slow = listening.call("PULL", { queue: "slow", timeout: 20000 });
  saw.count = (await listening.call("COUNT", { queue: "slow" })).count;
  await client.push("slow", "now");
  saw.slow = (await slow).job.data;
  return saw;
}

async function survive(client) {
  const numbers = Array.from({ length: 60 }, (_, n) => n);
  const options = (n) => ({ job_id: `node-${n}`, timeout: 1000, max_attempts: 1000 });
  const ids = await Promise.all(numbers.map((n) => client.push("survivors", { n }, options(n))));
  // Whoever runs this kills the server now: the waits below are lost with it, and asked again.
  process.stdout.write("confirmed\n");
  const waits = Promise.all(ids.map((id) => client.finished(id)));
  await new Promise((resolve) => process.stdin.once("data", resolve));
  new Worker(client, "survivors", ({ data }) => data.n);
  const results = await waits;
  return { results: results.every((result, n) => result === n), connects: Math.min(...client.pool.map((each) => each.connects)) };
}

const [what, host, port, form] = process.argv.slice(2);
const client = new Client(host, Number(port), form);
const saw = await (what === "life" ? life(client) : survive(client));
client.close();
process.stdout.write(JSON.stringify(saw) + "\n", () => process.exit(0));
