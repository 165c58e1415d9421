"""The real Anthropic client against a server with the demo model.

Usage: anthropic_client.py BASE_URL API_KEY BUSY_URL

At BUSY_URL is a server whose queue is full. Every check prints its name; the
first that fails ends the script.
"""

import json
import sys

import anthropic

BASE_URL, API_KEY, BUSY_URL = sys.argv[1:4]
MODEL = "demo"
CAPITAL = [{"role": "user", "content": "What is the capital of Japan?"}]
ANSWER = "The capital of Japan is Tokyo."
GREEDY = {"temperature": 0}
WEATHER_RESULT = '{"city": "Lisbon", "temperature": 21, "unit": "celsius", "condition": "sunny"}'
WEATHER = [{"role": "user", "content": "What is the weather in Lisbon?"}]
TOOLS = [
    {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "input_schema": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    }
]

client = anthropic.Anthropic(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


def create(messages, **fields):
    fields = {"max_tokens": 200, "extra_body": GREEDY, **fields}
    return client.messages.create(model=MODEL, messages=messages, **fields)


def stream(messages, **fields):
    fields = {"max_tokens": 200, "extra_body": GREEDY, **fields}
    return client.messages.stream(model=MODEL, messages=messages, **fields)


def an_answer_comes_with_its_usage():
    message = create(CAPITAL)
    assert [block.type for block in message.content] == ["text"], message
    assert message.content[0].text == ANSWER, message
    assert message.stop_reason == "end_turn" and message.stop_sequence is None, message
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0, message
    assert message.usage.cache_read_input_tokens == 0, message
    assert message._request_id.startswith("req_"), message._request_id


def a_stream_holds_the_same_text():
    with stream(CAPITAL) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == ANSWER and final.content[0].text == ANSWER, (text, final)
    assert final.stop_reason == "end_turn", final
    assert final.usage == create(CAPITAL).usage, final


def thinking_is_a_block_and_goes_back():
    thinking = {"type": "adaptive"}
    message = create(CAPITAL, thinking=thinking)
    assert [block.type for block in message.content] == ["thinking", "text"], message
    assert message.content[0].thinking and message.content[0].signature, message
    assert "think>" not in message.content[1].text, message
    with stream(CAPITAL, thinking=thinking) as events:
        thought, said = events.get_final_message().content
    assert thought == message.content[0] and said.text == message.content[1].text, thought
    again = CAPITAL + [{"role": "assistant", "content": message.content}] + CAPITAL
    assert create(again).stop_reason == "end_turn"


def a_stop_sequence_is_named():
    message = create(CAPITAL, stop_sequences=["nowhere", " is"])
    assert message.content[0].text == "The capital of Japan", message
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == " is", message


def a_key_may_come_as_a_bearer_token():
    bearer = anthropic.Anthropic(base_url=BASE_URL, auth_token=API_KEY, max_retries=0)
    assert bearer.messages.create(model=MODEL, messages=CAPITAL, max_tokens=1).content


def a_limit_is_max_tokens():
    message = create(CAPITAL, max_tokens=2)
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 2, message


def a_tool_is_called_and_its_result_used():
    message = create(WEATHER, tools=TOOLS)
    assert message.stop_reason == "tool_use", message
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "get_weather" and call.input["city"] == "Lisbon", call

    with stream(WEATHER, tools=TOOLS) as events:
        pieces = [event.partial_json for event in events if event.type == "input_json"]
        (streamed,) = [b for b in events.get_final_message().content if b.type == "tool_use"]
    assert len(pieces) > 1 and streamed.input == call.input, (pieces, streamed)

    # The assistant's blocks go back as they came.
    turns = WEATHER + [
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": WEATHER_RESULT}],
        },
    ]
    message = create(turns, tools=TOOLS)
    assert message.stop_reason == "end_turn" and "21" in message.content[0].text, message


