import { fileURLToPath } from "node:url"

const STORE = fileURLToPath(new URL("store.mjs", import.meta.url))
const ORIGINAL = fileURLToPath(new URL("src/resumable/stores/InMemoryResumableStreamStore.ts", import.meta.url))

export default {
  plugins: [
    {
      name: "store",
      enforce: "pre",
      resolveId(source) {
        if (source === "./original") return ORIGINAL
        return source.endsWith("/InMemoryResumableStreamStore") ? STORE : undefined
      },
    },
  ],
}
