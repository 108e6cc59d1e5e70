// What goes wrong.

import type { Problem } from "./client_types.ts";

/** A request that failed. `status` is 0 if no response arrived; then `code` is `network_error`. */
export class PlatformError extends Error {
  override name = "PlatformError";
  readonly status: number;
  readonly code: string;
  /** The invalid fields of a `validation_failed`; `message` has them, too. */
  readonly fields: { field: string; code: string; message: string }[];
  readonly requestId?: string;
  readonly runId?: string;
  /** The number of the failed operation of a batch, from 0. */
  readonly operation?: number;

  constructor(status: number, problem: Problem) {
    super([problem.message, ...(problem.fields ?? []).map((each) => `${each.field}: ${each.message}`)].join(" "));
    this.status = status;
    this.code = problem.code;
    this.fields = problem.fields ?? [];
    this.requestId = problem.request_id;
    this.runId = problem.run_id;
    this.operation = problem.operation;
  }
}

/** The exception for a response that is an error, or for none. */
export function failure(received: { status: number; text: string } | undefined, url = ""): PlatformError {
  if (!received) return new PlatformError(0, { code: "network_error", message: `${url} did not respond.` });
  try {
    return new PlatformError(received.status, JSON.parse(received.text).error);
  } catch {
    return new PlatformError(received.status, {
      code: "unknown",
      message: `The response has status ${received.status}.`,
    });
  }
}

/** The JSON of a response. What is not JSON comes from a proxy, or from a page that blocks the network. */
// deno-lint-ignore no-explicit-any
export function parsed(received: { status: number; text: string }): any {
  try {
    return JSON.parse(received.text);
  } catch {
    throw failure(received);
  }
}