def an_answer_keeps_to_its_schema():
    schema = {
        "type": "object",
        "properties": {"capital": {"enum": ["Paris", "Tokyo"]}, "sure": {"type": "boolean"}},
        "required": ["capital", "sure"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    for thinking in [{"type": "disabled"}, {"type": "adaptive"}]:
        message = create(CAPITAL, output_config=config, thinking=thinking)
        answer = json.loads(message.content[-1].text)
        assert set(answer) == {"capital", "sure"}, message
        assert len(message.content) == 1 + (thinking["type"] == "adaptive"), message


def a_call_can_be_demanded():
    for choice in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
        message = create(CAPITAL, tools=TOOLS, tool_choice=choice, max_tokens=400)
        assert message.stop_reason == "tool_use", message
        call = message.content[-1]
        assert call.input["unit"] in ("celsius", "fahrenheit") and "city" in call.input, call


def a_demanded_call_s_result_goes_back():
    for thinking in [{"type": "disabled"}, {"type": "adaptive"}]:
        fields = {"tools": TOOLS, "thinking": thinking, "max_tokens": 400}
        demand = {**fields, "tool_choice": {"type": "any"}}
        whole = create(WEATHER, **demand)
        with stream(WEATHER, **demand) as events:
            streamed = events.get_final_message()
        assert streamed.content[-1].input == whole.content[-1].input, (streamed, whole)
        for message in [whole, streamed]:
            assert message.stop_reason == "tool_use", message
            call = message.content[-1]
            assert call.input["unit"] in ("celsius", "fahrenheit"), call
            result = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER_RESULT}
            turns = WEATHER + [
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": [result]},
            ]
            answer = create(turns, **fields)
            assert answer.stop_reason == "end_turn" and "21" in answer.content[-1].text, answer
            with stream(turns, **fields) as events:
                text = "".join(events.text_stream)
            assert text == answer.content[-1].text, (text, answer)


def models_are_listed():
    page = client.models.list()
    assert [model.id for model in page] == [MODEL] and page.last_id == MODEL, page
    model = client.models.retrieve(MODEL)
    assert model == page.data[0] and model.type == "model", model
    assert model.display_name == MODEL and model.created_at.year == 1970, model


def thinking_ends_with_its_budget():
    free = create(CAPITAL, thinking={"type": "adaptive"}).content[0].thinking
    message = create(CAPITAL, thinking={"type": "enabled", "budget_tokens": 3})
    thought, said = message.content
    assert len(thought.thinking) < len(free) and said.text, message


def tokens_are_counted_before_they_are_spent():
    counted = client.messages.count_tokens(
        model=MODEL, messages=WEATHER, tools=TOOLS, system="Be brief."
    )
    message = create(WEATHER, tools=TOOLS, system="Be brief.")
    assert counted.input_tokens == message.usage.input_tokens, (counted, message)


def mistakes_raise_the_client_s_own_errors():
    for fields, name in [
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
    ]:
        try:
            create(CAPITAL, **fields)
        except anthropic.BadRequestError as error:
            assert error.body["error"]["type"] == "invalid_request_error", error.body
            assert name in error.body["error"]["message"], error.body
            assert error.body["request_id"] == error.request_id, error.body
        else:
            raise AssertionError(f"{fields} was accepted")
    stranger = anthropic.Anthropic(base_url=BASE_URL, api_key="wrong", max_retries=0)
    busy = anthropic.Anthropic(base_url=BUSY_URL, auth_token="any", max_retries=0)
    ask = {"model": MODEL, "messages": CAPITAL, "max_tokens": 10}
    for wrong, expected, kind in [
        (
            lambda: stranger.messages.create(**ask),
            anthropic.AuthenticationError,
            "authentication_error",
        ),
        (
            lambda: client.messages.batches.retrieve("batch_1"),
            anthropic.NotFoundError,
            "not_found_error",
        ),
        (lambda: busy.messages.create(**ask), anthropic.RateLimitError, "rate_limit_error"),
    ]:
        try:
            wrong()
        except expected as error:
            assert error.body["error"]["type"] == kind, error.body
        else:
            raise AssertionError(f"no {expected.__name__}")


for check in [
    an_answer_comes_with_its_usage,
    a_stream_holds_the_same_text,
    thinking_is_a_block_and_goes_back,
    a_stop_sequence_is_named,
    a_key_may_come_as_a_bearer_token,
    a_limit_is_max_tokens,
    a_tool_is_called_and_its_result_used,
    an_answer_keeps_to_its_schema,
    a_call_can_be_demanded,
    a_demanded_call_s_result_goes_back,
    models_are_listed,
    thinking_ends_with_its_budget,
    tokens_are_counted_before_they_are_spent,
    mistakes_raise_the_client_s_own_errors,
]:
    check()
    print(check.__name__)
