// Runs one client of npm: `node run_program.cjs programs/NAME.cjs`. The same cases and lines of JSON as run_program.py.

"use strict";
const dns = require("node:dns");
const net = require("node:net");
const path = require("node:path");

const LOOPBACK = ["127.0.0.1", "::1", "localhost"];
const strangers = [];

function refused(host) {
  strangers.push(String(host));
  return new Error(`a client wanted to reach ${host}`);
}

const lookup = dns.lookup;
dns.lookup = (host, ...rest) => {
  if (LOOPBACK.includes(host)) return lookup(host, ...rest);
  throw refused(host);
};
const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...rest) {
  const given = Array.isArray(rest[0]) ? rest[0][0] : rest[0];
  const host = typeof given === "object" ? given.host : rest[1];
  if (host !== undefined && typeof host === "string" && !LOOPBACK.includes(host)) throw refused(host);
  return connect.apply(this, rest);
};

async function main() {
  const program = require(path.resolve(process.argv[2]));
  for (const name of ["plain", "stream", "tool", "structured", "reasoning", "extras"]) {
    if (!program[name]) continue;
    try {
      const value = await program[name](`(${name}) Tell me about the harbour.`);
      console.log(JSON.stringify({ case: name, value }));
    } catch (error) {
      console.log(JSON.stringify({ case: name, error: String(error && error.stack) }));
    }
  }
  console.log(JSON.stringify({ case: "strangers", value: strangers }));
}

main();
