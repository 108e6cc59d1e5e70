// Live changes: a stream of Server-Sent Events that goes on after a break where it was.

import type { Change } from "./client_types.ts";
import { type Connection, delay, pause } from "./connection.ts";
import { failure } from "./errors.ts";

/** The service sends something every 15 seconds. After this long without, the connection is dead. */
const SILENCE_MS = 40_000;

interface Message {
  event: string;
  id?: string;
  // deno-lint-ignore no-explicit-any
  data: any;
}

/** What changes in the rows of one subscription, until `signal` is aborted or the service refuses it for good. */
export async function* changes(
  connection: Connection,
  subscription: unknown,
  signal?: AbortSignal,
): AsyncGenerator<Change<unknown>, void> {
  const body = { subscriptions: { rows: subscription } };
  let lastId: string | undefined;
  for (let failures = 1;; failures = Math.min(failures + 1, 3)) {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    let retry: number | undefined;
    try {
      const both = signal ? AbortSignal.any([signal, silence.signal]) : silence.signal;
      const response = await connection.open("/changes", body, lastId, both);
      if (response.ok) {
        for await (const { event, id, data } of messages(response, both)) {
          clearTimeout(timer);
          failures = 0;
          if (event === "ready" || event === "reset") yield { type: "reset" };
          else if (event === "row") yield { type: "row", id: data.id, row: data.row };
          else if (event === "gone") yield { type: "gone", id: data.id };
          else if (event === "bye") retry = data.retry_ms;
          lastId = id ?? lastId; // the event before it was handled: the caller has asked for the next one
          timer = setTimeout(() => silence.abort(), SILENCE_MS);
        }
      } else {
        const received = { status: response.status, headers: response.headers, text: await response.text() };
        const problem = failure(received);
        // Another user has signed in, whose rows are others.
        if (lastId && problem.fields.some(({ field }) => field === "Last-Event-ID")) lastId = undefined;
        else if ((retry = delay(received, 1)) === undefined) throw problem;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!(error instanceof TypeError || error instanceof DOMException)) throw error;
    } finally {
      clearTimeout(timer);
      silence.abort();
    }
    await pause(retry ?? (1 + Math.random()) * 200 * 2 ** failures, signal);
  }
}

async function* messages(response: Response, signal: AbortSignal): AsyncGenerator<Message, void> {
  let text = "";
  // The pipe needs the signal, too: in Node 20, the one of `fetch` has no effect after a garbage collection.
  for await (const part of response.body!.pipeThrough(new TextDecoderStream(), { signal })) {
    const found = (text += part).split("\n\n");
    text = found.pop()!;
    for (const message of found) {
      const fields = Object.fromEntries(message.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      yield { event: fields.event, id: fields.id, data: JSON.parse(fields.data) };
    }
  }
}
