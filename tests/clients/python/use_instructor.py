"""instructor: each of its modes that our routes have."""

import os

import anthropic
import instructor
import openai
from instructor import Mode
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
client = instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY))

MODEL = "gpt-oss-20b"
MESSAGES = [{"role": "user", "content": "What is the weather in Zürich?"}]


class Report(BaseModel):
    city: str
    degrees: int


REPORT = {"city": "Zürich", "degrees": 21}


def structured():
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.JSON, Mode.MD_JSON):
        patched = instructor.from_openai(client.client, mode=mode)
        report = patched.create(model=MODEL, messages=MESSAGES, response_model=Report)
        assert report.model_dump() == REPORT, mode


def responses_structured():
    patched = instructor.from_openai(client.client, mode=Mode.RESPONSES_TOOLS)
    report = patched.create(model=MODEL, messages=MESSAGES, response_model=Report)
    assert report.model_dump() == REPORT


def stream():
    parts = list(client.create_partial(model=MODEL, messages=MESSAGES, response_model=Report))
    assert parts[-1].model_dump() == REPORT


def messages_structured():
    for mode in (Mode.ANTHROPIC_TOOLS, Mode.ANTHROPIC_JSON):
        patched = instructor.from_anthropic(
            anthropic.Anthropic(base_url=URL, api_key=KEY), mode=mode
        )
        report = patched.create(
            model=MODEL, max_tokens=500, messages=MESSAGES, response_model=Report
        )
        assert report.model_dump() == REPORT, mode
