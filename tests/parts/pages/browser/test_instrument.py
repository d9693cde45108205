"""What only this page shows: tokens and rivals, a comparison, answers that outlive faults."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.conftest import Server, servers
from tests.parts.pages.browser.conftest import AXE, shoot
from tests.parts.pages.browser.standin import StandIn, running
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import (
    context,
    opened,
    page,
    standin,
    wait_until_kept,
)
from tools.benchmarks.pages import CONDITIONS, limited

__all__ = ["context", "page", "standin"]  # fixtures
pytestmark = pytest.mark.browser

WORDS = "one two three four five six seven eight"


# Faults.


def test_a_cut_stream_says_so_and_continues_where_it_was(page: Page, standin: StandIn) -> None:
    standin.answer, standin.cut_after, standin.until = WORDS, 4, 4
    ask(page, "Break")
    expect(page.locator(".markdown")).to_have_text("one two three four")
    standin.until = None
    expect(page.get_by_role("alert")).to_have_text("The connection was lost after 4 tokens.")
    standin.cut_after = None
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".markdown")).to_have_text(WORDS)
    assert standin.asked[-1]["continue_token_ids"] == [0, 1, 2, 3]
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".paths")).to_have_count(0)  # the same answer, no other course


def test_an_answer_that_a_reload_cut_off_continues(page: Page, standin: StandIn) -> None:
    standin.answer, standin.tokens_per_s = WORDS * 20, 20
    ask(page, "Tell me")
    expect(page.locator(".markdown")).to_contain_text("three four")
    wait_until_kept(page, "two three")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("The connection was lost after")
    standin.tokens_per_s = 10_000
    page.get_by_role("button", name="Continue").click()
    wait_for_answer(page)
    expect(page.locator(".markdown")).to_have_text(WORDS * 20)


def test_a_restart_of_the_engine_is_told_and_marked(page: Page, standin: StandIn) -> None:
    standin.answer, standin.until = WORDS, 4
    ask(page, "Die")
    expect(page.locator(".markdown")).to_have_text("one two three four")
    standin.is_restarting, standin.until = True, None
    told = page.get_by_text("The engine is restarting. The answer continues when it is back.")
    expect(told).to_be_visible()
    standin.is_restarting = False
    wait_for_answer(page)
    expect(told).to_have_count(0)
    expect(page.locator(".markdown")).to_have_text(WORDS)
    mark = page.locator(".survived")
    expect(mark).to_contain_text(
        re.compile(r"Engine restarted after 4 tokens\. The answer continued \d+\.\d s later")
    )
    wait_until_kept(page, "restarts")
    page.reload()
    expect(mark).to_be_visible()


def test_a_queue_is_told(page: Page, standin: StandIn) -> None:
    standin.until, standin.waiting = 0, 17
    ask(page, "Hello")
    expect(page.get_by_text("In the queue: 8 requests run, 17 wait.")).to_be_visible()
    standin.until = None
    wait_for_answer(page)


@pytest.fixture(scope="module")
def killable(nano_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose operator lets the engine be killed."""
    command = [str(Path(sys.executable).parent / "harmonium"), "serve"]
    with servers(nano_cache, tmp_path_factory) as start:
        yield start([*("env", "NIM_ALLOW_ENGINE_KILL=1"), *command])


def test_the_engine_is_killed_and_the_answer_continues(
    context: BrowserContext, killable: Server
) -> None:
    page = context.new_page()
    page.goto(killable.url)
    page.get_by_role("button", name="Kill the engine").click()
    expect(page.locator(".survived")).to_contain_text("Engine restarted after")
    wait_for_answer(page)
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("this service")
    expect(page.locator(".state")).to_have_text("nano")
    shoot(page, "killed-engine")


def test_an_answer_that_ended_before_the_kill_is_asked_for_again(
    page: Page, standin: StandIn
) -> None:
    standin.answer, standin.may_kill_engine, standin.tokens_per_s = WORDS, True, 1_000_000
    page.reload()
    page.get_by_role("button", name="Kill the engine").click()
    expect(page.locator(".paths")).to_contain_text("3/3")  # and then no more
    wait_for_answer(page)
    assert (standin.num_killed, len(standin.asked)) == (3, 3)


# Tokens.


def test_tokens_show_their_rivals_and_one_of_them_continues(page: Page, standin: StandIn) -> None:
    standin.thoughts, standin.answer = "I think. ", WORDS
    page.get_by_label("Token probabilities").check()
    ask(page, "Count")
    wait_for_answer(page)
    assert standin.asked[-1]["return_token_logprobs"] is True
    tokens = page.get_by_role("region", name="Tokens")
    tiles = tokens.locator(".tile")
    expect(tiles).to_have_count(11)
    tiles.nth(4).hover()
    expect(tokens.locator(".rivals p")).to_contain_text("token 5 of 11, id 4, 67 %")
    tiles.nth(4).click()
    page.mouse.move(0, 0)
    tokens.get_by_role("button", name="Continue from here with this token").click()
    wait_for_answer(page)
    assert standin.asked[-1]["continue_token_ids"] == [0, 1, 2, 3, 1004]
    expect(page.locator(".markdown")).to_contain_text("one rival three")
    expect(page.locator(".paths")).to_contain_text("2/2")
    expect(tiles).to_have_count(11)  # what was known of the tokens before is still there
    page.get_by_role("button", name="Version before").click()
    expect(page.locator(".markdown")).to_have_text(WORDS)


