"""The API describes itself, for programs and for people."""

import httpx

IDS = {
    "getRoot", "getVersion", "isLive", "isReady", "runCommand", "runPipeline", "runTransaction", "addEntries",
    "readEntries", "getEntry", "createGroup", "readGroup", "ackEntries",
}  # fmt: skip


async def test_the_description_is_whole(http: httpx.AsyncClient) -> None:
    """OpenAPI 3.1; each operation has its ID, each reference leads somewhere, each code is in the list."""
    answer = await http.get("/openapi.json")
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    operations = [result for methods in document["paths"].values() for result in methods.values()]
    assert {result["operationId"] for result in operations} >= IDS
    assert all(result["summary"] for result in operations)
    schemas = document["components"]["schemas"]
    references = {piece.partition('"')[0] for piece in answer.text.split("#/components/schemas/")[1:]}
    assert references <= schemas.keys()
    assert "id_not_increasing" in schemas["Problem"]["properties"]["code"]["enum"]


async def test_paths_name_their_parameters(http: httpx.AsyncClient) -> None:
    """stream, group, consumer, id; query and headers too."""
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path, methods in paths.items():
        for result in methods.values():
            named = [one["name"] for one in result.get("parameters", []) if one["in"] == "path"]
            assert [f"{{{name}}}" for name in named] == [part for part in path.split("/") if part[:1] == "{"]
    result = paths["/v1/streams/{stream}/entries"]["get"]
    assert {one["name"] for one in result["parameters"]} >= {"stream", "after", "wait", "Prefer"}
