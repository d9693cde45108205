"""What a guided action sets ends with the action: no later chat asks with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.parts.pages.browser.standin import StandIn, running
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import context, opened, page

__all__ = ["context", "page"]  # fixtures
pytestmark = pytest.mark.browser

DEMOS = ("Watch a tool call", "Fill a form from text", "See the tokens", "Kill the engine")


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with running(StandIn(may_kill_engine=True)) as standin:
        yield standin


def sent(standin: StandIn) -> dict[str, Any]:
    """The settings of the last request, with what a person said aside."""
    body = dict(standin.asked[-1])
    body["messages"] = [each for each in body["messages"] if each["role"] == "system"]
    return body


def new_chat(page: Page) -> None:
    page.get_by_role("button", name="New chat", exact=True).first.click()


def demo(name: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("button", name=name).click()
        wait_for_answer(page)

    return act


def preset(page: Page) -> None:
    page.get_by_role("combobox", name="Preset").select_option("Extract")
    ask(page, "Extract this")
    wait_for_answer(page)


def retry_with(page: Page) -> None:
    ask(page, "Once")
    wait_for_answer(page)
    page.get_by_label("Retry with").select_option("high effort")
    expect(page.locator(".paths")).to_contain_text("2/2")
    wait_for_answer(page)


def ask_for_tokens(page: Page) -> None:
    ask(page, "Count")
    wait_for_answer(page)
    page.get_by_role("button", name="Tokens").click()
    page.get_by_role("button", name="Run it again with them").click()
    expect(page.get_by_role("region", name="Tokens").locator(".tile").first).to_be_visible()
    wait_for_answer(page)


def keep_compared(page: Page) -> None:
    page.get_by_role("button", name="Compare").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Right").get_by_label("Temperature").fill("0.5")
    dialog.get_by_label("Question").fill("Which?")
    dialog.get_by_role("button", name="Ask both").click()
    dialog.get_by_label("Right").get_by_role("button", name="Keep this answer").click()


ACTIONS = {name: demo(name) for name in DEMOS} | {
    each.__name__: each for each in (preset, retry_with, ask_for_tokens, keep_compared)
}


@pytest.mark.parametrize("name", ACTIONS)
def test_a_new_chat_asks_as_if_the_action_had_not_been(
    page: Page,
    standin: StandIn,
    name: str,
) -> None:
    ask(page, "Hello")
    wait_for_answer(page)
    first = sent(standin)
    new_chat(page)
    page.get_by_label("Temperature").fill("0.7")  # what a person chose stays
    ACTIONS[name](page)
    new_chat(page)
    ask(page, "Hello")
    wait_for_answer(page)
    assert sent(standin) == first | {"temperature": 0.7}


def test_what_a_person_chose_outlives_a_reload(page: Page, standin: StandIn) -> None:
    page.get_by_label("Seed").fill("7")
    demo("See the tokens")(page)
    page.reload()
    new_chat(page)
    ask(page, "Hello")
    wait_for_answer(page)
    assert sent(standin)["seed"] == 7
    assert "logprobs" not in sent(standin)


@pytest.mark.parametrize("name", ["retry_with", "ask_for_tokens", "keep_compared"])
def test_the_next_question_has_the_chats_own_settings(
    page: Page,
    standin: StandIn,
    name: str,
) -> None:
    ACTIONS[name](page)
    ask(page, "And then?")
    wait_for_answer(page)
    assert sent(standin)["reasoning_effort"] == "medium"
    assert not {"temperature", "logprobs", "response_format"} & set(sent(standin))


@pytest.mark.parametrize("name", DEMOS)
def test_a_demonstration_sends_the_same_whatever_came_before(
    browser: Browser,
    standin: StandIn,
    name: str,
) -> None:
    bodies = []
    for has_other in (False, True):
        context = browser.new_context()
        page = opened(context, standin)
        if has_other:
            page.get_by_label("Instructions").fill("Answer in rhymes.")
            page.get_by_label("Top p").fill("0.5")
            page.get_by_label("Seed").fill("7")
            page.get_by_label("Reasoning effort").select_option("high")
            page.get_by_label("Calculator").check()
        demo(name)(page)
        bodies.append(standin.asked[-1])
        context.close()
    assert bodies[0] == bodies[1]


def test_an_answer_that_goes_on_keeps_the_settings_it_began_with(
    page: Page,
    standin: StandIn,
) -> None:
    ask(page, "Long")
    wait_for_answer(page)
    standin.answer, standin.cut_after, standin.until = "one two three four", 2, 2
    page.get_by_label("Retry with").select_option("high effort")
    expect(page.locator(".markdown")).to_have_text("one two")
    standin.until = None
    page.get_by_role("button", name="Continue").click()
    wait_for_answer(page)
    assert standin.asked[-1]["continue_token_ids"]
    assert standin.asked[-1]["reasoning_effort"] == "high"


def test_a_function_is_made_in_a_form_from_an_example(page: Page, standin: StandIn) -> None:
    page.get_by_text("More tools").click()
    page.get_by_role("button", name="Add a function").click()
    page.get_by_label("Function's name").fill("find_city")
    page.get_by_label("What it does").fill("Finds a city.")
    page.get_by_text("Arguments from an example").click()
    page.get_by_label("The arguments of one call").fill('{"city": "Paris", "limit": 3}')
    expect(page.get_by_role("group", name="Field city")).to_be_visible()
    ask(page, "Where?")
    wait_for_answer(page)
    properties = {"city": {"type": "string"}, "limit": {"type": "integer"}}
    assert standin.asked[-1]["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "find_city",
                "description": "Finds a city.",
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": ["city", "limit"],
                    "additionalProperties": False,
                },
            },
        }
    ]
    page.get_by_role("button", name="Remove find_city").click()
    expect(page.get_by_label("As JSON for the API")).to_have_value("")
