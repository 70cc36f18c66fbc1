// npm's rsmq as a process that is asked by lines of JSON: {call, options} in, {result} or {error} out.
"use strict";

const RSMQ = require("rsmq");
const readline = require("readline");

const [port, ns, realtime] = process.argv.slice(2);
const rsmq = new RSMQ({ host: "127.0.0.1", port: Number(port), ns, realtime: realtime === "1" });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Sends for some seconds; tells the ids.
async function produce({ qname, seconds }) {
  const ids = [];
  const end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    ids.push(await rsmq.sendMessageAsync({ qname, message: `from node ${ids.length} ☕` }));
    if (ids.length % 20 === 0) await pause(5);
  }
  return ids;
}

// Receives and deletes until the time is over and nothing is left; every tenth is given back once first.
async function consume({ qname, seconds }) {
  const received = [];
  const deleted = [];
  const end = Date.now() + seconds * 1000;
  let empty = 0;
  while (Date.now() < end || empty < 20) {
    const { id, rc } = await rsmq.receiveMessageAsync({ qname });
    if (!id) {
      empty += 1;
      await pause(10);
      continue;
    }
    empty = 0;
    received.push(id);
    if (rc === 1 && received.length % 10 === 0) await rsmq.changeMessageVisibilityAsync({ qname, id, vt: 0 });
    else if (await rsmq.deleteMessageAsync({ qname, id })) deleted.push(id);
  }
  return { received, deleted };
}

// Sends, receives and deletes one after the other; tells how long each took, in seconds.
async function measure({ qname, count, message }) {
  const took = {};
  const timed = async (name, work) => {
    const begun = process.hrtime.bigint();
    await work();
    took[name] = Number(process.hrtime.bigint() - begun) / 1e9;
  };
  const ids = [];
  await timed("send", async () => {
    for (let i = 0; i < count; i++) await rsmq.sendMessageAsync({ qname, message });
  });
  await timed("receive", async () => {
    for (let i = 0; i < count; i++) ids.push((await rsmq.receiveMessageAsync({ qname })).id);
  });
  await timed("delete", async () => {
    for (const id of ids) await rsmq.deleteMessageAsync({ qname, id });
  });
  return took;
}

const own = { produce, consume, measure };

async function answer(line) {
  const { number, call, options } = JSON.parse(line);
  try {
    const made = own[call] ? own[call](options) : call === "listQueues" ? rsmq.listQueuesAsync() : rsmq[`${call}Async`](options);
    return { number, result: await made };
  } catch (error) {
    return { number, error: { name: error.name, message: error.message } };
  }
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  answer(line).then((told) => process.stdout.write(`${JSON.stringify(told)}\n`));
}).on("close", () => process.exit(0));
