"""Requests made from the server's own OpenAPI document, right and wrong ones.

Usage: openapi_examples.py URL [EXAMPLES]

Runs schemathesis, with this file as its hooks, against a server with the demo model and without a
key: no 500, no status or body that is not described, nothing wrong accepted, nothing right refused.
EXAMPLES bounds the requests to each route (default 15); they are the same in every run.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request

ON = ("low", "medium", "high", "xhigh", "max")
OFF = ("none", "minimal")


def is_begun(message):
    """Whether an answer can go on from a message."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    return message["role"] == "assistant" and content.strip() and not message.get("tool_calls")


def rules_hold(body, vocabulary, answers):
    """Whether a body keeps the rules that bind several fields, which the document tells in words."""

    objects = ("stream_options", "chat_template_kwargs", "reasoning")
    options, kwargs, reasoning = (body.get(name) or {} for name in objects)
    efforts = (body.get("reasoning_effort"), reasoning.get("effort"))
    flags = (body.get("enable_thinking"), kwargs.get("enable_thinking"), reasoning.get("enabled"))
    on = True in flags or any(effort in ON for effort in efforts)
    off = False in flags or any(effort in OFF for effort in efforts)
    budgets = ("thinking_budget", "thinking_token_budget")
    budgets = [given[name] for given in (body, kwargs) for name in budgets if given.get(name) is not None]
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name)]
    goes_on = body.get("continue_final_message") is True
    opens = body.get("add_generation_prompt")
    n = body.get("n") or 1
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) else 1
    biases = body.get("logit_bias") or {}
    return not (
        (options.get("include_usage") and body.get("stream") is not True)
        or (body.get("top_logprobs") and not body.get("logprobs"))
        or (len(limits) == 2 and limits[0] != limits[1])
        or (on and off)
        or len(set(budgets)) > 1
        or (off and any(budgets))
        or (goes_on and (opens is True or not is_begun(body["messages"][-1])))
        or (opens is False and not goes_on and answers)
        or ("prompt" in body and body.get("max_tokens") == 0 and body.get("echo") is not True)
        or (body.get("best_of") is not None and body["best_of"] != n)
        or ("prompt" in body and prompts * n > 128)
        or any(int(key) >= vocabulary for key in biases)
    )


def leaves_form_free(body):
    """Whether nothing holds the answer to a form: which can be honoured, the document cannot tell."""
    formats = [body.get("response_format"), (body.get("text") or {}).get("format")]
    formats += [body.get("output_format"), (body.get("output_config") or {}).get("format")]
    names = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
    choice = body.get("tool_choice")
    called = choice.get("type") if isinstance(choice, dict) else choice
    tools = [tool for offered in body.get("tools") or [] for tool in offered.get("tools") or [offered]]
    return not (
        any(form and form.get("type") != "text" for form in formats)
        or body.get("structured_outputs") is not None
        or any(body.get(name) is not None for name in names)
        or called not in (None, "auto", "none")
        or any((tool.get("function") or tool).get("strict") for tool in tools)
    )


def parts(path, body):
    """Speaker, kind and id of each part of a conversation of blocks or of items."""
    if path.startswith("/v1/responses"):
        if isinstance(body["input"], str):
            return
        for item in body["input"]:
            kind = item.get("type") or "message"
            if kind.endswith("_output"):
                yield "user", "result", item["call_id"]
            elif kind.endswith("_call"):
                yield "assistant", "call", item["call_id"]
            elif kind == "message" and item["role"] in ("system", "developer"):
                continue
            elif kind == "message":
                yield item["role"], "text", None
            elif any(item.get(name) for name in ("content", "summary", "encrypted_content")):
                yield "assistant", "text", None
    for message in body["messages"] if path.startswith("/v1/messages") else []:
        blocks = message["content"]
        if message["role"] == "assistant":
            yield "assistant", "text", None
        for block in blocks if isinstance(blocks, list) else [{"type": "text", "text": blocks}]:
            if block["type"] == "tool_use":
                yield "assistant", "call", block["id"]
            elif block["type"] == "tool_result":
                yield "user", "result", block["tool_use_id"]
            elif message["role"] == "user" and block["text"].strip():
                yield "user", "text", None


def calls_have_results(path, body):
    """Whether calls and results of a conversation belong together, and who speaks last may."""
    calls, speaker = {}, None
    for said_by, kind, name in parts(path, body):
        if said_by == "assistant" and speaker != "assistant":
            if not all(calls.values()):
                return False
            calls = {}
        speaker = said_by
        if (kind == "call" and name in calls) or (kind == "result" and calls.get(name) is not False):
            return False
        if kind != "text":
            calls[name] = kind == "result"
    return all(calls.values()) and not (speaker == "assistant" and path.startswith("/v1/messages"))


def main():
    url = sys.argv[1]
    examples = sys.argv[2] if len(sys.argv) > 2 else "15"
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=30) as response:
        document = json.load(response)
    last = document["components"]["schemas"]["TokenId"]["maximum"]
    here = os.path.dirname(os.path.abspath(__file__))
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "openapi_examples",
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
        "LILY_VOCABULARY": str(last + 1),
    }
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", examples]
    command += ["--generation-deterministic"]
    command += ["--suppress-health-check", "all", "--request-timeout", "60"]
    command += ["--exclude-checks", "positive_data_acceptance"]
    command += ["--continue-on-failure", "--no-color"]
    # Schemathesis leaves a folder of its own where it runs.
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(command, env=environment, cwd=folder, check=False, timeout=900)
    sys.exit(ran.returncode)


if __name__ == "__main__":
    main()
else:
    import schemathesis
    from schemathesis import GenerationMode

    @schemathesis.check
    def right_bodies_are_accepted(context, response, case):
        """In place of schemathesis' own check, which knows no rules in words."""
        body, vocabulary = case.body, int(os.environ["LILY_VOCABULARY"])
        right = case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE
        answers = case.path != "/tokenize"
        if (
            right
            and isinstance(body, dict)
            and rules_hold(body, vocabulary, answers)
            and leaves_form_free(body)
            and calls_have_results(case.path, body)
        ):
            # The context of the model is no part of the document.
            long = any(words in response.text for words in ("context_length_exceeded", "too long:"))
            assert response.status_code == 200 or long, f"{response.status_code}: {response.text}"
