// How the dashboard is built: hashed files under the server's static folder, nothing inline, nothing from elsewhere.
import { defineConfig } from "vite";

const server = "http://localhost:8025";

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/restante/server/static",
    emptyOutDir: true,
    target: "es2022",
    // The polyfill and inlined assets would be scripts and data the content security policy forbids.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
  server: { proxy: { "/api": server, "/insights/report": server } },
});
