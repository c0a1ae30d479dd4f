// @anthropic-ai/sdk: create, streams, tools in a loop, a schema of the answer, and thinking.

"use strict";
const Anthropic = require("@anthropic-ai/sdk").default;

const client = new Anthropic();
const model = process.env.CLIENT_MODEL;
const max_tokens = 4096;
const weather = {
  name: "get_weather",
  description: "The weather of a city.",
  input_schema: {
    type: "object",
    properties: { city: { type: "string", minLength: 3 }, unit: { enum: ["celsius", "fahrenheit"] } },
    required: ["city", "unit"],
    additionalProperties: false,
  },
};
const harbour = {
  type: "object",
  properties: {
    name: { type: "string" },
    depth_m: { type: "integer", minimum: 2, maximum: 40 },
    ships: { type: "array", items: { type: "string" } },
    open: { type: "boolean" },
  },
  required: ["name", "depth_m", "ships", "open"],
  additionalProperties: false,
};
const asked = (prompt) => [{ role: "user", content: prompt }];
const textOf = (message) => message.content.map((block) => (block.type === "text" ? block.text : "")).join("");

exports.plain = async (prompt) => textOf(await client.messages.create({ model, max_tokens, messages: asked(prompt) }));

exports.stream = async (prompt) => {
  const pieces = [];
  for await (const event of await client.messages.create({ model, max_tokens, messages: asked(prompt), stream: true })) {
    if (event.type === "content_block_delta" && event.delta.type === "text_delta") pieces.push(event.delta.text);
  }
  return pieces;
};

exports.tool = async (prompt) => {
  const messages = asked(prompt);
  const calls = [];
  for (;;) {
    const message = await client.messages.stream({ model, max_tokens, messages, tools: [weather] }).finalMessage();
    if (message.stop_reason !== "tool_use") return { calls, answer: textOf(message) };
    messages.push({ role: "assistant", content: message.content });
    const results = [];
    for (const block of message.content) {
      if (block.type !== "tool_use") continue;
      calls.push({ name: block.name, arguments: block.input });
      results.push({ type: "tool_result", tool_use_id: block.id, content: `rain in ${block.input.city}` });
    }
    messages.push({ role: "user", content: results });
  }
};

exports.structured = async (prompt) => {
  const output_config = { format: { type: "json_schema", schema: harbour } };
  return JSON.parse(textOf(await client.messages.create({ model, max_tokens, messages: asked(prompt), output_config })));
};

exports.reasoning = async (prompt) => {
  const request = { model: process.env.CLIENT_THINKING_MODEL, max_tokens, messages: asked(prompt) };
  const message = await client.messages.create(request);
  const thought = message.content.map((block) => (block.type === "thinking" ? block.thinking : "")).join("");
  const streamed = [];
  const events = client.messages.stream(request);
  events.on("thinking", (piece) => streamed.push(piece));
  await events.finalMessage();
  return { thought, streamed, text: textOf(message) };
};
