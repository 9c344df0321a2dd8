/* Declares to Node that the console's files are ES modules: the page loads them as such, and no package.json says so. */
import { register } from "node:module";

const hooks = `export const load = (url, context, next) =>
  next(url, url.includes("/app/console/") ? { ...context, format: "module" } : context);`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
