"""The console: pages in the browser over the admin API, served by the admin port under `/console/`.

`files` has the pages, which are static; `session` lets a browser call the admin API after a person has signed in. The pages show and change
nothing that a program could not with the same key: every value on them comes from a route of the admin API.
"""
