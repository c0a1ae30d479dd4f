"""How many tokens a prompt has: with the served model's own tokenizer, or bounded by a general one."""
