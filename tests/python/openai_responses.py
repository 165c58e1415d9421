"""The real OpenAI client's `responses` against a server with the demo model.

Usage: openai_responses.py BASE_URL API_KEY BUSY_URL

At BUSY_URL is a server whose queue is full. Every check prints its name; the
first that fails ends the script.
"""

import json
import sys

import openai

BASE_URL, API_KEY, BUSY_URL = sys.argv[1:4]
MODEL = "demo"
CAPITAL = "What is the capital of Japan?"
ANSWER = "The capital of Japan is Tokyo."
OFF = {"effort": "none"}
WEATHER_RESULT = '{"city": "Lisbon", "temperature": 21, "unit": "celsius", "condition": "sunny"}'
WEATHER = {"role": "user", "content": "What is the weather in Lisbon?"}
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    }
]

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


def create(items, **fields):
    fields = {"temperature": 0, "reasoning": OFF, **fields}
    return client.responses.create(model=MODEL, input=items, **fields)


def stream(items, **fields):
    fields = {"temperature": 0, "reasoning": OFF, **fields}
    return client.responses.stream(model=MODEL, input=items, **fields)


def an_answer_comes_with_its_usage():
    response = create(CAPITAL, metadata={"a": "b"})
    assert response.output_text == ANSWER and response.status == "completed", response
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens, usage
    assert usage.output_tokens > 0 and usage.input_tokens_details.cached_tokens == 0, usage
    assert response.metadata == {"a": "b"}, response


def a_stream_holds_the_same_text():
    with stream(CAPITAL) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response()
    assert text == ANSWER and final.output_text == ANSWER, (text, final)
    events = list(create(CAPITAL, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    assert events[0].type == "response.created", events[0]
    assert events[-1].type == "response.completed", events[-1]
    assert events[-1].response.output_text == ANSWER, events[-1]


def reasoning_is_an_item_and_goes_back():
    on = {"effort": "high", "summary": "auto"}
    include = ["reasoning.encrypted_content"]
    response = create(CAPITAL, reasoning=on, include=include)
    thought, said = response.output
    assert (thought.type, said.type) == ("reasoning", "message"), response
    assert thought.summary[0].text and thought.encrypted_content, thought
    with stream(CAPITAL, reasoning=on) as events:
        kind = "response.reasoning_summary_text.delta"
        streamed = "".join(event.delta for event in events if event.type == kind)
    assert streamed == thought.summary[0].text, streamed
    user = {"role": "user", "content": CAPITAL}
    assert create([user, *response.output, user]).output_text == ANSWER

    thought = create(CAPITAL, reasoning={"effort": "high"}).output[0]
    assert thought.content[0].text == streamed and thought.summary == [], thought


def a_limit_makes_the_response_incomplete():
    response = create(CAPITAL, max_output_tokens=2)
    assert response.status == "incomplete", response
    assert response.incomplete_details.reason == "max_output_tokens", response


def log_probabilities_come_with_the_text():
    include = ["message.output_text.logprobs"]
    response = create(CAPITAL, include=include, top_logprobs=3)
    logprobs = response.output[0].content[0].logprobs
    assert "".join(token.token for token in logprobs) == ANSWER, logprobs
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in logprobs), logprobs


def a_tool_is_called_and_its_result_used():
    response = create([WEATHER], tools=TOOLS)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert call.name == "get_weather", call
    assert json.loads(call.arguments)["city"] == "Lisbon", call

    with stream([WEATHER], tools=TOOLS) as events:
        kind = "response.function_call_arguments.delta"
        deltas = [event.delta for event in events if event.type == kind]
    assert len(deltas) > 1 and "".join(deltas) == call.arguments, deltas

    # The items of the response go back as they came.
    output = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_RESULT}
    response = create([WEATHER, *response.output, output], tools=TOOLS)
    assert "21" in response.output_text, response


def an_answer_keeps_to_its_schema():
    schema = {
        "type": "object",
        "properties": {"capital": {"enum": ["Paris", "Tokyo"]}, "sure": {"type": "boolean"}},
        "required": ["capital", "sure"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "capital", "strict": True, "schema": schema}
    for effort in ["none", "high"]:
        response = create(CAPITAL, text={"format": form}, reasoning={"effort": effort})
        assert set(json.loads(response.output_text)) == {"capital", "sure"}, response
        assert response.text.format.name == "capital", response
    response = create(CAPITAL, text={"format": {"type": "json_object"}}, max_output_tokens=200)
    if response.status == "completed":
        assert isinstance(json.loads(response.output_text), dict), response


def a_call_can_be_demanded():
    named = {"type": "function", "name": "get_weather"}
    some = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for choice in ["required", named, some]:
        response = create(CAPITAL, tools=TOOLS, tool_choice=choice)
        arguments = json.loads(response.output[-1].arguments)
        assert arguments["unit"] in ("celsius", "fahrenheit") and "city" in arguments, response
    tools = [{"type": "custom", "name": "note", "description": "Writes a note."}]
    choice = {"type": "custom", "name": "note"}
    response = create(CAPITAL, tools=tools, tool_choice=choice, max_output_tokens=200)
    assert response.output[-1].type == "custom_tool_call", response


def a_demanded_call_s_result_goes_back():
    for effort in ["none", "high"]:
        fields = {"tools": TOOLS, "reasoning": {"effort": effort}}
        demand = {**fields, "tool_choice": "required"}
        whole = create([WEATHER], **demand)
        with stream([WEATHER], **demand) as events:
            streamed = events.get_final_response()
        assert streamed.output[-1].arguments == whole.output[-1].arguments, (streamed, whole)
        last = list(create([WEATHER], stream=True, **demand))[-1]
        for items in [whole.output, last.response.output]:
            call = items[-1]
            assert call.type == "function_call", items
            assert json.loads(call.arguments)["unit"] in ("celsius", "fahrenheit"), call
            output = {"call_id": call.call_id, "output": WEATHER_RESULT}
            turns = [WEATHER, *items, {"type": "function_call_output", **output}]
            answer = create(turns, **fields)
            assert "21" in answer.output_text, answer
            with stream(turns, **fields) as events:
                assert events.get_final_response().output_text == answer.output_text, answer


def mistakes_raise_the_client_s_own_errors():
    for fields, param in [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
    ]:
        try:
            create(CAPITAL, **fields)
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(f"{fields} was accepted")
    stranger = openai.OpenAI(base_url=BASE_URL, api_key="wrong", max_retries=0)
    busy = openai.OpenAI(base_url=BUSY_URL, api_key="any", max_retries=0)
    stored = create(CAPITAL, store=True)
    for wrong, expected in [
        (lambda: stranger.responses.create(model=MODEL, input="Hi"), openai.AuthenticationError),
        (lambda: client.responses.retrieve(stored.id), openai.NotFoundError),
        (lambda: client.responses.delete(stored.id), openai.NotFoundError),
        (lambda: busy.responses.create(model=MODEL, input="Hi"), openai.RateLimitError),
    ]:
        try:
            wrong()
        except expected:
            continue
        raise AssertionError(f"no {expected.__name__}")


for check in [
    an_answer_comes_with_its_usage,
    a_stream_holds_the_same_text,
    reasoning_is_an_item_and_goes_back,
    a_limit_makes_the_response_incomplete,
    log_probabilities_come_with_the_text,
    a_tool_is_called_and_its_result_used,
    an_answer_keeps_to_its_schema,
    a_call_can_be_demanded,
    a_demanded_call_s_result_goes_back,
    mistakes_raise_the_client_s_own_errors,
]:
    check()
    print(check.__name__)
