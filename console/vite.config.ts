import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// File names without hashes: the server sends a tag of the content with each, and the built files are kept in git.
export default defineConfig({
  base: "/console/",
  plugins: [preact()],
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
