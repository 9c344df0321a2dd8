"""The API describes itself, for programs and for people."""

import httpx


async def test_paths_name_their_parameters(http: httpx.AsyncClient) -> None:
    """stream, group, consumer, id; query and headers too."""
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path, methods in paths.items():
        for result in methods.values():
            named = [one["name"] for one in result.get("parameters", []) if one["in"] == "path"]
            assert [f"{{{name}}}" for name in named] == [part for part in path.split("/") if part[:1] == "{"]
    result = paths["/v1/streams/{stream}/entries"]["get"]
    assert {one["name"] for one in result["parameters"]} >= {"stream", "after", "wait", "Prefer"}
