"""What a person does on the page: ask, read, stop, try tools and schemas, come back."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Server
from tests.parts.pages.browser.conftest import AXE

pytestmark = pytest.mark.browser


def ask(page: Page, text: str) -> None:
    field = page.get_by_label("Message", exact=True)
    field.fill(text)
    field.press("Enter")
    expect(field).to_have_value("")  # sent: a page that is not ready yet keeps it until it is


def wait_for_answer(page: Page) -> None:
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_a_first_visit_leads_to_a_streamed_answer(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text("nano")
    page.get_by_role("button", name="What is nano?").click()
    answer = page.get_by_role("article", name="Assistant")
    expect(answer).to_contain_text("small demonstration model")
    expect(answer.locator("summary")).to_have_text(re.compile(r"Thought for [\d.]+ s, \d+ tokens"))
    expect(answer.locator(".figures")).to_have_text(
        re.compile(r"([\d.]+ tokens/s · )?first token [\d.]+ m?s · \d+ in.*, \d+ out")
    )
    thoughts = answer.locator(".reasoning p")
    expect(thoughts).to_be_hidden()
    answer.locator("summary").click()
    expect(thoughts).to_be_visible()


def test_the_tool_loop_runs_in_the_page(page: Page) -> None:
    page.get_by_label("Calculator").check()
    page.get_by_label("Temperature").fill("0")
    ask(page, "Please calculate 17 * 23")
    wait_for_answer(page)
    expect(page.get_by_role("group", name="Calls calculator")).to_be_visible()
    expect(page.get_by_label("Result")).to_have_value('{"result":391}')
    expect(page.get_by_role("article", name="Assistant").last).to_contain_text("391")


def test_a_call_can_be_changed_and_answered_by_hand(page: Page) -> None:
    page.get_by_label("Calculator").check()
    page.get_by_label("Run these automatically").uncheck()
    page.get_by_label("Temperature").fill("0")
    ask(page, "Please calculate 17 * 23")
    wait_for_answer(page)
    page.get_by_label("Arguments").fill('{"expression": "40 + 2"}')
    page.get_by_role("button", name="Run in the page").click()
    expect(page.get_by_label("Result")).to_have_value('{"result":42}')
    page.get_by_role("button", name="Send results").click()
    expect(page.get_by_role("article", name="Assistant").last).to_contain_text("42")


def test_an_answer_follows_a_schema(page: Page) -> None:
    page.get_by_label("Make the answer follow this JSON schema").check()
    page.get_by_role("button", name="JSON", exact=True).click()
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    page.get_by_label("Schema", exact=True).fill(json.dumps(schema))
    ask(page, "Are you well?")
    wait_for_answer(page)
    text = page.locator(".structured code").inner_text()
    assert isinstance(json.loads(text)["ok"], bool)


def test_a_schema_that_is_no_json_is_said_before_anything_is_sent(page: Page) -> None:
    page.get_by_label("Make the answer follow this JSON schema").check()
    page.get_by_role("button", name="JSON", exact=True).click()
    page.get_by_label("Schema", exact=True).fill("{")
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("The schema is not valid JSON")


@pytest.mark.console("400 (Bad Request)")
def test_what_the_server_refuses_is_shown_in_its_words(page: Page) -> None:
    page.get_by_text("More tools").click()
    page.get_by_label("As JSON for the API").fill('[{"type": "function"}]')
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("tools[0]")


def test_a_number_out_of_range_is_said_where_it_is_typed_and_not_sent(page: Page) -> None:
    expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0")  # nano's
    page.get_by_label("Temperature").fill("9")
    expect(page.get_by_text("Takes 0 to 2.")).to_be_visible()
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text('temperature is "9"; it takes 0 to 2.')


def test_the_first_screen_says_what_runs_and_what_nano_is(page: Page) -> None:
    welcome = page.locator(".welcome")
    expect(welcome.locator(".facts")).to_contain_text("native engine · CPU · 4,096 tokens of")
    expect(welcome).to_contain_text("it shows the API, not intelligence")
    expect(welcome).to_contain_text("gpt-oss-20b")  # how to get it, or what it takes
    expect(welcome.get_by_role("button", name="Kill the engine")).to_be_enabled()  # a local server


def test_the_demonstrations_set_all_that_they_need(page: Page) -> None:
    page.get_by_role("button", name="Watch a tool call").click()
    expect(page.get_by_role("article", name="Assistant").last).to_contain_text("391")
    wait_for_answer(page)
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Fill a form from text").click()
    wait_for_answer(page)
    form = json.loads(page.locator(".structured code").inner_text())
    assert form["participants"] == ["Alice", "Bob"]
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="See the tokens").click()
    wait_for_answer(page)
    tokens = page.get_by_role("region", name="Tokens")
    expect(tokens.get_by_role("button", name="<|channel|>").first).to_be_visible()
    tokens.get_by_role("button", name="analysis").click()
    expect(tokens.locator(".rivals li")).to_have_count(5)


def test_an_answer_can_be_stopped_and_tried_again(page: Page) -> None:
    ask(page, "What can you do?")
    # While it moves, too: nano's answer may end before two frames have it in one place.
    page.get_by_role("button", name="Stop").click(force=True)
    expect(page.get_by_text("Stopped.")).to_be_visible()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("this service")


def test_a_question_can_be_put_differently(page: Page) -> None:
    ask(page, "What is nano?")
    wait_for_answer(page)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Your message").fill("How do I list the models?")
    page.get_by_role("article", name="You").get_by_role("button", name="Send").click()
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("/v1/models")
    assert page.get_by_role("article").count() == 2


def test_conversations_outlive_a_reload_and_can_be_deleted(page: Page) -> None:
    ask(page, "What is nano?")
    wait_for_answer(page)
    page.get_by_role("button", name="New chat").click()
    ask(page, "What can you do?")
    wait_for_answer(page)
    page.reload()
    chats = page.get_by_role("navigation", name="Conversations")
    expect(chats.get_by_role("listitem")).to_have_count(2)
    chats.get_by_role("button", name="What is nano?", exact=True).click()
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("demonstration model")
    chats.get_by_role("button", name="Delete What is nano?").click()
    expect(chats.get_by_role("listitem")).to_have_count(1)


def test_the_request_is_there_as_code_and_the_prompt_in_harmony(page: Page, server: Server) -> None:
    page.get_by_label("Seed").fill("7")
    ask(page, "What is nano?")
    wait_for_answer(page)
    page.get_by_role("button", name="Request & raw").click()
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text(f"curl -N {server.url}/v1/chat/completions")
    page.get_by_role("tab", name="Python").click()
    expect(panel).to_contain_text(f'OpenAI(base_url="{server.url}/v1", api_key="none")')
    expect(panel).to_contain_text("seed=7,")
    page.get_by_role("tab", name="Node").click()
    expect(panel).to_contain_text('import OpenAI from "openai"')
    page.get_by_role("tab", name="Raw").click()
    prompt, answer = panel.locator("section").all()
    expect(prompt).to_contain_text("<|start|>user<|message|>What is nano?<|end|>")
    expect(answer).to_contain_text(re.compile(r"Answer in Harmony, \d+ tokens"))
    expect(answer).to_contain_text("<|channel|>analysis<|message|>")
    expect(answer).to_contain_text("<|start|>assistant<|channel|>final<|message|>")
    expect(answer).to_contain_text("<|return|>")
    panel.get_by_text("Raw stream").click()
    expect(panel).to_contain_text("data: [DONE]")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 360])
def test_nobody_is_shut_out(page: Page, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    ask(page, "What is nano?")
    wait_for_answer(page)
    page.get_by_label("Make the answer follow this JSON schema").check()
    expect(page.get_by_role("button", name="Add a field")).to_be_visible()
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run()")
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found["violations"]] == []


def test_a_phone_has_room_for_everything(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 780})
    ask(page, "What is nano?")
    wait_for_answer(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.get_by_label("Instructions")).to_be_visible()
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Chats").click()
    expect(page.get_by_role("button", name="New chat")).to_be_visible()


@pytest.mark.console("ERR_FAILED")
def test_a_server_that_is_not_there_yet_is_found_when_it_comes(page: Page) -> None:
    page.route("**/v1/models", lambda route: route.abort())
    page.reload()
    expect(page.get_by_role("status")).to_have_text(re.compile("cannot be reached"))
    page.unroute("**/v1/models")
    expect(page.get_by_role("status")).to_have_text("nano")


def test_the_theme_that_was_chosen_stays(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    theme = page.get_by_role("combobox", name="Theme")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(paper)
    theme.select_option("Dark")
    page.reload()
    expect(theme).to_have_value("dark")
    assert page.evaluate(paper) != light
    theme.select_option("System")
    assert page.evaluate(paper) == light


@pytest.mark.console("Content Security Policy")  # says that it would have blocked it, too
def test_markup_in_an_answer_cannot_act(page: Page) -> None:
    """What a model writes is shown, not run; and no picture of another host is asked for."""
    text = (
        "<img src=https://example.com/x.png onerror=alert(1)><script>alert(2)</script>**bold** "
        "<svg><image href=https://example.com/a.png /></svg><video poster=https://example.com/b>"
        "</video><table background=https://example.com/c><tr><td>cell</td></tr></table>"
        "<select><option>one</option></select><textarea>typed</textarea> "
        "[link](javascript:alert(3))\n```python\nprint(1)\n```"
    )
    turns = [{"role": "user", "text": "?"}, {"role": "assistant", "text": text, "calls": []}]
    kept = [{"id": "1", "title": "t", "turns": turns, "settings": {}}]
    page.evaluate(
        "kept => localStorage.setItem('harmonium.conversations', JSON.stringify(kept))", kept
    )
    page.reload()
    answer = page.locator(".markdown")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.get_by_role("button", name="Copy")).to_be_visible()
    assert answer.locator("img, script, [href^=javascript]").count() == 0
    assert answer.locator("svg, image, video, select, textarea, [background]").count() == 0
