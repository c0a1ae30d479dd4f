// Vercel AI SDK with @ai-sdk/openai, whose default is the Responses API: generateText, streamText, tools with steps, structured output, reasoning.

"use strict";
const ai = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");

const provider = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const model = provider(process.env.CLIENT_MODEL);
const Weather = z.object({ city: z.string().min(3), unit: z.enum(["celsius", "fahrenheit"]) });
const Harbour = z.object({ name: z.string(), depth_m: z.number().int().min(2).max(40), ships: z.array(z.string()), open: z.boolean() });

exports.plain = async (prompt) => (await ai.generateText({ model, prompt })).text;

exports.stream = async (prompt) => {
  const pieces = [];
  for await (const piece of ai.streamText({ model, prompt }).textStream) pieces.push(piece);
  return pieces;
};

exports.tool = async (prompt) => {
  const calls = [];
  const execute = async (given) => {
    calls.push({ name: "get_weather", arguments: given });
    return `rain in ${given.city}`;
  };
  const tools = { get_weather: ai.tool({ description: "The weather of a city.", inputSchema: Weather, execute }) };
  const run = ai.streamText({ model, prompt, tools, stopWhen: ai.stepCountIs(5) });
  return { answer: await run.text, calls };
};

exports.structured = async (prompt) => (await ai.generateText({ model, prompt, output: ai.Output.object({ schema: Harbour }) })).output;

exports.reasoning = async (prompt) => {
  const thinks = provider(process.env.CLIENT_THINKING_MODEL);
  const { reasoningText, text } = await ai.generateText({ model: thinks, prompt });
  const streamed = [];
  const run = ai.streamText({ model: thinks, prompt });
  for await (const part of run.fullStream ?? run.stream) if (part.type === "reasoning-delta") streamed.push(part.text);
  return { thought: reasoningText, streamed, text };
};