def test_tokens_of_an_answer_without_probabilities_can_be_asked_for(page: Page) -> None:
    ask(page, "Count")
    wait_for_answer(page)
    page.get_by_role("button", name="Tokens").click()
    page.get_by_role("button", name="Run it again with them").click()
    expect(page.get_by_role("region", name="Tokens").locator(".tile").first).to_be_visible()


# Comparison.


def test_two_settings_answer_side_by_side_and_one_is_kept(page: Page, standin: StandIn) -> None:
    standin.answer, standin.tokens_per_s = WORDS, 20
    page.get_by_role("button", name="Compare").click()
    dialog = page.get_by_role("dialog")
    left, right = dialog.get_by_label("Left"), dialog.get_by_label("Right")
    right.get_by_label("Temperature").fill("0.5")
    dialog.get_by_label("Question").fill("Which?")
    dialog.get_by_role("button", name="Ask both").click()
    for side in (left, right):
        expect(side.locator(".markdown")).to_have_text(WORDS)
        expect(side.locator(".figures")).to_contain_text("8 out")
    efforts = {body["reasoning_effort"]: body.get("temperature") for body in standin.asked}
    assert efforts == {"low": None, "high": 0.5}
    right.get_by_role("button", name="Keep this answer").click()
    expect(page.get_by_role("article", name="You")).to_contain_text("Which?")
    expect(page.locator(".paths")).to_contain_text("2/2")
    expect(page.get_by_label("Temperature")).to_have_value("")  # as it was: that answer's only


def test_two_servers_answer_side_by_side(context: BrowserContext) -> None:
    with (
        running(StandIn(answer="From the other.", visitors=("*",))) as other,
        running(StandIn()) as closed,
        running(StandIn(others=(other.url, closed.url))) as own,
    ):
        page = opened(context, own)
        page.get_by_role("button", name="Compare").click()
        dialog = page.get_by_role("dialog")
        right = dialog.get_by_label("Right")
        right.get_by_label("Server").select_option(other.url)
        right.get_by_label("Its key").fill("sk-other")
        dialog.get_by_label("Question").fill("Where?")
        dialog.get_by_role("button", name="Ask both").click()
        expect(dialog.get_by_label("Left").locator(".markdown")).to_have_text("Yes.")
        expect(right.locator(".markdown")).to_have_text("From the other.")
        assert (other.keys, own.keys) == (["Bearer sk-other"], [""])
        assert violations(page) == []
        right.get_by_label("Server").select_option(closed.url)
        dialog.get_by_role("button", name="Ask both").click()
        expect(right.get_by_role("alert")).to_contain_text("NIM_CORS_ALLOW_ORIGINS lacks this page")
        assert closed.asked == []


# The composer and the panel.


