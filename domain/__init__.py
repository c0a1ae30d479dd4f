"""The vocabulary of Tidegate: frozen values and small Protocols, and nothing that does I/O.

Glossary (the full one, with examples, is `docs/glossary.md`):

Ask       one request, parsed and checked                     (`domain.ask`)
Caller    the principal: tenant, project, key, roles          (`domain.identity`)
Hold      tokens, money and a slot reserved for an Ask        (`tenancy.hold`)
Backend   one engine endpoint                                 (`routing.fleet`)
Pool      backends serving one model revision                 (`routing.fleet`)
Fleet     immutable snapshot of backends and their signals    (`routing.fleet`)
Load      load of a backend: in flight and reported           (`routing.load`)
Route     ordered candidates plus an Explanation              (`routing.schedule`)
Reply     the answer, as bytes through taps                   (`domain.usage`)
Fault     any refusal or failure: kind, source, retry         (`domain.faults`)
Story     the notebook of one request, closed into a Record   (`gateway.story`)

This package imports nothing of ours; everything else may import it.
"""
