// Lints the description whose file is the argument with Redocly's strict rules and with Spectral's for OpenAPI, and
// prints what they find.
import { readFile } from "node:fs/promises";
import { createConfig, lint } from "@redocly/openapi-core";
import core from "@stoplight/spectral-core";
import rulesets from "@stoplight/spectral-rulesets";

const file = process.argv[2];

// What is always open is always answered.
const config = await createConfig({ extends: ["recommended-strict"], rules: { "operation-4xx-response": "off" } });
for (const found of await lint({ ref: file, config })) {
    console.log(`${found.ruleId}: ${found.message} ${found.location[0]?.pointer}`);
}

const spectral = new core.Spectral();
// The document names no contact: each gateway is run by other people.
spectral.setRuleset({ extends: [rulesets.oas], rules: { "info-contact": "off" } });
for (const found of await spectral.run(JSON.parse(await readFile(file, "utf8")))) {
    console.log(`${found.code}: ${found.message} ${found.path.join("/")}`);
}
