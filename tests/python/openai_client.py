"""The real OpenAI client against a server with the demo model.

Usage: openai_client.py BASE_URL API_KEY

Every check prints its name; the first that fails ends the script.
"""

import json
import sys

import openai

BASE_URL, API_KEY = sys.argv[1:3]
MODEL = "demo"
CAPITAL = [{"role": "user", "content": "What is the capital of Japan?"}]
ANSWER = "The capital of Japan is Tokyo."
WEATHER = [{"role": "user", "content": "What is the weather in Lisbon?"}]
WEATHER_RESULT = '{"city": "Lisbon", "temperature": 21, "unit": "celsius", "condition": "sunny"}'
OFF = {"enable_thinking": False}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather for a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
            },
        },
    }
]

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


def create(messages, **fields):
    fields.setdefault("extra_body", OFF)
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **fields)


def models_are_listed():
    served = client.models.list().data
    assert [model.id for model in served] == [MODEL], served
    assert client.models.retrieve(MODEL).id == MODEL


def an_answer_comes_with_its_usage():
    completion = create(CAPITAL)
    choice, usage = completion.choices[0], completion.usage
    assert choice.message.content == ANSWER, choice
    assert choice.finish_reason == "stop", choice
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert usage.completion_tokens > 0 and usage.prompt_tokens_details.cached_tokens == 0, usage


def a_stream_holds_the_same_text():
    chunks = list(create(CAPITAL, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER, text
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert chunks[-2].choices[0].finish_reason == "stop", chunks[-2]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0, chunks[-1]


def thinking_is_kept_apart():
    message = create(CAPITAL, extra_body={"enable_thinking": True}).choices[0].message
    assert message.reasoning_content, message
    assert message.content and "think>" not in message.content, message
    kwargs = {"chat_template_kwargs": OFF}
    message = create(CAPITAL, extra_body=kwargs).choices[0].message
    assert message.content == ANSWER, message
    assert not getattr(message, "reasoning_content", None), message


def a_limit_inside_thinking_is_length():
    choice = create(CAPITAL, max_tokens=2, extra_body={"enable_thinking": True}).choices[0]
    assert choice.finish_reason == "length", choice
    assert choice.message.content == "" and choice.message.reasoning_content, choice


def log_probabilities_come_with_the_content():
    logprobs = create(CAPITAL, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert "".join(token.token for token in logprobs) == ANSWER, logprobs
    for token in logprobs:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3, token
        assert token.top_logprobs[0].token == token.token, token


def a_tool_is_called_and_its_result_used():
    messages = list(WEATHER)
    choice = create(messages, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather", call
    assert json.loads(call.function.arguments)["city"] == "Lisbon", call

    stream = create(messages, tools=TOOLS, stream=True)
    deltas = [d for chunk in stream for d in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].id and deltas[0].function.name == "get_weather", deltas
    streamed = "".join(delta.function.arguments or "" for delta in deltas)
    assert streamed == call.function.arguments, streamed

    # The assistant's message goes back as the client dumps it.
    messages.append(choice.message.model_dump())
    messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT})
    choice = create(messages, tools=TOOLS).choices[0]
    assert choice.finish_reason == "stop" and "21" in choice.message.content, choice


def a_demanded_call_s_result_goes_back():
    for effort in ["none", "high"]:
        fields = {"tools": TOOLS, "reasoning_effort": effort, "extra_body": {}}
        demand = {**fields, "tool_choice": "required"}
        whole = create(WEATHER, **demand).choices[0]
        chat = {"model": MODEL, "messages": WEATHER, "temperature": 0, **demand}
        with client.chat.completions.stream(**chat) as events:
            streamed = events.until_done().get_final_completion().choices[0]
        for choice in [whole, streamed]:
            assert choice.finish_reason == "tool_calls", choice
            (call,) = choice.message.tool_calls
            assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit"), call
            turn = choice.message.model_dump(exclude_none=True, exclude={"parsed"})
            result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT}
            turns = [*WEATHER, turn, result]
            content = create(turns, **fields).choices[0].message.content
            assert "21" in content, content
            deltas = [chunk.choices[0].delta for chunk in create(turns, stream=True, **fields)]
            assert "".join(delta.content or "" for delta in deltas) == content, deltas


def several_answers_have_their_indices():
    fields = {"n": 3, "temperature": 2, "seed": 7, "max_tokens": 16}
    whole = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, extra_body=OFF, **fields
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2], whole
    chunks = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, extra_body=OFF, stream=True, **fields
    )
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices], texts


def text_is_completed():
    prompt = (
        f"<|im_start|>user\n{CAPITAL[0]['content']}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    fields = {"model": MODEL, "prompt": [prompt, prompt], "temperature": 0, "max_tokens": 32}
    completion = client.completions.create(**fields, logprobs=2)
    assert [choice.text for choice in completion.choices] == [ANSWER, ANSWER], completion
    logprobs = completion.choices[0].logprobs
    assert "".join(logprobs.tokens) == ANSWER, logprobs
    assert logprobs.text_offset[0] == 0 and len(logprobs.top_logprobs[0]) >= 2, logprobs
    chunks = client.completions.create(**fields, echo=True, stream=True)
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [prompt + ANSWER] * 2, texts


def mistakes_raise_the_client_s_own_errors():
    for fields, param in [
        ({"n": 17}, "n"),
        ({"stop": [""]}, "stop"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
    ]:
        try:
            create(CAPITAL, **fields)
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(f"{fields} was accepted")
    for wrong in [
        lambda: openai.OpenAI(base_url=BASE_URL, api_key="wrong").models.list(),
        lambda: client.models.retrieve("other"),
    ]:
        try:
            wrong()
        except (openai.AuthenticationError, openai.NotFoundError):
            continue
        raise AssertionError("a wrong request was accepted")


for check in [
    models_are_listed,
    an_answer_comes_with_its_usage,
    a_stream_holds_the_same_text,
    thinking_is_kept_apart,
    a_limit_inside_thinking_is_length,
    log_probabilities_come_with_the_content,
    a_tool_is_called_and_its_result_used,
    a_demanded_call_s_result_goes_back,
    several_answers_have_their_indices,
    text_is_completed,
    mistakes_raise_the_client_s_own_errors,
]:
    check()
    print(check.__name__)
