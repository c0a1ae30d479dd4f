"""openai-python's Responses: `create`, streams, `parse`, tools in a loop, reasoning, and Responses in the background."""

import json
import os
import time
from typing import Any, Literal

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

client = OpenAI()
MODEL, THINKS = os.environ["CLIENT_MODEL"], os.environ["CLIENT_THINKING_MODEL"]


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(min_length=3)
    unit: Literal["celsius", "fahrenheit"]


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


def plain(prompt: str) -> str:
    return client.responses.create(model=MODEL, input=prompt).output_text


def stream(prompt: str) -> list[str]:
    events = client.responses.create(model=MODEL, input=prompt, stream=True)
    return [event.delta for event in events if event.type == "response.output_text.delta"]


def tool(prompt: str) -> dict[str, Any]:
    conversation: list[Any] = [{"role": "user", "content": prompt}]
    function = pydantic_function_tool(Weather, name="get_weather")["function"]
    tools: list[Any] = [{"type": "function", **function}]
    calls = []
    while True:
        with client.responses.stream(model=MODEL, input=conversation, tools=tools) as events:
            answer = events.get_final_response()
        made = [item for item in answer.output if item.type == "function_call"]
        if not made:
            return {"calls": calls, "answer": answer.output_text}
        conversation += answer.output
        for call in made:
            given = json.loads(call.arguments)
            calls.append({"name": call.name, "arguments": given})
            conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": f"rain in {given['city']}"})


def structured(prompt: str) -> dict[str, Any]:
    parsed = client.responses.parse(model=MODEL, input=prompt, text_format=Harbour).output_parsed
    assert parsed is not None
    return parsed.model_dump()


def reasoning(prompt: str) -> dict[str, Any]:
    answer = client.responses.create(model=THINKS, input=prompt)
    thought = "".join([part.text for item in answer.output if item.type == "reasoning" for part in item.content or []])
    events = client.responses.create(model=THINKS, input=prompt, stream=True)
    streamed = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    return {"thought": thought, "streamed": streamed, "text": answer.output_text}


def background(prompt: str) -> dict[str, Any]:
    made = client.responses.create(model=MODEL, input=prompt, background=True, store=True)
    states = [made.status]
    while made.status in ("queued", "in_progress"):
        time.sleep(0.05)
        made = client.responses.retrieve(made.id)
        states.append(made.status)
    whole = list(client.responses.retrieve(made.id, stream=True))
    half = whole[len(whole) // 2].sequence_number
    rest = list(client.responses.retrieve(made.id, stream=True, starting_after=half))
    endless = {"max_output_tokens": 60_000, "ignore_eos": True}  # not over before it is cancelled; nobody asks the engine for it again
    live = client.responses.create(model=MODEL, input="go on", background=True, store=True, stream=True, extra_body=endless)
    name = next(event.response.id for event in live if event.type == "response.created")
    live.close()
    cancelled = client.responses.cancel(name)
    return {
        "states": states,
        "text": made.output_text,
        "numbers": [event.sequence_number for event in whole],
        "streamed": "".join(event.delta for event in whole if event.type == "response.output_text.delta"),
        "rest": [event.sequence_number for event in rest],
        "cancelled": [cancelled.status, client.responses.retrieve(name).status, client.responses.cancel(name).status],
    }
