/* The console's files are modules by how the page loads them; nothing beside them says so to Node. */
import { register } from "node:module";

const hooks = `export const load = (url, context, next) =>
  next(url, url.includes("/app/console/") ? { ...context, format: "module" } : context);`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
