"""The prompt registry: versioned templates with typed variables, one file per version, that requests refer to by id.

`folder.PromptFolder` reads the files, `allowed` selects a tenant's prompts and assigns its requests to versions, `template` renders. Pure
except for `folder`; knows no HTTP.
"""
