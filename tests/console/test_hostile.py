"""Stored content never becomes markup: thirty payloads in every place where the page shows content.

Knows: attacks that worked on other pages. Must never know: why they do not work here.
"""

import pytest
from playwright.async_api import Page, expect

from engine.name_rules import is_name
from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened, rows

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<body onload=alert(1)>",
    "<details open ontoggle=alert(1)>x</details>",
    "<video><source onerror=alert(1)></video>",
    "<input autofocus onfocus=alert(1)>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<template><img src=x onerror=alert(1)></template>",
    "<object data=javascript:alert(1)></object>",
    "<embed src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<form action=javascript:alert(1)><button>x</button></form>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{background:url(//evil.example/)}</style>",
    "javascript:alert(1)",
    "'\"><img src=x onerror=alert(1)>",
    "</title></textarea></script><script>alert(1)</script>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "\u2028alert(1)\u2029<!--",
    "\u202e<gpj.evil>\u202c\u0000\u0008",
    "]]><![CDATA[<img src=x onerror=alert(1)>]]>&lt;img src=x onerror=alert(1)&gt;&#60;",
)
# The elements of the page itself; any other comes from a payload.
KNOWN = (
    *(
        "A",
        "ASIDE",
        "BDI",
        "BODY",
        "BUTTON",
        "CANVAS",
        "CAPTION",
        "DATALIST",
        "DD",
        "DIALOG",
        "DIV",
        "DL",
        "DT",
    ),
    *(
        "FIELDSET",
        "FORM",
        "H1",
        "H2",
        "HEAD",
        "HEADER",
        "HTML",
        "INPUT",
        "LABEL",
        "LINK",
        "MAIN",
        "META",
        "NAV",
        "NOSCRIPT",
    ),
    *("OPTION", "P", "PRE", "SCRIPT", "SECTION", "SELECT", "SPAN", "TABLE", "TBODY", "TD", "TEXTAREA"),
    *("LI", "TH", "THEAD", "TITLE", "TR", "UL"),
)
WATCH = """() => {
  window.violations = [];
  const note = (event) => window.violations.push(event.violatedDirective);
  document.addEventListener("securitypolicyviolation", note);
}"""
COUNT = """() => Object.fromEntries(
  ["SCRIPT", "LINK", "META", "FORM", "NOSCRIPT", "TITLE", "TEXTAREA", "A"].map(
    (tag) => [tag, document.querySelectorAll(tag).length]))"""
LETTERS_LEFT_TO_RIGHT = """(element) => {
  const last = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let text = null;
  while (last.nextNode()) if (last.currentNode.data.includes("gpj.exe")) text = last.currentNode;
  const at = text.data.indexOf("gpj.exe");
  const left = [0, 6].map((offset) => {
    const range = document.createRange();
    range.setStart(text, at + offset);
    range.setEnd(text, at + offset + 1);
    return range.getBoundingClientRect().left;
  });
  return left[0] < left[1];
}"""
UNKNOWN = """(known) => [...document.querySelectorAll("*")]
  .map((one) => one.tagName).filter((tag) => !known.includes(tag))"""


async def test_stored_payloads_are_shown_as_text(page: Page, gateway: ConsoleGateway) -> None:
    """As values and names of fields, in the list and the inspector: no element, no dialog, no violation."""
    assert len(PAYLOADS) == 30
    await page.set_viewport_size({"width": 1360, "height": 1400})
    await gateway.publish("harmless", {"value": "x"})
    await opened(page, gateway, "harmless")
    await page.evaluate(WATCH)
    before = await page.evaluate(COUNT)
    await gateway.publish("harmless", *({"value": one, one: one} for one in PAYLOADS))
    await expect(rows(page)).to_have_count(31)
    await page.get_by_role("button", name="Columns", exact=True).click()
    found = await page.locator(".row").evaluate_all("rows => rows.map((row) => row.children[2].textContent)")
    assert set(PAYLOADS) <= set(found)
    for place in range(1, 31, 5):
        await page.locator(".row:visible").nth(place).click()
        shown = page.get_by_role("complementary", name="Entry").locator("pre").first
        assert await shown.evaluate("element => element.textContent") in PAYLOADS
    await _check(page, before)


async def test_names_are_shown_as_text(page: Page, gateway: ConsoleGateway) -> None:
    """Names of streams, groups and consumers."""
    names = [*[one for one in PAYLOADS if is_name(one.encode()) and one.isprintable()][:8], "acme/orders/%2F"]
    await gateway.publish("named", {"n": "1"})
    for name in names:
        await gateway.http.put(f"/v1/streams/{_quoted(name)}", json={})
        await gateway.http.put(f"/v1/streams/named/groups/{_quoted(name)}", json={"start": "0"})
    group = f"/v1/streams/named/groups/{_quoted(names[0])}/consumers"
    for name in names:
        assert (await gateway.http.put(f"{group}/{_quoted(name)}")).is_success
    await opened(page, gateway, "named", f"groups/{_quoted(names[0])}")
    await page.evaluate(WATCH)
    before = await page.evaluate(COUNT)
    for name in names:
        await expect(page.get_by_role("link", name=name, exact=True)).to_have_count(2)
        await expect(page.get_by_role("rowheader", name=name, exact=True)).to_have_count(3)
    await (
        page.get_by_role("region", name="List of streams")
        .get_by_role("link", name=names[0], exact=True)
        .click()
    )
    await expect(page.get_by_role("heading", level=1, name=names[0], exact=True)).to_be_visible()
    await _check(page, before, links=0)


