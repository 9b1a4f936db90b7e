// Calls of an idempotent function with a library of npm. The arguments are the URL of a Redis, and the library: `powertools`
// or `node-idempotency`. `NODE_PATH` names the folder with the packages.
//
// Each line of standard input is one turn: `first` or `replay`, the number of tasks, and its length in milliseconds. The
// answer is a line with the nanoseconds that the turn took, and its number of calls.
'use strict';

const assert = require('node:assert/strict');
const readline = require('node:readline');

// As many as the other contestants have: concurrent replays of one key may share work.
const COMPLETED = 1000;
const SECONDS_OF_A_DAY = 24 * 3600;

// Each library connects, and returns its idempotent function and how to disconnect.
const LIBRARIES = {
  async powertools(url) {
    const { createClient } = require('@redis/client');
    const { IdempotencyConfig, makeIdempotent } = require('@aws-lambda-powertools/idempotency');
    const { CachePersistenceLayer } = require('@aws-lambda-powertools/idempotency/cache');
    const client = await createClient({ url }).connect();
    const config = new IdempotencyConfig({ expiresAfterSeconds: SECONDS_OF_A_DAY });
    // What the library reads of the context of a Lambda function.
    config.registerLambdaContext({ getRemainingTimeInMillis: () => 30_000 });
    const persistenceStore = new CachePersistenceLayer({ client });
    const call = makeIdempotent(async (key) => key.length, { persistenceStore, config });
    return { call, disconnect: () => client.close() };
  },

  async 'node-idempotency'(url) {
    const { Idempotency } = require('@node-idempotency/core');
    const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis');
    const storage = new RedisStorageAdapter({ url });
    await storage.connect();
    const idempotency = new Idempotency(storage, { cacheTTLMS: SECONDS_OF_A_DAY * 1000 });
    const call = async (key) => {
      const request = { method: 'POST', path: '/call', headers: { 'idempotency-key': key }, body: { key } };
      const stored = await idempotency.onRequest(request);
      if (stored !== undefined) {
        return stored.body;
      }
      const value = key.length;
      await idempotency.onResponse(request, { body: value });
      return value;
    };
    return { call, disconnect: () => storage.disconnect() };
  },
};

let next = 0;

// Makes calls until the time is over. Returns the nanoseconds that they took, and their number.
async function turn(call, kind, tasks, milliseconds) {
  const slice = BigInt(milliseconds) * 1_000_000n;
  const began = process.hrtime.bigint();
  const work = async () => {
    for (let calls = 1; ; calls += 1) {
      const number = next++;
      const key = kind === 'first' ? `js-${number}` : `js-done-${number % COMPLETED}`;
      assert.equal(await call(key), key.length);
      if (process.hrtime.bigint() - began > slice) {
        return calls;
      }
    }
  };
  const counts = await Promise.all(Array.from({ length: tasks }, work));
  return [process.hrtime.bigint() - began, counts.reduce((sum, calls) => sum + calls, 0)];
}

async function main(url, library) {
  const { call, disconnect } = await LIBRARIES[library](url);
  for (let number = 0; number < COMPLETED; number += 1) {
    await call(`js-done-${number}`);
  }
  console.log('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [kind, tasks, milliseconds] = line.split(' ');
    const [took, calls] = await turn(call, kind, Number(tasks), Number(milliseconds));
    console.log(`${took} ${calls}`);
  }
  await disconnect();
}

main(...process.argv.slice(2));
