"""The prompt registry: versioned templates with typed variables, one file per version, that requests refer to by id.

`folder.PromptFolder` reads them, `allowed` says which a tenant has and deals its requests out to versions, `template` renders. Pure but
for the folder; knows no HTTP.
"""
