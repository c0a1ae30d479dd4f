// openai-node: create, streams, runTools and parse with zod.

"use strict";
const OpenAI = require("openai").default;
const { zodFunction, zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const client = new OpenAI();
const model = process.env.CLIENT_MODEL;
const Weather = z.object({ city: z.string().min(3), unit: z.enum(["celsius", "fahrenheit"]) });
const Harbour = z.object({ name: z.string(), depth_m: z.number().int().min(2).max(40), ships: z.array(z.string()), open: z.boolean() });
const asked = (prompt) => [{ role: "user", content: prompt }];

exports.plain = async (prompt) => (await client.chat.completions.create({ model, messages: asked(prompt) })).choices[0].message.content;

exports.stream = async (prompt) => {
  const pieces = [];
  const options = { model, messages: asked(prompt), stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(options)) {
    if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
  }
  return pieces;
};

exports.tool = async (prompt) => {
  const calls = [];
  const weather = zodFunction({
    name: "get_weather",
    parameters: Weather,
    function: (given) => {
      calls.push({ name: "get_weather", arguments: given });
      return `rain in ${given.city}`;
    },
  });
  const runner = client.chat.completions.runTools({ model, messages: asked(prompt), tools: [weather], stream: true });
  return { calls, answer: await runner.finalContent() };
};

exports.structured = async (prompt) => {
  const format = zodResponseFormat(Harbour, "harbour");
  return (await client.chat.completions.parse({ model, messages: asked(prompt), response_format: format })).choices[0].message.parsed;
};

exports.reasoning = async (prompt) => {
  const thinks = process.env.CLIENT_THINKING_MODEL;
  const { message } = (await client.chat.completions.create({ model: thinks, messages: asked(prompt) })).choices[0];
  const streamed = [];
  for await (const chunk of await client.chat.completions.create({ model: thinks, messages: asked(prompt), stream: true })) {
    streamed.push(chunk.choices[0]?.delta.reasoning ?? chunk.choices[0]?.delta.reasoning_content ?? "");
  }
  return { thought: message.reasoning ?? message.reasoning_content, streamed, text: message.content };
};
