"""The page about the API comes from this gateway alone, and may run nothing else."""

import re

import httpx


async def test_the_page_loads_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    """What the page names is served here, as what it is, under a policy that allows no other place."""
    page = await http.get("/docs")
    policy = page.headers["content-security-policy"]
    named = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    files = [place for place in named if place.startswith("/docs/")]
    assert len(files) == 3
    assert set(named) - set(files) == {"/openapi.json", "/asyncapi.json", "/console"}, "on this host"
    for place in files:
        found = await http.get(place)
        kind = "text/css" if place.endswith(".css") else "text/javascript"
        assert (found.status_code, found.headers["content-type"].partition(";")[0]) == (200, kind)
        again = await http.get(place, headers={"if-none-match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), "a megabyte is sent once"


async def test_the_page_holds_no_script_of_its_own(http: httpx.AsyncClient) -> None:
    """Scripts stand in files alone, so that the policy can forbid inline ones."""
    page = await http.get("/docs")
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page.text) == ["", ""]


async def test_each_refusal_has_its_page(http: httpx.AsyncClient) -> None:
    """The `type` of a problem is a page that says what the code means."""
    problem = (await http.get("/v1/streams/s/entries?start=x")).json()
    page = await http.get(problem["type"])
    assert page.status_code == 200
    assert problem["code"] in page.text
