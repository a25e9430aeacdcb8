// npm's redlock on ioredis, version 4 or 5, with the settings its README shows. A contender's process: reads orders,
// carries them out, answers; src/orders.rs has the words. Tasks are promises, as in any Node program.
"use strict";

const readline = require("node:readline");
const Redis = require("ioredis");

const [version, url] = process.argv.slice(2);
const TTL = 10000;
const SETTINGS = { driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 200, automaticExtensionThreshold: 500 };

const client = new Redis(url);
const redlock = version === "4" ? new (require("redlock4"))([client], SETTINGS) : new (require("redlock5").default)([client], SETTINGS);
redlock.on(version === "4" ? "clientError" : "error", () => {}); // also told when a lock is merely taken

const acquire = version === "4" ? (name) => redlock.lock(name, TTL) : (name) => redlock.acquire([name], TTL);
const release = version === "4" ? (lock) => lock.unlock() : (lock) => lock.release();
const gaveUp = (error) => ["LockError", "ExecutionError"].includes(error.name);

// As in src/room.rs: counts who comes in, and notices when two are inside.
class Room {
  constructor(tasks) {
    Object.assign(this, { counting: false, inside: 0, last: null, freeSince: null, gaps: [] });
    Object.assign(this, { handovers: 0, violations: 0, gaveUp: 0, lost: 0, perTask: Array(tasks).fill(0) });
  }

  enter(me) {
    if (this.inside++ > 0) this.violations++;
    const changed = this.last !== me;
    this.last = me;
    let gap = null;
    if (changed && this.freeSince !== null) {
      gap = now() - this.freeSince;
      this.freeSince = null;
    }
    if (!this.counting) return;
    this.perTask[me]++;
    if (changed) this.handovers++;
    if (gap !== null) this.gaps.push(gap);
  }

  leave() {
    this.inside--;
    this.freeSince ??= now();
  }

  sumUp(seconds) {
    this.counting = false;
    return {
      seconds,
      acquisitions: this.perTask.reduce((sum, count) => sum + count, 0),
      handovers: this.handovers,
      per_task: this.perTask,
      gap_p50_ns: percentile(this.gaps, 0.5),
      gap_p99_ns: percentile(this.gaps, 0.99),
      violations: this.violations,
      gave_up: this.gaveUp,
      lost: this.lost,
    };
  }
}

async function solo({ name, warm_ms, ms }) {
  const countingFrom = now() + warm_ms * 1e6;
  const until = countingFrom + ms * 1e6;
  const pairs = [];
  for (;;) {
    const began = now();
    if (began >= until) break;
    await release(await acquire(name));
    if (began >= countingFrom) pairs.push(now() - began);
  }
  say({ answer: "solo", p50_ns: percentile(pairs, 0.5), p99_ns: percentile(pairs, 0.99), pairs: pairs.length });
}

async function many({ name, tasks, warm_ms, ms }) {
  let pairs = 0;
  let trouble = null;
  const work = async (me) => {
    for (;;) {
      await release(await acquire(`${name}/${me}`));
      pairs++;
    }
  };
  for (let me = 0; me < tasks; me++) work(me).catch((error) => (trouble ??= error));
  await sleep(warm_ms);
  const [began, before] = [now(), pairs];
  await sleep(ms);
  const [seconds, after] = [(now() - began) / 1e9, pairs];
  if (trouble) throw trouble;
  say({ answer: "many", pairs: after - before, seconds });
}

async function contend({ name, tasks, hold_ms, warm_ms, ms }) {
  const room = new Room(tasks);
  let trouble = null;
  const work = async (me) => {
    for (;;) {
      let lock;
      try {
        lock = await acquire(name);
      } catch (error) {
        if (!gaveUp(error)) throw error;
        if (room.counting) room.gaveUp++;
        continue;
      }
      room.enter(me);
      if (hold_ms) await sleep(hold_ms);
      room.leave();
      try {
        await release(lock);
      } catch (error) {
        if (!gaveUp(error)) throw error;
        room.lost++;
      }
    }
  };
  for (let me = 0; me < tasks; me++) work(me).catch((error) => (trouble ??= error));
  await sleep(warm_ms);
  const began = now();
  room.counting = true;
  say({ answer: "counting" });
  await sleep(ms);
  const seen = room.sumUp((now() - began) / 1e9);
  if (trouble) throw trouble;
  say({ answer: "contend", ...seen });
}

let prepared = null;
let held = null;

async function lock() {
  const asked = now();
  for (;;) {
    try {
      held = await acquire(prepared);
      return say({ answer: "held", asked_ns: asked, at_ns: now() });
    } catch (error) {
      if (!gaveUp(error)) throw error;
    }
  }
}

async function unlock() {
  const called = now();
  await release(held);
  say({ answer: "released", at_ns: called });
}

function prepare({ name }) {
  prepared = name;
  say({ answer: "prepared" });
}

const ORDERS = { solo, many, contend, prepare, lock, unlock };

async function main() {
  await client.ping();
  say({ answer: "ready" });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    try {
      await ORDERS[order.order](order);
    } catch (error) {
      say({ answer: "failed", why: String(error) });
    }
  }
  process.exit(0); // locks may still be waited for, and the server is thrown away: nothing to tidy
}

function percentile(values, share) {
  const ordered = [...values].sort((a, b) => a - b);
  return ordered.length ? ordered[Math.max(1, Math.ceil(ordered.length * share)) - 1] : null;
}

// Nanoseconds as a plain number: exact up to a hundred days of uptime.
function now() {
  return Number(process.hrtime.bigint());
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + "\n");
}

main().catch((error) => {
  say({ answer: "failed", why: String(error) });
  process.exit(1);
});
