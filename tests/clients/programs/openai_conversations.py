"""openai-python's conversations: Responses in one, plain and streamed, its items, and everything that is done with it."""

import os
from typing import Any

from openai import NotFoundError, OpenAI

client = OpenAI()
MODEL = os.environ["CLIENT_MODEL"]


def plain(prompt: str) -> dict[str, Any]:
    conversation = client.conversations.create()
    texts = []
    for number in range(3):
        answer = client.responses.create(model=MODEL, input=f"{prompt} {number}", conversation=conversation.id)
        assert answer.conversation is not None
        assert answer.conversation.id == conversation.id
        texts += [f"{prompt} {number}", answer.output_text]
    items = client.conversations.items.list(conversation.id, order="asc", limit=2)
    return {"texts": texts, "items": [part.text for item in items for part in item.content]}


def stream(prompt: str) -> dict[str, Any]:
    conversation = client.conversations.create(items=[{"role": "user", "content": "first"}])
    with client.responses.stream(model=MODEL, input=prompt, conversation=conversation.id) as events:
        text = events.get_final_response().output_text
    newest = client.conversations.items.list(conversation.id, limit=1).data[0]
    return {"text": text, "newest": newest.content[0].text}


def extras(prompt: str) -> dict[str, Any]:
    made = client.conversations.create(metadata={"topic": "tides"}, items=[{"role": "user", "content": prompt}])
    changed = client.conversations.update(made.id, metadata={"topic": "ebb"})
    again = client.conversations.retrieve(made.id)
    added = client.conversations.items.create(
        made.id,
        items=[
            {"type": "function_call", "call_id": "c1", "name": "tide", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "2 m"},
        ],
    )
    one = client.conversations.items.retrieve(added.last_id, conversation_id=made.id, include=["reasoning.encrypted_content"])
    without = client.conversations.items.delete(added.last_id, conversation_id=made.id)
    left = [item.type for item in client.conversations.items.list(made.id, order="asc")]
    deleted = client.conversations.delete(made.id)
    try:
        client.conversations.retrieve(made.id)
        gone = False
    except NotFoundError:
        gone = True
    return {
        "metadata": [made.metadata, changed.metadata, again.metadata],
        "one": one.type,
        "same": without.id == made.id,
        "left": left,
        "deleted": deleted.deleted and gone,
    }
