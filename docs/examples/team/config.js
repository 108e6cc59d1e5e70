import key from "./key.json" with { type: "json" };
import link from "./platform.json" with { type: "json" };

export * from "http://127.0.0.1:8000/client.js";
export const service = { url: link.url, key: key.secret, environment: link.environment };
