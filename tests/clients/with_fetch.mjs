// Node's fetch, in a retry loop like that of a service. The output is in the format of the Python scripts.

const [url, keys] = process.argv.slice(2);
const [operations, sentAgain, callers, retries] = process.argv.slice(4).map(Number);

// The test holds the other end of standard input, which the kernel closes if the test is killed.
process.stdin.on("end", () => process.exit(1)).resume();

async function send(operation) {
  const request = {
    method: "POST",
    headers: {
      "Authorization": "Bearer ann",
      "Content-Type": "application/json",
      "Idempotency-Key": `"${keys}-${operation}"`,
    },
    body: JSON.stringify({ amount: operation, currency: "eur" }),
  };
  for (let retry = 0; ; retry++) {
    let pause = Math.min(50 * 2 ** retry, 1000);
    let problem;
    try {
      const response = await fetch(url, { ...request, signal: AbortSignal.timeout(30_000) });
      const body = await response.text();
      if (response.ok) return JSON.parse(body).id;
      problem = new Error(`${response.status}: ${body}`);
      if (response.status < 500 && response.status !== 409) retry = retries;
      pause = Math.max(pause, 1000 * (response.headers.get("retry-after") ?? 0));
    } catch (error) {
      problem = error;
    }
    if (retry >= retries) throw problem;
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

async function answer(operation) {
  const receipts = [];
  try {
    receipts.push(await send(operation));
    if (operation % sentAgain === 0) receipts.push(await send(operation));
    return { operation, receipts };
  } catch (error) {
    return { operation, error: `${error} ${error.cause ?? ""}` };
  }
}

let next = 0;
async function caller() {
  while (next < operations) console.log(JSON.stringify(await answer(next++)));
}
await Promise.all(Array.from({ length: callers }, caller));
process.exit(0);
