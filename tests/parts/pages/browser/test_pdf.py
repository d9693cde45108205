"""The text of an attached PDF, and what is said of one that has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Request, expect

from tests.parts.pages.browser.standin import StandIn
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import context, page, standin

__all__ = ["context", "page", "standin"]  # fixtures
pytestmark = pytest.mark.browser

REPORT = """<h1>Report</h1><p>Grüße aus Köln, Москва and Αθήνα.</p>
<table><tr><td>Streams</td><td>128</td></tr></table>
<p style="break-before: page">The second page.</p>"""


def written(*objects: str, trailer: str = "") -> bytes:
    """A PDF of these objects; the first is its catalogue, the second its pages."""
    head = "".join(f"{number} 0 obj\n{text}\nendobj\n" for number, text in enumerate(objects, 1))
    return f"%PDF-1.4\n{head}trailer\n<< /Root 1 0 R {trailer} >>\n%%EOF\n".encode("latin-1")


def of_text(shown: str, font: str, *more: str, catalogue: str = "") -> bytes:
    stream = f"BT /F 12 Tf 20 20 Td {shown} Tj ET"
    return written(
        f"<< /Type /Catalog /Pages 2 0 R {catalogue} >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 50] /Contents 4 0 R "
        "/Resources << /Font << /F 5 0 R >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        font,
        *more,
    )


PLAIN = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
CHINESE = (
    "<< /Type /Font /Subtype /Type0 /BaseFont /Song /Encoding /GBK-EUC-H "
    "/DescendantFonts [6 0 R] >>",
    "<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Song /CIDSystemInfo "
    "<< /Registry (Adobe) /Ordering (GB1) /Supplement 2 >> /FontDescriptor 7 0 R >>",
    "<< /Type /FontDescriptor /FontName /Song /Flags 4 >>",
)
KEYS = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{'00' * 32}> /U <{'00' * 32}> >>"


def attach(page: Page, name: str, content: bytes) -> None:
    file = {"name": name, "mimeType": "application/pdf", "buffer": content}
    page.get_by_label("Files to attach").set_input_files([file])


def test_the_text_of_a_pdf_goes_with_the_question(
    context: BrowserContext, page: Page, standin: StandIn
) -> None:
    printer = context.new_page()
    printer.set_content(REPORT)
    attach(page, "report.pdf", printer.pdf())
    expect(page.get_by_role("list", name="Files")).to_contain_text("report.pdf")
    ask(page, "Summarize")
    wait_for_answer(page)
    told = standin.asked[-1]["messages"][-1]["content"]
    head, body, question = told.split("```")
    assert (head, question) == ("report.pdf:\n", "\n\nSummarize")
    words = "Report Grüße aus Köln, Москва and Αθήνα. Streams 128 The second page."
    assert " ".join(body.split()) == words
    assert body.strip().endswith("128\n\nThe second page.")  # pages stand apart


@pytest.mark.parametrize(
    ("name", "content", "said"),
    ids=("scan", "cut", "locked", "song"),
    argvalues=[
        ("scan", of_text("()", PLAIN), "holds pictures of its pages and no text"),
        ("cut", of_text("(Hello)", PLAIN)[:40], "cannot be read as a PDF"),
        (
            "locked",
            written("<< /Pages 2 0 R >>", "<< /Count 0 >>", trailer=f"/ID [<00> <00>] {KEYS}"),
            "is locked with a password",
        ),
        ("song", of_text("<C4E3BAC3>", *CHINESE), "uses East Asian fonts that it does not hold"),
    ],
)
def test_a_pdf_without_a_text_is_refused_with_the_reason(
    page: Page, name: str, content: bytes, said: str
) -> None:
    attach(page, f"{name}.pdf", content)
    expect(page.get_by_role("alert")).to_contain_text(f"{name}.pdf {said}")
    expect(page.get_by_role("list", name="Files")).to_have_count(0)


def test_a_pdf_that_is_too_large_is_not_read(page: Page, tmp_path: Path) -> None:
    with (tmp_path / "large.pdf").open("wb") as file:
        file.write(b"%PDF-")
        file.truncate((32 << 20) + 1)
    page.get_by_label("Files to attach").set_input_files(tmp_path / "large.pdf")
    expect(page.get_by_role("alert")).to_contain_text("large.pdf is larger than 32 MiB")


def test_nothing_in_a_pdf_acts(page: Page, standin: StandIn) -> None:
    """Its scripts and links stay where they are; the page asks for nothing on its account."""
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    act = (
        "/OpenAction << /S /JavaScript /JS (app.launchURL\\('http://example.test/js'\\)) >> "
        "/AA << /WC << /S /URI /URI (http://example.test/uri) >> >>"
    )
    attach(page, "sly.pdf", of_text("(Hello)", PLAIN, catalogue=act))
    expect(page.get_by_role("list", name="Files")).to_contain_text("sly.pdf")
    assert {request.url.removeprefix(standin.url).split("-")[0] for request in asked} <= {
        *("/assets/pdf.js", "/assets/files", "/tokenize", "/v1/metadata", "/v1/models"),
        *("/v1/health/ready", "/v1/metrics"),
    }