async def test_hidden_characters_are_shown_and_turn_nothing_around(
    page: Page, gateway: ConsoleGateway
) -> None:
    """A name that would look as if it ended in .jpg: the code of its character is shown, the order stays."""
    name = "hidden \u202egpj.exe"
    await gateway.http.put(f"/v1/streams/{_quoted(name)}/groups/{_quoted(name)}", json={"start": "0"})
    assert (
        await gateway.http.post(f"/v1/streams/{_quoted(name)}/entries", json={"fields": {name: name}})
    ).is_success
    await opened(page, gateway, "harmless")
    link = page.get_by_role("region", name="List of streams").get_by_role("link", name="gpj.exe")
    await expect(link).to_have_attribute("title", "hidden [U+202E]gpj.exe")
    await link.click()
    await expect(page).to_have_title("hidden [U+202E]gpj.exe – Weir console")
    heading = page.get_by_role("heading", level=1)
    cell = rows(page).locator("div").nth(2)
    column = page.get_by_role("columnheader", name="gpj.exe")
    for shown in (link, heading, cell, column):
        await expect(shown.locator(".code")).to_have_attribute("data-code", "U+202E")
        assert await shown.evaluate("element => element.textContent") == name, "what is copied is the name"
        assert await shown.evaluate(LETTERS_LEFT_TO_RIGHT)
    await cell.click()
    for shown in await page.get_by_role("complementary", name="Entry").locator("pre, .name").all():
        assert await shown.evaluate(LETTERS_LEFT_TO_RIGHT)
    await page.get_by_role("tab", name="Groups").click()
    group = page.get_by_role("main").get_by_role("link", name="gpj.exe")
    await expect(group).to_have_attribute("title", "hidden [U+202E]gpj.exe")
    assert await group.evaluate(LETTERS_LEFT_TO_RIGHT)
    await gateway.http.delete(f"/v1/streams/{_quoted(name)}?pending=drop")


async def test_reasons_of_dead_letters_are_shown_as_text(page: Page, gateway: ConsoleGateway) -> None:
    """In the list, the dialog and its suggestions; and names on the overview."""
    reasons = [one for one in PAYLOADS if one.isprintable()][:20]
    ids = await gateway.publish("dead", *({"n": str(n)} for n in range(len(reasons))))
    await gateway.call("PUT", "dead/groups/team", {"start": "0"})
    policy = {"dead_letter": {"stream": "dead-letters", "max_deliveries": None}}
    await gateway.call("PATCH", "dead/groups/team", policy)
    await gateway.call("POST", "dead/groups/team/consumers/anna/read", {"count": len(ids)})
    for entry_id, reason in zip(ids, reasons, strict=True):
        await gateway.call("POST", "dead/groups/team/dead-letter", {"ids": [entry_id], "reason": reason})
    await opened(page, gateway, "dead", "groups/team")
    await page.evaluate(WATCH)
    before = await page.evaluate(COUNT)
    shown = page.get_by_role("region", name="Dead letters")
    await expect(shown.locator(".reason")).to_have_text(reasons[::-1])
    await shown.get_by_role("button", name="Redrive all…").click()
    await expect(page.get_by_text("This redrives 20 dead letters.")).to_be_visible()
    assert await page.evaluate(UNKNOWN, list(KNOWN)) == []
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="Weir console, overview").click()
    await expect(page.get_by_role("region", name="Largest streams").get_by_role("link")).not_to_have_count(0)
    await _check(page, before, links=0)


def _quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


async def _check(page: Page, before: dict[str, int], links: int | None = None) -> None:
    assert await page.evaluate(UNKNOWN, list(KNOWN)) == []
    after = await page.evaluate(COUNT)
    if links is not None:
        # The other view does not have the links of the groups.
        before, after = before | {"A": 0}, after | {"A": 0}
    assert after == before
    assert await page.evaluate("() => window.violations") == []


async def test_the_policy_blocks_what_the_page_never_does(
    page: Page, gateway: ConsoleGateway, wrong: list[str]
) -> None:
    """Even a script of the page cannot turn a string into markup or contact another host."""
    await opened(page, gateway, "harmless")
    refused = """async () => {
      const tried = [];
      try { document.body.innerHTML = "<b>x</b>" } catch { tried.push("markup") }
      try { await fetch("http://127.0.0.2:9/") } catch { tried.push("fetch") }
      return tried;
    }"""
    assert await page.evaluate(refused) == ["markup", "fetch"]
    assert sum("Trusted" in line or "Content Security Policy" in line for line in wrong) >= 2
    wrong.clear()
