import preact from "@preact/preset-vite";
import { defineConfig, type Plugin } from "vite";

// Pages are sent without the indentation of their sources.
const compactPages: Plugin = {
  name: "compact-pages",
  enforce: "post",
  transformIndexHtml: { order: "post", handler: (html) => html.replace(/\n\s*/g, "").trim() + "\n" },
};

// File names without hashes: the server sends a tag of the content with each, and the built files are kept in git.
export default defineConfig({
  base: "/console/",
  plugins: [preact(), compactPages],
  build: {
    outDir: "../src/millstream/web_console/static",
    emptyOutDir: true,
    assetsDir: "",
    modulePreload: false,
    rollupOptions: {
      input: { index: "index.html", login: "login.html" },
      output: {
        entryFileNames: "[name].js",
        chunkFileNames: "shared-[name].js",
        assetFileNames: "[name][extname]",
      },
    },
  },
});