def test_files_and_long_pastes_are_chips_with_their_tokens(page: Page, standin: StandIn) -> None:
    file = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"a ``` b c"}
    page.get_by_label("Files to attach").set_input_files([file])
    chips = page.get_by_role("list", name="Files")
    expect(chips).to_contain_text("notes.md4 tokens")
    page.get_by_label("Message", exact=True).focus()
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.setData("text/plain", "pasted words ".repeat(1000));
        document.activeElement.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    }""")
    expect(chips).to_contain_text("pasted.txt2,000 tokens")
    chips.get_by_role("button", name="Remove pasted.txt").click()
    ask(page, "Summarize")
    wait_for_answer(page)
    content = standin.asked[-1]["messages"][-1]["content"]
    assert content == "notes.md:\n````\na ``` b c\n````\n\nSummarize"
    expect(page.get_by_role("article", name="You").get_by_role("list")).to_contain_text("notes.md")
    binary = {"name": "a.bin", "mimeType": "application/octet-stream", "buffer": b"\0\1"}
    page.get_by_label("Files to attach").set_input_files([binary])
    expect(page.get_by_role("alert")).to_contain_text("a.bin is not text")


def test_enter_queues_while_an_answer_comes(page: Page, standin: StandIn) -> None:
    standin.answer, standin.until = WORDS, 1
    ask(page, "First")
    expect(page.locator(".markdown")).to_contain_text("one")
    ask(page, "Second")
    ask(page, "Third")
    queue = page.get_by_role("list", name="Waiting")
    expect(queue.get_by_role("listitem")).to_have_count(2)
    queue.get_by_role("button", name="Take back").last.click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("Third")
    standin.until = None
    expect(page.get_by_role("article", name="You")).to_have_count(2)
    expect(page.get_by_role("article", name="You").last).to_contain_text("Second")
    wait_for_answer(page)


def test_the_context_in_use_is_shown(page: Page) -> None:
    ask(page, "Hello")
    wait_for_answer(page)
    expect(page.locator(".gauge")).to_contain_text("1,001 of 131,072 tokens")
    page.get_by_label("Message", exact=True).fill("word " * 80)
    expect(page.locator(".gauge")).to_contain_text("1,101 of 131,072 tokens")


def test_settings_are_kept_under_a_name(page: Page) -> None:
    preset = page.get_by_role("combobox", name="Preset")
    expect(preset).to_have_value("Defaults")
    preset.select_option("Extract")
    expect(page.get_by_label("Temperature")).to_have_value("0")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_role("button", name="Save as preset").click()
    page.get_by_label("Name of the preset").fill("Mine")
    page.get_by_label("Name of the preset").press("Enter")
    page.reload()
    page.get_by_role("combobox", name="Preset").select_option("Mine")
    expect(page.get_by_label("Temperature")).to_have_value("0.3")
    page.get_by_role("button", name="Delete preset").click()
    expect(page.get_by_role("combobox", name="Preset")).not_to_contain_text("Mine")


def test_a_slider_and_its_field_are_one_setting(page: Page, standin: StandIn) -> None:
    field = page.get_by_label("Temperature")
    slider = page.locator(".settings input[type=range]").first
    expect(slider).to_have_value("1")  # the server's default
    slider.fill("0.35")
    expect(field).to_have_value("0.35")
    ask(page, "Hello")
    wait_for_answer(page)
    assert standin.asked[-1]["temperature"] == 0.35
    field.fill("")
    expect(slider).to_have_value("1")
    ask(page, "Hello")
    wait_for_answer(page)
    assert "temperature" not in standin.asked[-1]


def test_a_schema_is_written_as_a_form(page: Page, standin: StandIn) -> None:
    page.get_by_label("Make the answer follow this JSON schema").check()
    first = page.get_by_role("group", name="Field answer")
    first.get_by_label("Name").fill("mood")
    first.get_by_label("Name").press("Enter")
    mood = page.get_by_role("group", name="Field mood")
    mood.get_by_label("Kind").select_option("one of")
    mood.get_by_label("Values").fill("glad, sad, glad")
    mood.get_by_label("Values").press("Enter")
    confidence = page.get_by_role("group", name="Field confidence")
    confidence.get_by_label("required").uncheck()
    page.get_by_role("button", name="Add a field").click()
    page.get_by_role("group", name="Field field_3").get_by_label("Kind").select_option(
        "list of texts"
    )
    ask(page, "Hello")
    wait_for_answer(page)
    assert standin.asked[-1]["response_format"]["json_schema"]["schema"] == {
        "type": "object",
        "properties": {
            "mood": {"type": "string", "enum": ["glad", "sad"]},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "field_3": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["mood", "field_3"],
        "additionalProperties": False,
    }
    page.get_by_role("button", name="JSON", exact=True).click()
    page.get_by_label("Schema", exact=True).fill('{"anyOf": []}')
    page.get_by_role("button", name="Form", exact=True).click()
    expect(page.get_by_text("more than a form shows")).to_be_visible()


def test_the_servers_tools_can_be_switched_on(context: BrowserContext, standin: StandIn) -> None:
    standin.tools = ("browser", "python")
    page = opened(context, standin)
    page.get_by_label("Web search (runs on the server)").check()
    ask(page, "Search")
    wait_for_answer(page)
    assert standin.asked[-1]["tools"] == [{"type": "web_search"}]


# All of it.


def violations(page: Page, but: tuple[str, ...] = ()) -> list[Any]:
    page.evaluate(AXE.read_text(encoding="utf-8"))
    rules = {name: {"enabled": False} for name in but}
    found = page.evaluate("rules => axe.run({ rules })", rules)
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]


def test_a_first_visit_weighs_at_most_45_kibibytes(browser: Browser, server: Server) -> None:
    """All that comes over the network for the first screen, from a real server, with headers."""
    with browser.new_context() as context:
        page = context.new_page()
        weights = limited(context.new_cdp_session(page), CONDITIONS[0])
        with page.expect_response(
            re.compile("/v1/metrics")
        ) as metrics:  # the last, some seconds later
            page.goto(server.url)
        metrics.value.finished()
        expect(page.locator(".facts")).to_contain_text("tokens of context")
    assert len(weights) > 10
    assert sum(weights) < 45 * 1024, weights


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_of_the_instrument(
    context: BrowserContext, standin: StandIn, scheme: Any, width: int
) -> None:
    """Kept to be looked at; nothing of them may be wider than the page."""
    page = opened(context, standin)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 850})
    shoot(page, f"welcome-{width}-{scheme}")
    standin.thoughts, standin.answer = "The user wants all of it. ", WORDS * 12
    page.get_by_role("button", name="See the tokens").click()
    wait_for_answer(page)
    page.locator(".tile").nth(8).click()
    shoot(page, f"tokens-{width}-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Compare").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Question").fill("Which?")
    standin.answer = (Path(__file__).parent / "everything.md").read_text(encoding="utf-8")
    dialog.get_by_role("button", name="Ask both").click()
    expect(dialog.get_by_role("button", name="Keep this answer")).to_have_count(2)
    shoot(page, f"compare-{width}-{scheme}")
    assert dialog.evaluate("node => node.scrollWidth <= node.clientWidth")
