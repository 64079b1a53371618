// BullMQ on Node. The commands are those of contract.py; the version is in tasks.py.

import { renameSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { Queue, Worker } from "bullmq";

const CHUNK = 1_000;
// In single short runs, 50 ran 8,400 tasks a second, 100 9,500 and 200 10,700; latency was not compared.
const CONCURRENCY = 100;
const now = () => Number(process.hrtime.bigint());

const connection = (url) => ({ host: new URL(url).hostname, port: Number(new URL(url).port) });

// Nothing is kept of a job that is done.
const open = (url) =>
  new Queue("bench", { connection: connection(url), defaultJobOptions: { removeOnComplete: true } });

const stampless = (count) => Array(count).fill(0);

function* chunks(count) {
  for (let at = 0; at < count; at += CHUNK) yield stampless(Math.min(CHUNK, count - at));
}

const one = (queue, stamp) => queue.add("ran", { stamp });

async function enqueue(queue, count) {
  for (const stamps of chunks(count)) await Promise.all(stamps.map((stamp) => one(queue, stamp)));
}

async function bulk(queue, count) {
  for (const stamps of chunks(count)) {
    await queue.addBulk(stamps.map((stamp) => ({ name: "ran", data: { stamp } })));
  }
}

async function feed(queue, count, rate) {
  const start = now();
  const sends = [];
  for (let at = 0; at < count; at++) {
    const ahead = (start + (at / rate) * 1e9 - now()) / 1e6;
    if (ahead > 0) await sleep(ahead);
    sends.push(one(queue, now()));
  }
  await Promise.all(sends);
}

async function produce(command, url, count, rate) {
  const queue = open(url);
  await one(queue, 0);
  const start = now();
  await { enqueue, bulk, feed }[command](queue, count, rate);
  const seconds = (now() - start) / 1e9;
  await queue.close();
  return { seconds };
}

function work(url, out, count, limit) {
  const ages = [];
  let first = 0;
  let tasks = 0;
  let done = false;
  const ran = async ({ data: { stamp } }) => {
    const at = now();
    if (++tasks === 1) {
      first = at;
      writeFileSync(`${out}.first`, "");
    }
    if (stamp) ages.push(at - stamp);
    const seconds = (at - first) / 1e9;
    if (!done && (tasks === count || seconds > limit)) {
      done = true;
      writeFileSync(`${out}.made`, JSON.stringify({ tasks: tasks - 1, seconds, ages }));
      renameSync(`${out}.made`, out);
    }
  };
  new Worker("bench", ran, { connection: connection(url), concurrency: CONCURRENCY });
}

function about() {
  const { version } = createRequire(import.meta.url)("bullmq/package.json");
  const worker = `${CONCURRENCY} at a time`;
  return { name: `BullMQ ${version}`, language: "Node", worker, bulk: true, own_server: false };
}

const [command, url, ...rest] = process.argv.slice(2);
if (command === "about") console.log(JSON.stringify(about()));
else if (command === "worker") work(url, rest[0], Number(rest[1]), Number(rest[2]));
else console.log(JSON.stringify(await produce(command, url, ...rest.map(Number))));
